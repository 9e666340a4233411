"""Job: delete ended tasks, ledger entries, limit buckets, shadow fires, answers of the API, bulk
operations, audit entries and counts of minutes after their retention.

Pruning competes with starting tasks for the database: it works in short slices of small batches,
and pauses three times as long as a slice took.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from datetime import datetime

from django_durable_tasks.conf import settings
from django_durable_tasks.engine.audit.history import prune_audit
from django_durable_tasks.engine.cluster.nodes import HeartbeatMonitor
from django_durable_tasks.engine.db.connections import dedicated_connection
from django_durable_tasks.engine.metrics.totals import prune_minutes
from django_durable_tasks.engine.notifications.deliveries import prune_events
from django_durable_tasks.engine.recurring.retention import (
    prune_ended,
    prune_ledger,
    prune_shadow_fires,
)
from django_durable_tasks.engine.tasks import retention
from django_durable_tasks.engine.tenants.bulk_operations import prune_operations
from django_durable_tasks.engine.tenants.idempotent_requests import prune_requests

PAUSE_FACTOR = 3.0
_SLICE = 0.02
"""Seconds."""
_BATCH = 100
_Pruning = Callable[[datetime, int], int]


class Prune:
    """Delete for one slice, continuing where the last slice ended.

    The kinds of rows take turns, so that a kind with a constant supply does not delay the others.
    If nothing was deleted, it returns how many kinds are left for the next slice.
    """

    def __init__(self) -> None:
        self._positions = retention.PruningPositions()
        self._kinds = deque[_Pruning]()

    def __call__(self, now: datetime, monitor: HeartbeatMonitor) -> int:
        end, deleted = time.monotonic() + _SLICE, 0
        if not self._kinds:
            self._kinds.extend(
                (
                    self._tasks,
                    prune_ledger,
                    prune_ended,
                    retention.prune_buckets,
                    prune_shadow_fires,
                    prune_requests,
                    prune_minutes,
                    prune_operations,
                    prune_events,
                    prune_audit,
                )
            )
        with dedicated_connection():
            while self._kinds:
                prune = self._kinds.popleft()
                number = prune(now, min(_BATCH, settings().BATCH_SIZE))
                if number or (prune == self._tasks and self._positions.more()):
                    self._kinds.append(prune)
                deleted += number
                if time.monotonic() >= end:
                    break
        return deleted or len(self._kinds)

    def _tasks(self, now: datetime, limit: int) -> int:
        return retention.prune(now, limit, self._positions, time.monotonic())
