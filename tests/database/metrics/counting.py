"""Count for the metrics as the leader does, and count again by other means."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count

from django_durable_tasks.cluster.nodes import HeartbeatMonitor
from django_durable_tasks.contrib.metrics.counts import CountMetrics, read_totals
from django_durable_tasks.contrib.metrics.models import MetricMinute
from django_durable_tasks.contrib.metrics.series import (
    DELAYS,
    CountedDurations,
    Duration,
    MetricKind,
    SeriesKey,
    Span,
    minute_of,
)
from django_durable_tasks.models import TaskExecutionLog
from django_durable_tasks.store.clock import database_now

SETTLED_SOON = (*DELAYS[:2], timedelta(minutes=10))
"""The delays of counts, with ten minutes instead of the hour after which a minute is settled: each of
these minutes costs several statements whenever a process begins to count.
"""


def count_all(now: datetime | None = None, job: CountMetrics | None = None) -> CountMetrics:
    """Count until nothing is left; return the job."""
    job = job or CountMetrics()
    while job(now or database_now(), HeartbeatMonitor()):
        pass
    return job


def count_here(now: datetime, job: CountMetrics | None = None) -> None:
    """Count for one round on the connection of the test."""
    for _ in (job or CountMetrics()).count(now):
        continue


def totals(kind: MetricKind = MetricKind.ATTEMPT) -> dict[str, int]:
    """Return the totals by status."""
    found = Counter[str]()
    for key, counted in read_totals():
        if key.kind == kind and counted.number:
            found[key.status] += counted.number
    return dict(found)


def counted_durations(status: str) -> CountedDurations:
    """Return the durations of the attempts that ended with this status."""
    found = CountedDurations()
    for key, counted in read_totals():
        if (key.kind, key.status) == (MetricKind.ATTEMPT, status):
            found.add(counted)
    return found


def minute_totals(kind: MetricKind = MetricKind.ATTEMPT) -> dict[str, int]:
    """Return the sums of the periods by status."""
    found = Counter[str]()
    for row in MetricMinute.objects.filter(kind=kind, span__in=(Span.MINUTE, Span.QUARTER)):
        found[row.status] += row.number
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
    """Insert the count of a series in a minute, and its total."""
    key = SeriesKey(kind, tenant, queue, name, status)
    counted = CountedDurations(number)
    for _ in range(0 if seconds is None else number):
        for duration in Duration:
            counted.observe(duration, seconds or 0.0)
    for span in (Span.MINUTE, Span.TOTAL):
        value = counted if span == Span.MINUTE else CountedDurations()
        columns: Any = key._asdict()
        MetricMinute.objects.unguarded().create(
            span=span,
            minute=minute_of(minute),
            number=value.number,
            durations=value.durations_as_json(),
            **columns,
        )
