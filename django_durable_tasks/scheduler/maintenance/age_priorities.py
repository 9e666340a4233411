"""Job: raise the priority of tasks that have waited for PRIORITY_AGING seconds."""

from __future__ import annotations

import time
from datetime import datetime

from django_durable_tasks.conf import settings
from django_durable_tasks.engine.cluster.nodes import HeartbeatMonitor
from django_durable_tasks.engine.db.connections import dedicated_connection
from django_durable_tasks.engine.limits import priority_aging


class AgePriorities:
    """Raise priorities once per PRIORITY_AGING seconds; does nothing without that setting."""

    def __init__(self) -> None:
        self._next = time.monotonic() + (settings().PRIORITY_AGING or 0.0)

    def __call__(self, now: datetime, monitor: HeartbeatMonitor) -> int:
        wait = settings().PRIORITY_AGING
        if wait is None or time.monotonic() < self._next:
            return 0
        self._next = time.monotonic() + wait
        with dedicated_connection():
            return priority_aging.age(now, wait, 4 * settings().BATCH_SIZE)
