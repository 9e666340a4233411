"""The metrics of a run: waits until everything is counted, and reads the counts."""

from __future__ import annotations

from datetime import timedelta

from django.db.models import QuerySet, Sum

from django_durable_tasks.choices import MetricKind
from django_durable_tasks.metrics.counts import CreationCounter, read_position
from django_durable_tasks.metrics.series import DELAYS
from django_durable_tasks.models import (
    MetricMinute,
    MetricSeries,
    OccurrenceRecord,
    TaskExecutionLog,
    UncountedEnding,
)
from django_durable_tasks.store.clock import database_now
from tests.chaos.records import CreationCounts, Series
from tests.chaos.watching import creation_counts

_LATER = DELAYS[-1] + timedelta(minutes=10)
"""How far ahead the last count of every minute of a run is due."""
_IDS = 100_000


def counting_has_begun() -> bool:
    """Return whether a leader has counted: tasks of earlier minutes are never counted."""
    return bool(read_position(MetricKind.CREATED).details)


def all_is_counted() -> bool:
    """Return whether the totals have as many attempts, endings and fire times as the tables."""
    fires = OccurrenceRecord.objects.aggregate(number=Sum("count"))["number"] or 0
    return (
        not UncountedEnding.objects.exists()
        and _sum(MetricSeries.objects.filter(kind="ATTEMPT")) == TaskExecutionLog.objects.count()
        and _sum(MetricSeries.objects.filter(kind="OCCURRENCE")) == fires
    )


def _sum(rows: QuerySet[MetricSeries]) -> int:
    number: int = rows.aggregate(number=Sum("number"))["number"] or 0
    return number


def creations() -> CreationCounts:
    """Count the created tasks as a leader does an hour later; return all counts with the time of
    this one.
    """
    begun = database_now()
    position = read_position(MetricKind.CREATED)
    count = CreationCounter()
    while count(begun + _LATER, _IDS):
        continue
    return CreationCounts(creation_counts(), float(position.details[0]), begun.timestamp())


def counted() -> dict[Series, tuple[int, int]]:
    """Return the total of each series, and the sum of its minutes."""
    rows = MetricMinute.objects.order_by().values_list("series_id")
    minutes = dict(rows.annotate(number=Sum("number")))
    return {
        (row.kind, row.queue, row.name, row.status): (row.number, minutes.get(row.pk, 0))
        for row in MetricSeries.objects.all()
    }
