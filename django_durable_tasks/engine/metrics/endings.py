"""Counts the tasks that ended without an attempt: skipped, expired, cancelled, or failed because of
an upstream task.
"""

from __future__ import annotations

from datetime import datetime

from django_durable_tasks.engine.metrics.totals import (
    Increments,
    read_position,
    record,
    tenant_of,
    uncounted_endings,
)
from django_durable_tasks.rules.metrics.counts import MetricKind, SeriesKey
from django_durable_tasks.rules.metrics.minutes import minute_of


def count_endings_without_attempt(now: datetime, limit: int) -> int:
    """Count and delete at most ``limit`` rows that transitions have left; return how many."""
    position = read_position(MetricKind.ENDED)
    rows = list(uncounted_endings().order_by("pk")[:limit])
    if not rows:
        return 0
    increments = Increments()
    for row in rows:
        key = SeriesKey(MetricKind.ENDED, tenant_of(row.tenant_id), row.queue, row.name, row.status)
        increments.of(key, minute_of(row.ended_at)).number += row.number
    done = record(position, position, increments, [row.pk for row in rows])
    return len(rows) if done else 0
