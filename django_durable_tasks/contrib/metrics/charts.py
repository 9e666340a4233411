"""What the charts show: their periods, the endings and durations of each point, and quantiles."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django_durable_tasks.choices import LogStatus
from django_durable_tasks.contrib.metrics.counts import counts
from django_durable_tasks.contrib.metrics.series import (
    BUCKETS,
    MINUTE,
    CountedDurations,
    Distribution,
    MetricKind,
    Span,
    minute_of,
)

# The kinds of series whose numbers are endings.
ENDING_KINDS = (MetricKind.ATTEMPT, MetricKind.ENDED)
# Entries of the attempt log that do not end an attempt of the task's present owner.
NOT_ENDINGS = (LogStatus.FENCED, LogStatus.DUPLICATE)
# How many rows one chart reads at most: those that take about a second.
ROWS_MAX = 25_000
_CHUNK = 2_000


@dataclass(frozen=True, slots=True)
class ChartPeriod:
    """A period before now: ``points`` points of ``step`` minutes. 60 is a multiple of the step."""

    name: str
    points: int
    step: int

    @property
    def minutes(self) -> int:
        """The length of the period."""
        return self.points * self.step

    def start(self, now: datetime) -> datetime:
        """Return the start of the first point. The last point contains ``now``."""
        last = minute_of(now)
        last -= timedelta(minutes=last.minute % self.step)
        return last - MINUTE * self.step * (self.points - 1)


PERIODS = {
    one.name: one
    for one in (ChartPeriod("1h", 60, 1), ChartPeriod("24h", 96, 15), ChartPeriod("7d", 168, 60))
}


@dataclass(slots=True)
class ChartPoint:
    """What was counted in ``minutes`` minutes from ``start``: numbers by status, and durations."""

    start: datetime
    minutes: int
    numbers: dict[str, int] = field(default_factory=dict)
    durations: dict[str, Distribution] = field(default_factory=dict)

    def add(self, status: str, number: int, durations: Mapping[str, Distribution]) -> None:
        """Add a number of endings with their durations."""
        self.numbers[status] = self.numbers.get(status, 0) + number
        for name, one in durations.items():
            self.durations.setdefault(name, Distribution()).add(one)

    def rate(self, status: str) -> float:
        """Return the endings per minute."""
        return self.numbers.get(status, 0) / self.minutes

    def quantile(self, duration: str, share: float) -> float | None:
        """Return the quantile of a duration in seconds; None if none was counted."""
        found = self.durations.get(duration)
        return None if found is None else quantile(found.numbers, share)


def chart_points(period: ChartPeriod, start: datetime, now: datetime) -> list[ChartPoint]:
    """Return the empty points from the one that contains ``start`` to the one that contains
    ``now``.

    The first point has the minutes after ``start``, and the last one those that have begun, so that
    their rates are not too low.
    """
    step = MINUTE * period.step
    first, end = period.start(now), minute_of(now) + MINUTE
    found = (first + step * number for number in range(period.points))
    return [
        ChartPoint(at, (min(at + step, end) - max(at, start)) // MINUTE)
        for at in found
        if at + step > start
    ]


def quantile(numbers: Sequence[int], share: float) -> float | None:
    """Return the quantile of a histogram with the bounds BUCKETS; None if it is empty.

    It is interpolated within its bucket, as ``histogram_quantile`` of Prometheus does. In the last
    bucket, which has no upper bound, it is the lower bound.
    """
    wanted, below, lower = sum(numbers) * share, 0, 0.0
    for bound, number in zip(BUCKETS, numbers, strict=False):
        if number and below + number >= wanted:
            return lower + (bound - lower) * (wanted - below) / number
        below, lower = below + number, bound
    return lower if sum(numbers) else None


@dataclass(frozen=True, slots=True)
class ChartData:
    """The points of a period. ``is_cut``: its beginning was left out, to read fewer rows."""

    points: Sequence[ChartPoint]
    is_cut: bool = False


def endings(tenants: Collection[int] | None) -> Any:
    """Return a queryset of the counted endings of these tenants, None for all."""
    rows = counts().filter(kind__in=ENDING_KINDS).exclude(status__in=NOT_ENDINGS).order_by()
    return rows if tenants is None else rows.filter(tenant_id__in=sorted(tenants))


def read_points(rows: Any, period: ChartPeriod, now: datetime) -> ChartData:
    """Return the sums of these endings in the period that ends ``now``.

    A period with more than ROWS_MAX rows is shortened at its beginning. Two statements.
    """
    start = period.start(now)
    rows = rows.filter(
        span__in=(Span.MINUTE, Span.QUARTER), minute__gte=start, minute__lte=now
    ).order_by("-minute")
    first_left_out = list(rows.values_list("minute", flat=True)[ROWS_MAX : ROWS_MAX + 1])
    if first_left_out:
        # Of a quarter of an hour that is cut, the minutes at its end are left out too.
        start = minute_of(first_left_out[0]) + MINUTE
    points = chart_points(period, start, now)
    by_start = {point.start: point for point in points}
    found = rows.filter(minute__gte=start).values_list("minute", "status", "number", "durations")
    for minute, status, number, durations in found.iterator(_CHUNK):
        at = minute_of(minute)
        point = by_start.get(at - MINUTE * (at.minute % period.step))
        if point is not None:
            point.add(status, number, CountedDurations.stored(number, durations).durations)
    return ChartData(points, bool(first_left_out))
