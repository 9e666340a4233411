"""A new state of this process for a test."""

from __future__ import annotations

from django_durable_tasks import process_state
from django_durable_tasks.contrib.metrics import counts
from django_durable_tasks.contrib.metrics.apps import MetricsConfig
from django_durable_tasks.contrib.notifications.capture import RecentSubscriptions, Subscriptions
from django_durable_tasks.limits.backpressure import RecentQueueState
from django_durable_tasks.states.attempt_log import ended_without_attempt


def new_process_state(*, background: bool = False) -> None:
    """Start with a new state. Without ``background`` each caller reads the state of its queue
    itself, so that no test depends on when a thread has read it.

    The optional apps that record transitions begin with ``read_notification_settings()`` and
    ``count_endings()``, so that the other tests do not count their statements.
    """
    process_state.renew()
    process_state.of(RecentQueueState).in_background = background
    ignore_notification_settings(background=background)
    ended_without_attempt.disconnect(dispatch_uid=MetricsConfig.label)


def ignore_notification_settings(*, background: bool = False) -> None:
    """Let this process read no notification settings, as before the first one is stored."""
    recent = process_state.of(RecentSubscriptions)
    recent.in_background = background
    vars(recent)["get"] = Subscriptions


def read_notification_settings() -> None:
    """Let this process record the events that notification settings select."""
    vars(process_state.of(RecentSubscriptions)).pop("get", None)


def count_endings() -> None:
    """Let this process write a row for the metrics if a task ends without an attempt."""
    ended_without_attempt.connect(counts.record_endings, dispatch_uid=MetricsConfig.label)
