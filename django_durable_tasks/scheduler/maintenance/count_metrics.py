"""Job: count attempts, created tasks, endings without an attempt and fire times for the metrics."""

from __future__ import annotations

import time
from datetime import datetime

from django_durable_tasks.conf import settings
from django_durable_tasks.engine.cluster.nodes import HeartbeatMonitor
from django_durable_tasks.engine.db.connections import dedicated_connection
from django_durable_tasks.engine.metrics.attempts import count_attempts
from django_durable_tasks.engine.metrics.creations import CreationCounter
from django_durable_tasks.engine.metrics.endings import count_endings_without_attempt
from django_durable_tasks.engine.metrics.occurrences import count_occurrences
from django_durable_tasks.scheduler.maintenance.job import SLICE

EVERY = 5.0
"""Seconds between two counts, and so the age of the totals."""
_BATCHES = 4


class CountMetrics:
    """Count for one slice; does nothing unless METRICS is set.

    Returns how many rows are certainly left, so that the job runs again soon only after a full
    batch. Otherwise a steady load would make it run without a pause, for a few rows each time.
    """

    def __init__(self) -> None:
        self._count_creations = CreationCounter()

    def __call__(self, now: datetime, monitor: HeartbeatMonitor) -> int:
        if not settings().METRICS:
            return 0
        end, batch = time.monotonic() + SLICE, _BATCHES * settings().BATCH_SIZE
        left = 0
        with dedicated_connection():
            for count in (count_attempts, count_endings_without_attempt, count_occurrences):
                while (number := count(now, batch)) >= batch and time.monotonic() < end:
                    continue
                left += number if number >= batch else 0
            while (more := self._count_creations(now, 10 * batch)) and time.monotonic() < end:
                continue
        return left + more
