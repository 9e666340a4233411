"""Check of the counts of the metrics: the last minutes equal a recount of the attempt log."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, Min, Q
from django.db.models.functions import TruncMinute

from django_durable_tasks import conf
from django_durable_tasks.engine.metrics.totals import minutes
from django_durable_tasks.engine.verify.check import (
    Check,
    Rows,
    VerifyContext,
    finding,
    ground_rows,
)
from django_durable_tasks.models import MetricPosition, TaskExecutionLog
from django_durable_tasks.rules.metrics.counts import MetricKind
from django_durable_tasks.rules.metrics.minutes import MINUTE, minute_of
from django_durable_tasks.rules.verify import Finding

RECENT = timedelta(minutes=10)
_IDS_BEFORE = 10_000
"""Log entries that are read before those of the first counted minute."""
_MinuteAndStatus = tuple[datetime, str]


def wrong_counts(context: VerifyContext, rows: Rows) -> list[Finding]:
    """Statuses of recent minutes whose counts differ from the log.

    Fewer log entries than counted are a finding only if retention cannot have deleted them.
    """
    position = rows.filter(pk=MetricKind.ATTEMPT).first()
    if position is None:
        return []
    counted = _counted(context)
    found = _recounted(context, position)
    complete = _kept() > (2 * RECENT).total_seconds()
    return [
        finding(
            "metric-counts",
            "position of the metrics",
            position.pk,
            f"{status} at {minute:%H:%M}",
            counted[minute, status],
            f"{found[minute, status]}, by a recount of the attempt log",
            advice="The totals of the metrics are wrong by the difference. Report it as a bug.",
        )
        for minute, status in sorted({*counted, *found})
        if counted[minute, status] < found[minute, status]
        or (complete and counted[minute, status] > found[minute, status])
    ]


def _from(context: VerifyContext) -> datetime:
    return minute_of(context.now - RECENT)


def _kept() -> float:
    return min((kept for kept in conf.retention().values() if kept is not None), default=1e9)


def _counted(context: VerifyContext) -> Counter[_MinuteAndStatus]:
    rows = minutes().filter(minute__gte=_from(context), series__kind=MetricKind.ATTEMPT)
    found = Counter[_MinuteAndStatus]()
    for minute, status, number in rows.values_list("minute", "series__status", "number"):
        found[minute, status] += number
    return found


def _recounted(context: VerifyContext, position: Any) -> Counter[_MinuteAndStatus]:
    """Count the log entries of the recent minutes that are counted by their position."""
    before = minutes().filter(
        minute__gte=_from(context) - MINUTE, series__kind=MetricKind.ATTEMPT, first_id__gt=0
    )
    first = before.aggregate(first=Min("first_id"))["first"] or position.last_id
    gaps = Q(pk__in=[])
    for start, end, _ in position.details:
        gaps |= Q(pk__gte=start, pk__lte=end)
    entries = ground_rows(TaskExecutionLog).filter(
        pk__gt=first - _IDS_BEFORE, pk__lte=position.last_id, completed_at__gte=_from(context)
    )
    groups = (
        entries.exclude(gaps)
        .order_by()
        .annotate(minute=TruncMinute("completed_at"))
        .values_list("minute", "status")
        .annotate(number=Count("pk"))
    )
    return Counter({(minute_of(minute), status): number for minute, status, number in groups})


CHECKS = (
    Check(
        name="metric-counts",
        group="metrics",
        question="Do the counts of the last ten minutes equal a recount of the attempt log?",
        ground=MetricPosition,
        find=wrong_counts,
    ),
)
