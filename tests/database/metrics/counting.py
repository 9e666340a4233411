"""Count for the metrics as the leader does, and count again by other means."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

from django.db.models import Count

from django_durable_tasks.choices import MetricKind
from django_durable_tasks.cluster.nodes import HeartbeatMonitor
from django_durable_tasks.metrics.series import CountedDurations, Duration, SeriesKey, minute_of
from django_durable_tasks.models import MetricMinute, MetricSeries, TaskExecutionLog
from django_durable_tasks.scheduler.jobs import CountMetrics
from django_durable_tasks.store.clock import database_now


def count_all(now: datetime | None = None) -> CountMetrics:
    """Count until nothing is left; return the job."""
    job = CountMetrics()
    while job(now or database_now(), HeartbeatMonitor()):
        pass
    return job


def totals(kind: MetricKind = MetricKind.ATTEMPT) -> dict[str, int]:
    """Return the totals by status."""
    found = Counter[str]()
    for row in MetricSeries.objects.filter(kind=kind):
        found[row.status] += row.number
    return dict(found)


def minute_totals(kind: MetricKind = MetricKind.ATTEMPT) -> dict[str, int]:
    """Return the sums of the minutes by status."""
    found = Counter[str]()
    for row in MetricMinute.objects.filter(series__kind=kind).select_related("series"):
        found[row.series.status] += row.number
    return dict(found)


def recount() -> dict[str, int]:
    """Return the number of log entries by status."""
    rows = TaskExecutionLog.objects.order_by().values_list("status")
    return dict(rows.annotate(number=Count("pk")))


def a_minute(
    minute: datetime,
    number: int = 1,
    *,
    status: str = "SUCCESS",
    seconds: float | None = None,
    kind: MetricKind = MetricKind.ATTEMPT,
    queue: str = "mail",
    name: str = "send",
    tenant: int = 0,
) -> None:
    """Insert the count of a series in a minute, and its total if it does not exist."""
    key = SeriesKey(kind, tenant, queue, name, status)
    counted = CountedDurations(number)
    for _ in range(0 if seconds is None else number):
        for duration in Duration:
            counted.observe(duration, seconds or 0.0)
    total = MetricSeries(pk=key.digest(), **key._asdict())
    MetricSeries.objects.unguarded().bulk_create([total], ignore_conflicts=True)
    MetricMinute.objects.unguarded().create(
        minute=minute_of(minute),
        series_id=key.digest(),
        number=number,
        durations=counted.durations_as_json(),
    )
