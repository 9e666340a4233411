"""The types of events about which notifications are sent, and what they contain."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from django_durable_tasks.rules.states import Status

NOTIFICATION_TASK = "django_durable_tasks.deliver_notification"
WATCHDOG_TASK = "django_durable_tasks.watchdog"
OWN_TASKS = frozenset({NOTIFICATION_TASK, WATCHDOG_TASK})
"""Tasks whose endings are no events. Otherwise a failed delivery would cause another one."""


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
