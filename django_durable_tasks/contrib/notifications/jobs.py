"""The maintenance jobs of notifications, alerts and the watchdog."""

from __future__ import annotations

import time
from datetime import datetime

from django_durable_tasks.cluster.nodes import HeartbeatMonitor
from django_durable_tasks.conf import settings
from django_durable_tasks.contrib.notifications import deliveries, watchdog
from django_durable_tasks.scheduler.jobs import SLICE, Job, register_job
from django_durable_tasks.store.connections import dedicated_connection

# Pruning competes with starting tasks for the database: it pauses three times as long as it took.
_PAUSE_FACTOR = 3.0
_PRUNED = 100


def register() -> None:
    """Let the leader run the jobs."""
    register_job(
        "deliver_notifications",
        lambda: Job(
            "deliver_notifications", deliver_notifications, every=min(0.5, settings().POLL)
        ),
    )
    register_job("watch_alerts", lambda: Job("watch_alerts", watch_alerts, every=10.0))
    register_job("probe_workers", lambda: Job("probe_workers", ProbeWorkers(), every=5.0))
    register_job(
        "prune_notifications",
        lambda: Job(
            "prune_notifications",
            prune_notifications,
            every=10.0,
            pause_factor=_PAUSE_FACTOR,
            dispatches=False,
        ),
    )


def deliver_notifications(now: datetime, monitor: HeartbeatMonitor) -> int:
    """Process batches of due events for one slice; does nothing unless NOTIFICATIONS is on."""
    if not settings().NOTIFICATIONS:
        return 0
    end, changed = time.monotonic() + SLICE, 0
    with dedicated_connection():
        while number := deliveries.create_due_deliveries(now, settings().BATCH_SIZE):
            changed += number
            if time.monotonic() >= end:
                break
    return changed


def watch_alerts(now: datetime, monitor: HeartbeatMonitor) -> int:
    """Check the conditions once; does nothing unless NOTIFICATIONS is on."""
    if settings().NOTIFICATIONS:
        with dedicated_connection():
            deliveries.watch_alerts(now)
    return 0


class ProbeWorkers:
    """Create one task per minute of the database's clock; does nothing without WATCHDOG_URL."""

    def __init__(self) -> None:
        self._minute: datetime | None = None

    def __call__(self, now: datetime, monitor: HeartbeatMonitor) -> int:
        minute = now.replace(second=0, microsecond=0)
        if settings().WATCHDOG_URL is None or minute == self._minute:
            return 0
        with dedicated_connection():
            watchdog.create_probe(minute)
        self._minute = minute
        return 1


def prune_notifications(now: datetime, monitor: HeartbeatMonitor) -> int:
    """Delete one batch of events after their retention."""
    with dedicated_connection():
        return deliveries.prune_events(now, min(_PRUNED, settings().BATCH_SIZE))
