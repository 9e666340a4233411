"""The values of columns that rules and models share. They use neither Django nor Celery."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, time
from enum import StrEnum

# The id of the tenant that the first migration creates.
DEFAULT_TENANT_ID = 1


class Status(StrEnum):
    """The status of a task."""

    BLOCKED = "BLOCKED"
    PENDING = "PENDING"
    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    SKIPPED = "SKIPPED"
    EXPIRED = "EXPIRED"


class LogStatus(StrEnum):
    """The result of one attempt, in its log entry."""

    SUCCESS = "SUCCESS"
    FAILED = "FAILED"
    RETRY = "RETRY"
    LOST = "LOST"
    CANCELLED = "CANCELLED"
    FENCED = "FENCED"
    DUPLICATE = "DUPLICATE"


class OnOrphan(StrEnum):
    """What happens to a run whose worker died."""

    RETRY = "RETRY"
    DEAD_LETTER = "DEAD_LETTER"


class UniqueOnConflict(StrEnum):
    """The result of a second call with the same unique key."""

    RETURN_EXISTING = "RETURN_EXISTING"
    RAISE = "RAISE"
    REPLACE = "REPLACE"


class Resolution(StrEnum):
    """How a dead letter was closed."""

    REPLAYED = "REPLAYED"
    DISCARDED = "DISCARDED"


OPEN = frozenset({Status.BLOCKED, Status.PENDING, Status.QUEUED, Status.RUNNING})
TERMINAL = frozenset(Status) - OPEN
WITH_DUE_AT = frozenset({Status.PENDING, Status.QUEUED})
REPLAYABLE = frozenset({Status.FAILED, Status.CANCELLED, Status.SKIPPED, Status.EXPIRED})


class TargetType(StrEnum):
    """What a task does: call a function, send an HTTP request, or publish a message."""

    CELERY_TASK = "CELERY_TASK"
    HTTP_CALLBACK = "HTTP_CALLBACK"
    QUEUE_MESSAGE = "QUEUE_MESSAGE"


class DependencyType(StrEnum):
    """The ending of the upstream that an edge requires."""

    MUST_SUCCEED = "MUST_SUCCEED"
    MUST_FINISH = "MUST_FINISH"
    MUST_FAIL = "MUST_FAIL"


class OnUpstreamFailure(StrEnum):
    """What happens to a task if an upstream ends in another way than its edge requires."""

    SKIP = "SKIP"
    FAIL = "FAIL"
    WAIT = "WAIT"
    RUN = "RUN"


class Gate(StrEnum):
    """A decision by a person before a task may run. It counts as one unresolved dependency without
    an upstream.
    """

    APPROVAL = "APPROVAL"
    HOLD = "HOLD"


DEADLINE = "DEADLINE"
"""The reason of a run that was cancelled because its deadline passed."""


class WorkflowStatus(StrEnum):
    """The status of a workflow run."""

    STARTING = "STARTING"
    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


OPEN_RUN = frozenset({WorkflowStatus.STARTING, WorkflowStatus.RUNNING})


class RecurringStatus(StrEnum):
    """The status of a recurring task."""

    ACTIVE = "ACTIVE"
    PAUSED = "PAUSED"
    CANCELLED = "CANCELLED"


class CatchUp(StrEnum):
    """The policy for fire times that were detected too late (misfires)."""

    RUN_ALL_MISSED = "RUN_ALL_MISSED"
    RUN_ONE_NOW = "RUN_ONE_NOW"
    SKIP_MISSED = "SKIP_MISSED"


class CatchUpOrder(StrEnum):
    """Which of the missed fire times runs first."""

    OLDEST = "OLDEST"
    NEWEST = "NEWEST"


class Overlap(StrEnum):
    """The policy for a fire time while a run of an earlier one is open."""

    ALLOW = "ALLOW"
    SKIP = "SKIP"
    QUEUE_ONE = "QUEUE_ONE"
    QUEUE_ALL = "QUEUE_ALL"
    CANCEL_RUNNING = "CANCEL_RUNNING"
    REPLACE_PENDING = "REPLACE_PENDING"


class FireOutcome(StrEnum):
    """The outcome of a fire time in the ledger."""

    DISPATCHED = "DISPATCHED"
    ROLLED = "ROLLED"
    MANUAL = "MANUAL"
    SKIPPED_OVERLAP = "SKIPPED_OVERLAP"
    SKIPPED_CALENDAR = "SKIPPED_CALENDAR"
    SKIPPED_QUOTA = "SKIPPED_QUOTA"
    MISSED = "MISSED"
    EXPIRED = "EXPIRED"
    PAUSED = "PAUSED"
    OVERRIDDEN = "OVERRIDDEN"
    FAILED_TO_CREATE = "FAILED_TO_CREATE"


class Action(StrEnum):
    """What an operator does with one fire time."""

    SKIP = "SKIP"
    MOVE = "MOVE"
    ADD = "ADD"


class DayKind(StrEnum):
    """How a date differs from its weekday: closed, open all day, or open until a time."""

    CLOSED = "CLOSED"
    OPEN = "OPEN"
    HALF = "HALF"


@dataclass(frozen=True, slots=True)
class SpecialDay:
    """One date that differs from its weekday; ``until`` is the last open minute of a half day,
    local wall time.
    """

    day: date
    kind: DayKind = DayKind.CLOSED
    name: str = ""
    until: time | None = None


class EventType(StrEnum):
    """The ``type`` of a message. Receivers distinguish messages by it."""

    SUCCEEDED = "task.succeeded"
    FAILED = "task.failed"
    RETRYING = "task.retrying"
    DEAD = "task.dead"
    MISSED = "schedule.missed"
    LATE = "schedule.late"
    ENDPOINT_OPENED = "endpoint.opened"
    ENDPOINT_GONE = "endpoint.gone"
    QUOTA_REACHED = "quota.reached"
    ALERT_BEGAN = "alert.began"
    ALERT_ENDED = "alert.ended"
    TEST = "notification.test"
    DIGEST = "notification.digest"


FLAGS: Mapping[str, tuple[EventType, ...]] = {
    "on_success": (EventType.SUCCEEDED,),
    "on_failure": (EventType.FAILED,),
    "on_retry": (EventType.RETRYING,),
    "on_dead_letter": (EventType.DEAD,),
    "on_missed": (EventType.MISSED,),
    "on_late": (EventType.LATE,),
    "on_endpoint": (EventType.ENDPOINT_OPENED, EventType.ENDPOINT_GONE),
    "on_quota": (EventType.QUOTA_REACHED,),
    "on_alert": (EventType.ALERT_BEGAN, EventType.ALERT_ENDED),
}
"""The event types that each flag of a setting selects."""


class DeliveryType(StrEnum):
    """How messages are sent."""

    EMAIL = "EMAIL"
    SLACK_WEBHOOK = "SLACK_WEBHOOK"
    HTTP_WEBHOOK = "HTTP_WEBHOOK"

    @property
    def is_http(self) -> bool:
        """Whether messages are HTTP requests."""
        return self != DeliveryType.EMAIL


class AuditSource(StrEnum):
    """What performed a write."""

    API = "API"
    ADMIN = "ADMIN"
    COMMAND = "COMMAND"
    CODE = "CODE"
    SYNC = "SYNC"
    """The synchronization of declared schedules after a migration."""


class KeyMode(StrEnum):
    """Part of the prefix of a key. It distinguishes the keys of a test system and has no effect."""

    LIVE = "live"
    TEST = "test"
