"""What the charts of the counts per minute show: their periods, their points, and quantiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from django_durable_tasks.rules.metrics.counts import BUCKETS, Distribution, MetricKind
from django_durable_tasks.rules.metrics.minutes import MINUTE, minute_of
from django_durable_tasks.rules.states import LogStatus

ENDING_KINDS = (MetricKind.ATTEMPT, MetricKind.ENDED)
"""The kinds of series whose numbers are endings."""
NOT_ENDINGS = frozenset({LogStatus.FENCED, LogStatus.DUPLICATE})
"""Entries of the attempt log that do not end an attempt of the task's present owner."""


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
    for one in (
        ChartPeriod("1h", 60, 1),
        ChartPeriod("24h", 96, 15),
        ChartPeriod("7d", 168, 60),
    )
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


def points(period: ChartPeriod, start: datetime, now: datetime) -> list[ChartPoint]:
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


def utc(moment: datetime) -> datetime:
    """Return the instant in UTC; databases may return it in another zone, or without one."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
