"""The metrics of a run: waits until everything is counted, and reads the counts."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

from django.db.models import Sum

from django_durable_tasks.contrib.metrics.counts import CountMetrics, read_totals, settled_until
from django_durable_tasks.contrib.metrics.models import MetricMinute
from django_durable_tasks.contrib.metrics.series import DELAYS, MINUTE, MetricKind, Span
from django_durable_tasks.models import OccurrenceRecord, TaskExecutionLog
from django_durable_tasks.store.clock import database_now
from tests.chaos.records import CreationCounts, Series
from tests.chaos.watching import creation_counts

_LATER = DELAYS[-1] + timedelta(minutes=10)
"""How far ahead the last count of every minute of a run is due."""


def counting_has_begun() -> bool:
    """Return whether a leader has counted: tasks of much earlier minutes are never counted."""
    return settled_until() is not None


def all_is_counted() -> bool:
    """Return whether the totals have as many attempts, endings and fire times as the tables."""
    fires = OccurrenceRecord.objects.aggregate(number=Sum("count"))["number"] or 0
    return (
        not MetricMinute.objects.filter(span=Span.NEW).exists()
        and _sum(MetricKind.ATTEMPT) == TaskExecutionLog.objects.count()
        and _sum(MetricKind.OCCURRENCE) == fires
    )


def _sum(kind: MetricKind) -> int:
    return sum(counted.number for key, counted in read_totals() if key.kind == kind)


def creations() -> CreationCounts:
    """Count and settle all minutes as a leader does an hour later; return the counts of created
    tasks with the time of this one.
    """
    begun = database_now()
    until = begun - 2 * MINUTE
    job = CountMetrics()
    for _ in job.count(begun + _LATER):
        continue
    return CreationCounts(creation_counts(), until.timestamp(), begun.timestamp())


def counted() -> dict[Series, tuple[int, int]]:
    """Return the total of each series, and the sum of its minutes."""
    totals, minutes = Counter[Series](), Counter[Series]()
    for key, counted_ in read_totals():
        totals[str(key.kind), key.queue, key.name, key.status] += counted_.number
    for row in MetricMinute.objects.filter(span__in=(Span.MINUTE, Span.QUARTER)):
        minutes[row.kind, row.queue, row.name, row.status] += row.number
    return {series: (totals[series], minutes[series]) for series in totals}
