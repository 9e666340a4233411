"""Creates the tasks of the watchdog."""

from __future__ import annotations

from datetime import datetime

from django_durable_tasks import registry
from django_durable_tasks.engine.tasks import enqueue
from django_durable_tasks.engine.tasks.new_task import Call
from django_durable_tasks.rules.notifications.events import WATCHDOG_TASK
from django_durable_tasks.rules.tasks.options import CallOptions

_USEFUL_FOR = 120.0
"""Seconds. A probe that starts later would report that tasks start although they start late."""


def create(minute: datetime) -> None:
    """Create the probe of this minute, once, also if two schedulers do it."""
    options = CallOptions(
        idempotency_key=f"durable-watchdog-{int(minute.timestamp()) // 60}",
        expires_in=_USEFUL_FOR,
    )
    enqueue.submit(Call(registry.get(WATCHDOG_TASK), (), {}, options))
