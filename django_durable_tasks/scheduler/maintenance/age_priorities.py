"""Job: raise the priority of tasks that have waited for PRIORITY_AGING seconds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime

from django_durable_tasks.conf import settings
from django_durable_tasks.engine.cluster.nodes import HeartbeatMonitor
from django_durable_tasks.engine.db.connections import dedicated_connection
from django_durable_tasks.engine.limits import priority_aging
from django_durable_tasks.scheduler.maintenance import job


class AgePriorities:
    """Raise priorities once per PRIORITY_AGING seconds; does nothing without that setting.

    A pass is divided into slices, because its duration grows with the number of queues.
    """

    def __init__(self) -> None:
        self._next = time.monotonic() + (settings().PRIORITY_AGING or 0.0)
        self._pass: Iterator[int] | None = None

    def __call__(self, now: datetime, monitor: HeartbeatMonitor) -> int:
        wait = settings().PRIORITY_AGING
        if wait is None:
            return 0
        if self._pass is None:
            if time.monotonic() < self._next:
                return 0
            self._next = time.monotonic() + wait
            self._pass = priority_aging.steps(now, wait, 4 * settings().BATCH_SIZE)
        raised, end = 0, time.monotonic() + job.SLICE
        try:
            with dedicated_connection():
                for number in self._pass:
                    raised += number
                    if time.monotonic() >= end:
                        return raised
        except BaseException:
            self._pass = None
            raise
        self._pass = None
        return raised
