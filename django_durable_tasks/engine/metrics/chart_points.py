"""Reads the counts per minute for charts, summed to the points of a period.

PostgreSQL sums them itself. The other databases store durations as text and parse it again for each
of its numbers, which takes four times as long on MariaDB as to sum the rows in Python, as is done
there.

The number of rows is bounded by ``row_limit``. A period with more rows is shortened at its
beginning. Two statements, and a third one if the selected series may have more rows.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.db import connections
from django.db.models import BigIntegerField, FloatField, Sum
from django.db.models.fields.json import KT
from django.db.models.functions import Cast, ExtractMinute, TruncHour

from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.metrics.totals import minutes, series
from django_durable_tasks.rules.metrics import charts
from django_durable_tasks.rules.metrics.charts import ChartPeriod, ChartPoint
from django_durable_tasks.rules.metrics.counts import (
    BUCKETS,
    CountedDurations,
    Distribution,
    Duration,
)
from django_durable_tasks.rules.metrics.minutes import MINUTE

_ROWS = {"postgresql": 200_000}
_ROWS_ELSEWHERE = 25_000
"""How many rows of counts one chart reads at most: those that take about a second."""
_CHUNK = 2_000
_NUMBERS = range(len(BUCKETS) + 2)
_Sum = tuple[datetime, str, int, dict[str, Distribution]]


@dataclass(frozen=True, slots=True)
class EndingSeries:
    """The series of endings that a user may see, as read from the database."""

    rows: Sequence[tuple[uuid.UUID, str, str]]

    def queues(self) -> list[str]:
        """Return the queues."""
        return sorted({queue for _, queue, _ in self.rows if queue})

    def names(self) -> list[str]:
        """Return the names of the durable tasks."""
        return sorted({name for _, _, name in self.rows if name})

    def selected(self, queue: str, name: str) -> list[uuid.UUID]:
        """Return the ids of the series of a queue and a name; an empty text selects all."""
        return [
            pk
            for pk, its_queue, its_name in self.rows
            if queue in ("", its_queue) and name in ("", its_name)
        ]


@dataclass(frozen=True, slots=True)
class ChartData:
    """The points of a period. ``is_cut``: its beginning was left out, to read fewer rows."""

    points: Sequence[ChartPoint]
    is_cut: bool = False


def row_limit() -> int:
    """Return how many rows of counts are read at most."""
    return _ROWS.get(connections[tables.database()].vendor, _ROWS_ELSEWHERE)


def ending_series(tenants: Collection[int] | None) -> EndingSeries:
    """Return the series of endings of these tenants, None for all; one statement.

    There are at most METRICS_SERIES_MAX of each kind.
    """
    rows = series().filter(kind__in=charts.ENDING_KINDS).exclude(status__in=charts.NOT_ENDINGS)
    if tenants is not None:
        rows = rows.filter(tenant_id__in=sorted(tenants))
    return EndingSeries(list(rows.order_by().values_list("pk", "queue", "name")))


def read_points(ids: Sequence[uuid.UUID], period: ChartPeriod, now: datetime) -> ChartData:
    """Return the counts of these series in the period that ends ``now``."""
    start, is_cut = _bounded_start(ids, period, now)
    found = charts.points(period, start, now)
    by_start = {point.start: point for point in found}
    for at, status, number, durations in _sums(ids, period, start, now):
        if at in by_start:
            by_start[at].add(status, number, durations)
    return ChartData(found, is_cut)


def _rows(ids: Sequence[uuid.UUID], start: datetime, now: datetime) -> Any:
    return minutes().filter(series__in=ids, minute__gte=start, minute__lte=now).order_by()


def _bounded_start(
    ids: Sequence[uuid.UUID], period: ChartPeriod, now: datetime
) -> tuple[datetime, bool]:
    """Return the start of the period; a later minute if the period has too many rows."""
    start = period.start(now)
    if len(ids) * period.minutes <= row_limit():
        return start, False
    newest = _rows(ids, start, now).order_by("-minute").values_list("minute", flat=True)
    first_left_out = list(newest[row_limit() : row_limit() + 1])
    if not first_left_out:
        return start, False
    return charts.utc(first_left_out[0]) + MINUTE, True


def _sums(
    ids: Sequence[uuid.UUID], period: ChartPeriod, start: datetime, now: datetime
) -> Iterator[_Sum]:
    """Yield the start of a point, a status, its number and the sums of its durations."""
    by_database = connections[tables.database()].vendor == "postgresql"
    return (_summed_by_database if by_database else _summed_here)(ids, period, start, now)


def _summed_here(
    ids: Sequence[uuid.UUID], period: ChartPeriod, start: datetime, now: datetime
) -> Iterator[_Sum]:
    rows = _rows(ids, start, now).values_list("minute", "series__status", "number", "durations")
    found = defaultdict[tuple[datetime, str], CountedDurations](CountedDurations)
    for minute, status, number, durations in rows.iterator(_CHUNK):
        at = charts.utc(minute)
        point = at - MINUTE * (at.minute % period.step), status
        found[point].add(CountedDurations.stored(number, durations))
    for (at, status), counted in found.items():
        yield at, status, counted.number, counted.durations


def _summed_by_database(
    ids: Sequence[uuid.UUID], period: ChartPeriod, start: datetime, now: datetime
) -> Iterator[_Sum]:
    within = ExtractMinute("minute", tzinfo=UTC)
    rows = (
        _rows(ids, start, now)
        .annotate(hour=TruncHour("minute", tzinfo=UTC), within=within - within % period.step)
        .values_list("hour", "within", "series__status")
        .annotate(total=Sum("number"), **_sums_of_durations())
    )
    for hour, minute, status, number, *sums in rows:
        at = charts.utc(hour) + MINUTE * int(minute)
        yield at, str(status), int(number), dict(_distributions(sums))


def _sums_of_durations() -> dict[str, Any]:
    """Return one sum for each number of ``Distribution.as_json`` of each duration."""
    return {
        f"{duration}_{index}": Sum(
            Cast(
                KT(f"durations__{duration}__{index}"), BigIntegerField() if index else FloatField()
            )
        )
        for duration in Duration
        for index in _NUMBERS
    }


def _distributions(sums: Sequence[Any]) -> Iterator[tuple[str, Distribution]]:
    for place, duration in enumerate(Duration):
        one = sums[place * len(_NUMBERS) : (place + 1) * len(_NUMBERS)]
        if one[0] is not None:
            yield duration.value, Distribution(float(one[0]), [int(number) for number in one[1:]])
