"""Job: create the task of the watchdog, which a worker runs, once a minute."""

from __future__ import annotations

from datetime import datetime

from django_durable_tasks.conf import settings
from django_durable_tasks.engine.cluster.nodes import HeartbeatMonitor
from django_durable_tasks.engine.db.connections import dedicated_connection
from django_durable_tasks.engine.notifications import probes


class ProbeWorkers:
    """Create one task per minute of the database's clock; does nothing without WATCHDOG_URL."""

    def __init__(self) -> None:
        self._minute: datetime | None = None

    def __call__(self, now: datetime, monitor: HeartbeatMonitor) -> int:
        minute = now.replace(second=0, microsecond=0)
        if settings().WATCHDOG_URL is None or minute == self._minute:
            return 0
        with dedicated_connection():
            probes.create(minute)
        self._minute = minute
        return 1
