"""A new state of this process for a test."""

from __future__ import annotations

from django_durable_tasks import process_state
from django_durable_tasks.contrib.notifications.capture import RecentSubscriptions
from django_durable_tasks.limits.backpressure import RecentQueueState


def new_process_state(*, background: bool = False) -> None:
    """Start with a new state. Without ``background`` each caller reads the state of its queue
    itself, so that no test depends on when a thread has read it.
    """
    process_state.renew()
    process_state.of(RecentQueueState).in_background = background
    process_state.of(RecentSubscriptions).in_background = background
