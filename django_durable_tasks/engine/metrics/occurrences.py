"""Counts the fire times of recurring tasks by their outcome in the ledger."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db.models import QuerySet

from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.metrics.new_rows import new_rows
from django_durable_tasks.engine.metrics.totals import (
    Increments,
    read_position,
    record,
    tenant_of,
)
from django_durable_tasks.models import OccurrenceRecord
from django_durable_tasks.rules.metrics.counts import MetricKind, SeriesKey
from django_durable_tasks.rules.metrics.minutes import minute_of

_COLUMNS = ("id", "tenant_id", "outcome", "count", "created_at")


def count_occurrences(now: datetime, limit: int) -> int:
    """Count at most ``limit`` new ledger entries; return how many."""
    position = read_position(MetricKind.OCCURRENCE)
    ledger: QuerySet[Any] = OccurrenceRecord.objects.using(tables.database())
    rows, after = new_rows(ledger, _COLUMNS, position, now, limit)
    if after == position:
        return 0
    increments = Increments()
    for _, tenant_id, outcome, number, created_at in rows:
        key = SeriesKey(MetricKind.OCCURRENCE, tenant_of(tenant_id), "", "", outcome)
        increments.of(key, minute_of(created_at)).number += number
    return len(rows) if record(position, after, increments) else 0
