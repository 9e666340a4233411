"""Job: find edges whose upstream task was deleted, so that dependents do not wait for it."""

from __future__ import annotations

from datetime import datetime

from django_durable_tasks.conf import settings
from django_durable_tasks.engine.cluster.nodes import HeartbeatMonitor
from django_durable_tasks.engine.db.connections import dedicated_connection
from django_durable_tasks.engine.dependencies import resolve


class FindDeletedUpstreams:
    """Scan the edges by primary key, a bounded number per run, and start again at the end."""

    def __init__(self) -> None:
        self._past = 0

    def __call__(self, now: datetime, monitor: HeartbeatMonitor) -> int:
        with dedicated_connection():
            self._past = resolve.find_deleted(self._past, 10 * settings().BATCH_SIZE)
        return 0
