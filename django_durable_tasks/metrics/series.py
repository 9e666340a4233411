"""What the metrics count, when minutes are counted again, and what the charts show."""

from __future__ import annotations

import bisect
import hashlib
import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple

from django_durable_tasks.choices import LogStatus, MetricKind
from django_durable_tasks.cluster.gauges import OTHER

# What is counted for the metrics: series, and their numbers and durations as sums.


BUCKETS = (
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
    900.0,
    3_600.0,
)
"""Upper bounds of the buckets of durations, in seconds. The last bucket has no bound."""
ALL_TENANTS = 0
"""The tenant of a series unless METRICS_TENANTS is set."""


class Duration(StrEnum):
    """The durations that are counted for an attempt."""

    RUN = "run"
    SCHEDULER_WAIT = "scheduler_wait"
    BROKER_WAIT = "broker_wait"


class SeriesKey(NamedTuple):
    """The identity of a series."""

    kind: MetricKind
    tenant_id: int
    queue: str
    name: str
    status: str

    def digest(self) -> uuid.UUID:
        """Return the primary key of the series.

        It does not depend on the collation of the database, which may regard two names as equal.
        The version makes it a UUID for MariaDB, which refuses other numbers.
        """
        text = json.dumps([self.kind, self.tenant_id, self.queue, self.name, self.status])
        return uuid.UUID(bytes=hashlib.sha256(text.encode()).digest()[:16], version=5)

    def as_other(self) -> SeriesKey:
        """Return the series that this one is counted in when there are too many."""
        return self._replace(tenant_id=ALL_TENANTS, queue=OTHER, name=OTHER)


@dataclass(slots=True)
class Distribution:
    """Durations in seconds: their sum, and their number in each bucket (not cumulative)."""

    total: float = 0.0
    numbers: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))

    def observe(self, seconds: float) -> None:
        """Count one duration; a negative one, after a change of the clock, as zero."""
        seconds = max(0.0, seconds)
        self.total += seconds
        self.numbers[bisect.bisect_left(BUCKETS, seconds)] += 1

    def add(self, other: Distribution) -> None:
        """Add the durations of another distribution."""
        self.total += other.total
        self.numbers = [mine + more for mine, more in zip(self.numbers, other.numbers, strict=True)]

    def as_json(self) -> list[float]:
        """Return the sum and the numbers."""
        return [round(self.total, 6), *self.numbers]

    @classmethod
    def from_json(cls, value: Any) -> Distribution:
        """Return the distribution that ``as_json`` described; an empty one for other values."""
        if not isinstance(value, list) or len(value) != len(BUCKETS) + 2:
            return cls()
        return cls(float(value[0]), [int(number) for number in value[1:]])


@dataclass(slots=True)
class CountedDurations:
    """A number and its durations."""

    number: int = 0
    durations: dict[str, Distribution] = field(default_factory=dict)

    def observe(self, duration: Duration, seconds: float) -> None:
        """Count one duration."""
        self.durations.setdefault(duration.value, Distribution()).observe(seconds)

    def add(self, other: CountedDurations) -> None:
        """Add another number with its durations."""
        self.number += other.number
        for name, distribution in other.durations.items():
            self.durations.setdefault(name, Distribution()).add(distribution)

    def durations_as_json(self) -> dict[str, list[float]]:
        """Return the durations as JSON values."""
        return {name: one.as_json() for name, one in sorted(self.durations.items())}

    @classmethod
    def stored(cls, number: int, durations: Any) -> CountedDurations:
        """Return the value of a row."""
        found = durations if isinstance(durations, Mapping) else {}
        return cls(number, {name: Distribution.from_json(one) for name, one in found.items()})


def summed(values: Iterable[CountedDurations]) -> CountedDurations:
    """Return the sum of these values."""
    found = CountedDurations()
    for value in values:
        found.add(value)
    return found


# Ids that a reader of a table has passed over, because their rows were not committed yet.
#
# A reader continues after the largest id that it has read. Transactions commit in another order
# than they take ids, so a smaller id may become visible later. Such ids are kept as gaps and read
# again. The ids of transactions that were rolled back stay gaps until they are given up.


GAPS_MAX = 200
"""How many gaps are kept. Beyond it the oldest are given up."""
GAP_IDS_MAX = 10_000
"""How many ids of one gap are kept, the largest ones. A larger gap is one of deleted rows."""
GAP_KEPT = 3_600.0
"""Seconds after which a gap is given up."""


class IdGap(NamedTuple):
    """Ids from ``first`` to ``last``, and when they were passed over (seconds since 1970)."""

    first: int
    last: int
    seen_at: float


def new_gaps(after: int, ids: Sequence[int], now: float) -> list[IdGap]:
    """Return the ids between ``after`` and the last of ``ids`` that are not among them.

    ``ids`` are in ascending order and greater than ``after``.
    """
    found, past = list[IdGap](), after
    for number in ids:
        if number > past + 1:
            found.append(IdGap(max(past + 1, number - GAP_IDS_MAX), number - 1, now))
        past = number
    return found


def gaps_without(gaps: Iterable[IdGap], ids: Iterable[int]) -> list[IdGap]:
    """Return the gaps without these ids."""
    found, read = list[IdGap](), sorted(ids)
    for gap in gaps:
        first = gap.first
        for number in read:
            if first <= number <= gap.last:
                if number > first:
                    found.append(IdGap(first, number - 1, gap.seen_at))
                first = number + 1
        if first <= gap.last:
            found.append(IdGap(first, gap.last, gap.seen_at))
    return found


def kept_gaps(gaps: Iterable[IdGap], now: float) -> list[IdGap]:
    """Return the gaps that are still read again, the oldest first.

    A gap from the future, after a change of the clock, is treated as new.
    """
    recent = [gap._replace(seen_at=min(gap.seen_at, now)) for gap in gaps]
    return [gap for gap in recent if now - gap.seen_at < GAP_KEPT][-GAPS_MAX:]


# When the tasks that were created in a minute are counted, and counted again for late commits.


MINUTE = timedelta(minutes=1)
DELAYS = (timedelta(seconds=5), timedelta(minutes=5), timedelta(hours=1))
"""How long after its end a minute is counted. A transaction that commits later is not counted."""


def minute_of(instant: datetime) -> datetime:
    """Return the beginning of the minute."""
    return instant.astimezone(UTC).replace(second=0, microsecond=0)


def next_minute(
    nexts: Sequence[datetime], now: datetime, oldest: datetime
) -> tuple[int, datetime] | None:
    """Return the next count to make: the index of its delay, and its minute. None if none is due.

    ``nexts`` are the next minutes for each of DELAYS. Minutes before ``oldest`` are left out. A
    minute whose next delay has passed too is counted only once, so that a catch-up after an outage
    does not repeat counts.
    """
    for index in range(len(DELAYS)):
        due = skipped_to(nexts, index, now, oldest)
        if now >= due + MINUTE + DELAYS[index]:
            return index, due
    return None


def skipped_to(nexts: Sequence[datetime], index: int, now: datetime, oldest: datetime) -> datetime:
    """Return the next minute for this delay, without the minutes that need no count of its own."""
    due = max(nexts[index], minute_of(oldest))
    if index + 1 < len(DELAYS):
        due = max(due, minute_of(now - DELAYS[index + 1] - MINUTE) + MINUTE)
    return due


# What the charts of the counts per minute show: their periods, their points, and quantiles.


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


def utc(moment: datetime) -> datetime:
    """Return the instant in UTC; databases may return it in another zone, or without one."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
