"""What the metrics count: series, and their numbers and durations as sums."""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple

SERIES_MAX = 1_000
"""The most combinations of queue, task, status and tenant that are counted separately, so that
generated names of queues fill no memory of Prometheus.
"""
# The queue and task under which series beyond SERIES_MAX are counted.
OTHER = "other"
MINUTE = timedelta(minutes=1)
# How long after its end a minute is counted. A transaction that commits later is not counted.
DELAYS = (timedelta(seconds=5), timedelta(minutes=5), timedelta(hours=1))

# Upper bounds of the buckets of durations, in seconds. The last bucket has no bound.
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
# The tenant of a series unless METRICS_TENANTS is set.
ALL_TENANTS = 0


class MetricKind(StrEnum):
    """What is counted: a created task, an attempt, a task that ended without one, a fire time."""

    CREATED = "CREATED"
    ATTEMPT = "ATTEMPT"
    ENDED = "ENDED"
    OCCURRENCE = "OCCURRENCE"


class Span(IntEnum):
    """What a row of the table is: the count of so many minutes, or one of the others."""

    TOTAL = 0
    """What was counted of a series in all minutes before that of POSITION."""
    MINUTE = 1
    QUARTER = 15
    NEW = -1
    """Endings without an attempt, which their transition has written and no scheduler counted."""
    POSITION = -2
    """One row: minutes before its ``minute`` are not counted again."""


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
        self.numbers = [
            number + more for number, more in zip(self.numbers, other.numbers, strict=True)
        ]

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
        return {
            name: distribution.as_json() for name, distribution in sorted(self.durations.items())
        }

    @classmethod
    def stored(cls, number: int, durations: Any) -> CountedDurations:
        """Return the value of a row."""
        mapping = durations if isinstance(durations, Mapping) else {}
        return cls(number, {name: Distribution.from_json(value) for name, value in mapping.items()})


def minute_of(instant: datetime) -> datetime:
    """Return the beginning of the minute in UTC; databases may return an instant without a zone."""
    aware = instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant.astimezone(UTC)
    return aware.replace(second=0, microsecond=0)
