"""Events about which notifications are sent: which ones a setting selects, when they are due,
and what they contain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, time, timedelta
from enum import StrEnum
from typing import Annotated, NotRequired, TypedDict

from django_durable_tasks.choices import EventType, Status
from django_durable_tasks.exceptions import InvalidSchedule
from django_durable_tasks.schedules.timetables.zones import zone

_FAILED = (EventType.DEAD, EventType.FAILED)
OF_TRANSITION: Mapping[tuple[str, Status], tuple[EventType, ...]] = {
    ("succeed", Status.SUCCESS): (EventType.SUCCEEDED,),
    ("force_complete", Status.SUCCESS): (EventType.SUCCEEDED,),
    ("retry", Status.PENDING): (EventType.RETRYING,),
    ("lose", Status.PENDING): (EventType.RETRYING,),
    ("exhaust", Status.FAILED): _FAILED,
    ("lose", Status.FAILED): _FAILED,
    ("fail", Status.FAILED): _FAILED,
}
"""The event types of a transition. A setting that selects several of them gets the first one only:
each failed task has a dead letter, and two messages about it would say the same.
"""


# What happened, and when messages about it are due.


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class OccurredEvent:
    """Something that happened. ``types``: the types of messages about it, the preferred first.
    ``schedule`` is the name of the recurring task. Empty names: it is not about one.
    """

    types: Sequence[EventType]
    tenant_id: int
    task_name: str = ""
    queue: str = ""
    schedule: str = ""
    shown_as: str = ""
    data: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuietHours:
    """The time of day in which nothing is sent, by the wall clock of a zone. ``begin`` may be
    later than ``end``: the hours then include midnight.
    """

    begin: time
    end: time
    time_zone: str

    def end_after(self, now: datetime) -> datetime | None:
        """Return when the quiet hours that contain ``now`` end; None if it is outside of them."""
        try:
            local = now.astimezone(zone(self.time_zone))
        except InvalidSchedule:
            # The installed tzdata does not have it any more. One setting must not stop the others.
            local = now.astimezone(UTC)
        clock = local.time()
        if self.begin <= self.end:
            if not self.begin <= clock < self.end:
                return None
            days = 0
        elif clock >= self.begin:
            days = 1
        elif clock < self.end:
            days = 0
        else:
            return None
        end = datetime.combine(local.date() + timedelta(days=days), self.end, tzinfo=local.tzinfo)
        # When clocks are set back, the end may be repeated. Its second pass is after `now`.
        ends = (end.astimezone(UTC), end.replace(fold=1).astimezone(UTC))
        return next((candidate for candidate in ends if candidate > now), None)


def period_end(now: datetime, seconds: float) -> datetime:
    """Return the end of the period of this length that contains ``now``. Periods are counted from
    the epoch, so that every process computes the same ones.
    """
    length = timedelta(seconds=seconds)
    # Timedeltas are whole microseconds, so no rounding can return an end that is not after now.
    return _EPOCH + ((now - _EPOCH) // length + 1) * length


# The JSON that webhooks of notification settings receive, as types.
#
# The code that builds a message is checked against these types, and the section ``webhooks`` of
# the OpenAPI document is generated from them.


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
