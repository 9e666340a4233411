"""Adds counts to the totals and to the minutes, each exactly once.

A caller reads a position, then the rows after it, and then calls ``record``. In one transaction
``record`` raises the revision of the position, unless another process has, and writes totals and
minutes as values that were computed before. Each kind of series has its own position, and only its
owner writes the series of the kind, so the values cannot have changed if the revision has not.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from django.db import connections

from django_durable_tasks import conf
from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.db.deadlocks import retry_on_deadlock
from django_durable_tasks.models import MetricMinute, MetricPosition, MetricSeries, UncountedEnding
from django_durable_tasks.models.metric_minute import MetricMinuteQuerySet
from django_durable_tasks.models.metric_position import MetricPositionQuerySet
from django_durable_tasks.models.metric_series import MetricSeriesQuerySet
from django_durable_tasks.models.uncounted_ending import UncountedEndingQuerySet
from django_durable_tasks.rules.metrics.counts import (
    ALL_TENANTS,
    CountedDurations,
    MetricKind,
    SeriesKey,
)


def positions() -> MetricPositionQuerySet:
    """Return a queryset of all positions, without the guard against writes."""
    found: MetricPositionQuerySet = MetricPosition.objects.using(tables.database()).unguarded()
    return found


def series() -> MetricSeriesQuerySet:
    """Return a queryset of all totals, without the guard against writes."""
    found: MetricSeriesQuerySet = MetricSeries.objects.using(tables.database()).unguarded()
    return found


def minutes() -> MetricMinuteQuerySet:
    """Return a queryset of all counts per minute, without the guard against writes."""
    found: MetricMinuteQuerySet = MetricMinute.objects.using(tables.database()).unguarded()
    return found


def uncounted_endings() -> UncountedEndingQuerySet:
    """Return a queryset of endings that are not counted yet, without the guard against writes."""
    found: UncountedEndingQuerySet = UncountedEnding.objects.using(tables.database()).unguarded()
    return found


@dataclass(frozen=True, slots=True)
class CountPosition:
    """How far the rows of a kind are counted. ``details`` are JSON values."""

    kind: MetricKind
    revision: int = 0
    last_id: int = 0
    details: Any = field(default_factory=list)

    def moved(self, last_id: int, details: Any) -> CountPosition:
        """Return the position after more rows."""
        return replace(self, last_id=last_id, details=details)


def read_position(kind: MetricKind) -> CountPosition:
    """Return the position of a kind; one statement once the row exists."""
    row = positions().filter(pk=kind).first()
    if row is None:
        positions().bulk_create([MetricPosition(kind=kind)], ignore_conflicts=True)
        return CountPosition(kind)
    return CountPosition(kind, row.revision, row.last_id, row.details)


def read_totals() -> list[tuple[SeriesKey, CountedDurations]]:
    """Return all totals; one statement."""
    rows = (
        series()
        .order_by()
        .values_list("kind", "tenant_id", "queue", "name", "status", "number", "durations")
    )
    return [
        (
            SeriesKey(MetricKind(kind), tenant_id, queue, name, status),
            CountedDurations.stored(number, durations),
        )
        for kind, tenant_id, queue, name, status, number, durations in rows
    ]


class Increments:
    """Counts by series and minute, to be added to the totals."""

    def __init__(self) -> None:
        self.by_minute: dict[tuple[SeriesKey, datetime], CountedDurations] = {}
        self.ids: dict[tuple[SeriesKey, datetime], tuple[int, int]] = {}

    def of(self, key: SeriesKey, minute: datetime, row_id: int = 0) -> CountedDurations:
        """Return the count of this series and minute, to be increased by the caller."""
        first, last = self.ids.get((key, minute), (row_id, row_id))
        self.ids[key, minute] = min(first, row_id), max(last, row_id)
        return self.by_minute.setdefault((key, minute), CountedDurations())

    def series_keys(self) -> set[SeriesKey]:
        """Return the series."""
        return {key for key, _ in self.by_minute}

    def renamed(self, names: Mapping[SeriesKey, SeriesKey]) -> Increments:
        """Return the counts under other keys; several may become one."""
        found = Increments()
        for (key, minute), counted in self.by_minute.items():
            for row_id in self.ids[key, minute]:
                found.of(names.get(key, key), minute, row_id)
            found.of(names.get(key, key), minute, self.ids[key, minute][0]).add(counted)
        return found


def tenant_of(tenant_id: int) -> int:
    """Return the tenant under which a row is counted."""
    return tenant_id if conf.settings().METRICS_TENANTS else ALL_TENANTS


@retry_on_deadlock
def record(
    before: CountPosition,
    after: CountPosition,
    increments: Increments,
    counted: Collection[int] = (),
) -> bool:
    """Write the position ``after`` and add the increments, in one transaction.

    ``counted`` are the ids of UncountedEnding rows to delete. Returns False, and writes nothing, if
    another process has written since ``before`` was read.
    """
    increments = increments.renamed(counted_as(increments.series_keys(), before.kind))
    totals = _totals(increments)
    per_minute = _minutes(increments)
    with tables.atomic():
        # First, so that a second process waits here and then finds another revision.
        unchanged = positions().filter(pk=before.kind, revision=before.revision)
        if not unchanged.update(
            revision=before.revision + 1, last_id=after.last_id, details=after.details
        ):
            return False
        _write(series(), totals, ["id"], ["number", "durations"])
        _write(
            minutes(),
            per_minute,
            ["minute", "series"],
            ["number", "durations", "first_id", "last_id"],
        )
        if counted:
            uncounted_endings().filter(pk__in=list(counted)).delete()
    return True


def counted_as(keys: Collection[SeriesKey], kind: MetricKind) -> dict[SeriesKey, SeriesKey]:
    """Return the series in which each key is counted: new ones beyond METRICS_SERIES_MAX as
    ``other``.
    """
    known = series().filter(pk__in={key.digest() for key in keys}).order_by()
    existing = set(known.values_list("pk", flat=True))
    new = sorted(key for key in keys if key.digest() not in existing)
    free = len(new)
    if new:
        free = max(0, conf.settings().METRICS_SERIES_MAX - series().filter(kind=kind).count())
    return {key: key for key in keys} | {key: key.as_other() for key in new[free:]}


def _totals(increments: Increments) -> list[MetricSeries]:
    """Return the rows of these series with the increments added."""
    rows = series().filter(pk__in={key.digest() for key in increments.series_keys()}).order_by()
    existing = {
        pk: CountedDurations.stored(number, durations)
        for pk, number, durations in rows.values_list("pk", "number", "durations")
    }
    sums: dict[SeriesKey, CountedDurations] = {}
    for (key, _), counted in increments.by_minute.items():
        sums.setdefault(key, existing.get(key.digest(), CountedDurations())).add(counted)
    return [
        MetricSeries(
            id=key.digest(),
            **key._asdict(),
            number=counted.number,
            durations=counted.durations_as_json(),
        )
        for key, counted in sorted(sums.items())
    ]


def _minutes(increments: Increments) -> list[MetricMinute]:
    """Return the rows of these minutes with the increments added."""
    wanted = {(minute, key.digest()): key for key, minute in increments.by_minute}
    rows = minutes().filter(
        minute__in={minute for minute, _ in wanted}, series__in={pk for _, pk in wanted}
    )
    found = {(row.minute, row.series_id): row for row in rows}
    result = []
    for (minute, pk), key in sorted(wanted.items()):
        counted, (first, last) = (
            increments.by_minute[key, minute],
            increments.ids[key, minute],
        )
        row = found.get((minute, pk)) or MetricMinute(
            minute=minute, series_id=pk, first_id=first, last_id=last
        )
        value = CountedDurations.stored(row.number, row.durations)
        value.add(counted)
        row.pk = None  # the row is found by minute and series
        row.number, row.durations = value.number, value.durations_as_json()
        row.first_id, row.last_id = min(row.first_id, first), max(row.last_id, last)
        result.append(row)
    return result


def _write(queryset: Any, rows: Sequence[Any], key: list[str], columns: list[str]) -> None:
    """Insert these rows, or write the columns of those that exist."""
    supports_target = connections[tables.database()].features.supports_update_conflicts_with_target
    if rows:
        queryset.bulk_create(
            rows,
            update_conflicts=True,
            update_fields=columns,
            unique_fields=key if supports_target else None,
            batch_size=500,
        )


def prune_minutes(now: datetime, limit: int) -> int:
    """Delete counts of minutes older than METRICS_RETENTION, at most ``limit``; return how many."""
    cutoff = now - timedelta(seconds=conf.settings().METRICS_RETENTION)
    old = minutes().filter(minute__lt=cutoff).order_by("minute", "series")
    ids = list(old.values_list("pk", flat=True)[:limit])
    if ids:
        minutes().filter(pk__in=ids).delete()
    return len(ids)
