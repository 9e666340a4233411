"""The JSON that webhooks of notification settings receive, as types.

The code that builds a message is checked against these types, and the section ``webhooks`` of the
OpenAPI document is generated from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, NotRequired, TypedDict

from django_durable_tasks.rules.notifications.events import EventType


@dataclass(frozen=True, slots=True)
class Format:
    """The ``format`` of a string in JSON Schema."""

    name: str


class AlertKind(StrEnum):
    """What is wrong."""

    DEAD_LETTERS = "dead_letters"
    SCHEDULE_OVERDUE = "schedule_overdue"
    QUEUE_WITHOUT_WORKER = "queue_without_worker"
    CLOCK_SKEW = "clock_skew"


Id = Annotated[str, Format("uuid")]
Instant = Annotated[str, Format("date-time")]


class TaskEventData(TypedDict):
    """A task."""

    task_id: Id
    task_name: str
    queue: str
    attempt: Annotated[int, "How many attempts have started."]
    max_attempts: int
    schedule: NotRequired[Annotated[str, "The name of the schedule that created the task."]]


class FailedTaskData(TaskEventData):
    """A task that failed."""

    error: NotRequired[Annotated[str, "The start of the last error, with secrets masked."]]


class RetryingTaskData(FailedTaskData):
    """A task that failed and waits for its next attempt."""

    next_attempt_at: NotRequired[Instant]


class FireEventData(TypedDict):
    """Fire times of a schedule."""

    schedule_id: Id
    schedule: Annotated[str, "The name of the schedule."]
    task_name: str
    fire_time: Annotated[Instant, "The first fire time."]
    count: Annotated[int, "How many fire times the event is about."]
    reason: str
    last_fire_time: NotRequired[Annotated[Instant, "The last fire time, if there are several."]]
    task_id: NotRequired[Annotated[Id, "The task that was created."]]


class AlertData(TypedDict):
    """A condition of the whole installation."""

    alert: AlertKind
    subject: Annotated[str, "The id of a schedule, the name of a queue or host, or empty."]
    detail: Annotated[str, "A sentence about the condition."]


class EndpointEventData(TypedDict):
    """A receiver of HTTP callbacks."""

    endpoint: Annotated[str, "Its origin, followed by the value of `endpoint` if one is set."]
    task_name: str
    error: Annotated[str, "The last failure, or the answer that ended deliveries."]


class QuotaEventData(TypedDict):
    """A quota of the tenant."""

    quota: str
    detail: Annotated[str, "Why the request was refused."]


class NotificationTestData(TypedDict):
    """A test of a notification setting."""

    setting: Annotated[str, "The name of the setting."]
    sent_by: Annotated[str, "The user or the API key that asked for the test."]


class EventMessage(TypedDict):
    """A message about one event. ``type`` determines the members of ``data``."""

    type: EventType
    timestamp: Annotated[Instant, "When the event occurred."]
    data: Mapping[str, object]


class DigestCount(TypedDict):
    """How many events of one type and subject a digest is about."""

    type: EventType
    subject: str
    count: int


class DigestData(TypedDict):
    """The events of a period."""

    count: Annotated[int, "How many events the digest is about."]
    counts: Annotated[list[DigestCount], "The most frequent types and subjects."]
    events: Annotated[list[EventMessage], "The first events."]


DATA_OF: Mapping[EventType, type] = {
    EventType.SUCCEEDED: TaskEventData,
    EventType.FAILED: FailedTaskData,
    EventType.DEAD: FailedTaskData,
    EventType.RETRYING: RetryingTaskData,
    EventType.MISSED: FireEventData,
    EventType.LATE: FireEventData,
    EventType.ENDPOINT_OPENED: EndpointEventData,
    EventType.ENDPOINT_GONE: EndpointEventData,
    EventType.QUOTA_REACHED: QuotaEventData,
    EventType.ALERT_BEGAN: AlertData,
    EventType.ALERT_ENDED: AlertData,
    EventType.TEST: NotificationTestData,
    EventType.DIGEST: DigestData,
}
"""The type of ``data`` of each type of message."""
