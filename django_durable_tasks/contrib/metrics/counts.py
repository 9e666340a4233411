"""Counts tasks, attempts and fire times per minute from their tables.

A minute is counted while it lasts, each row once, and again after each of DELAYS for transactions
that commit late. Each count replaces the one before if it is larger: retention may have deleted
rows meanwhile. An hour after its end a minute is settled: it is added to the total of its series
and to its quarter of an hour, and is not counted any more. So totals only grow, and their present
value is the sum of the row of the total and of the minutes that are not settled.

Endings without an attempt leave no row by which they could be counted later, because a task may be
replayed. Their transition writes a row, and the job adds it to its minute.

Every change of counts begins by locking the row POSITION, so two leaders do not mix.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from django.db.models import Count, OuterRef, QuerySet, Subquery, Sum

from django_durable_tasks import conf
from django_durable_tasks.choices import LogStatus, Status
from django_durable_tasks.cluster.nodes import HeartbeatMonitor
from django_durable_tasks.contrib.metrics.models import MetricMinute
from django_durable_tasks.contrib.metrics.series import (
    ALL_TENANTS,
    DELAYS,
    MINUTE,
    OTHER,
    SERIES_MAX,
    CountedDurations,
    Duration,
    MetricKind,
    SeriesKey,
    Span,
    minute_of,
)
from django_durable_tasks.models import OccurrenceRecord, Task, TaskExecutionLog
from django_durable_tasks.models.fields import DatabaseNow
from django_durable_tasks.models.guarded import GuardedQuerySet
from django_durable_tasks.scheduler.jobs import SLICE
from django_durable_tasks.store import tables
from django_durable_tasks.store.connections import dedicated_connection
from django_durable_tasks.store.errors import retry_on_deadlock
from django_durable_tasks.task_values import first_uuid7_of

# Ids are assigned in the order of time, but for the duration of a statement: a statement reads the
# clock and takes the id of its row in either order. Earlier ids are read from this much before the
# minute, later ones up to a minute after it, because a statement may wait for a lock in between.
_EARLIER, _LATER = timedelta(seconds=5), timedelta(minutes=1)
# How many minutes are settled in one transaction.
_SETTLED_TOGETHER = 30
_POSITION = -1
# The minute of totals.
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Attempts whose end is known. That of a LOST one is when it was noticed.
MEASURED = frozenset({LogStatus.SUCCESS, LogStatus.FAILED, LogStatus.RETRY, LogStatus.CANCELLED})

Counts = dict[SeriesKey, CountedDurations]
Place = tuple[datetime, SeriesKey]


def counts() -> GuardedQuerySet[MetricMinute]:
    """Return a queryset of all counts, without the guard against writes."""
    return tables.unguarded(MetricMinute)


def read_totals() -> list[tuple[SeriesKey, CountedDurations]]:
    """Return what was counted of each series up to now, in parts; one statement."""
    rows = counts().filter(span__in=(Span.TOTAL, Span.MINUTE)).order_by()
    return [
        (SeriesKey._make(key), CountedDurations.stored(number, durations))
        for *key, number, durations in rows.values_list(
            *SeriesKey._fields, "number", "durations"
        ).iterator(2_000)
    ]


def settled_until() -> datetime | None:
    """Return the time before which minutes are settled, so that retention keeps the tasks that
    have ended since; None if counting has not begun.
    """
    position = counts().filter(pk=_POSITION).values_list("minute", flat=True).first()
    return None if position is None else minute_of(position)


# What is counted in a minute, read in pages of its table's primary key.


class Source(NamedTuple):
    """A table whose rows are counted: their columns, and what rows of them add to the counts."""

    rows: Callable[[], QuerySet[Any]]
    columns: Sequence[str]
    add: Callable[[Counts, Iterable[Sequence[Any]]], None]
    time: str = ""
    """The column with the time; empty if the ids contain it."""


def _of(by_series: Counts, kind: MetricKind, tenant: int, *names: str) -> CountedDurations:
    tenant = tenant if conf.settings().METRICS_TENANTS else ALL_TENANTS
    return by_series.setdefault(SeriesKey(kind, tenant, *names), CountedDurations())


def _add_tasks(by_series: Counts, rows: Iterable[Sequence[Any]]) -> None:
    # Counted first: thousands of rows have few queues and names.
    for (tenant, queue, name), number in Counter(rows).items():
        _of(by_series, MetricKind.CREATED, tenant, queue, name, "").number += number


def _add_fire_times(by_series: Counts, rows: Iterable[Sequence[Any]]) -> None:
    for tenant, outcome, number in rows:
        _of(by_series, MetricKind.OCCURRENCE, tenant, "", "", outcome).number += number


def _add_attempts(by_series: Counts, rows: Iterable[Sequence[Any]]) -> None:
    for row in rows:
        tenant, status, run_id, ready_at, queued_at, started_at, completed_at, queue, name = row
        counted = _of(by_series, MetricKind.ATTEMPT, tenant, queue or "", name or "", status)
        counted.number += 1
        if run_id is None or started_at is None or status not in MEASURED:
            continue  # an operator's success has no run
        counted.observe(Duration.RUN, (completed_at - started_at).total_seconds())
        if queued_at is not None:
            waited = queued_at - (ready_at or queued_at)
            counted.observe(Duration.SCHEDULER_WAIT, waited.total_seconds())
            counted.observe(Duration.BROKER_WAIT, (started_at - queued_at).total_seconds())


def _log() -> QuerySet[Any]:
    # Subqueries, because a join of a few rows to a large table may be planned as one of both.
    task = Task.objects.filter(pk=OuterRef("task_id"))
    entries: QuerySet[Any] = TaskExecutionLog.objects.using(tables.database())
    with_names: QuerySet[Any] = entries.annotate(
        task_queue=Subquery(task.values("queue")[:1]), task_name=Subquery(task.values("name")[:1])
    )
    return with_names


_TIMES = ("run_id", "ready_at", "queued_at", "started_at", "completed_at")
CREATED = Source(tables.tasks, ("tenant_id", "queue", "name"), _add_tasks)
OCCURRENCES = Source(
    lambda: OccurrenceRecord.objects.using(tables.database()),
    ("tenant_id", "outcome", "count"),
    _add_fire_times,
    time="created_at",
)
ATTEMPTS = Source(
    _log,
    ("tenant_id", "status", *_TIMES, "task_queue", "task_name"),
    _add_attempts,
    time="completed_at",
)
SOURCES = (CREATED, ATTEMPTS, OCCURRENCES)


def _id_of(time: datetime) -> uuid.UUID:
    return first_uuid7_of(int(time.timestamp() * 1_000))


class Ids:
    """Finds the first id of a time by looking at single rows, once for each time."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, datetime], int] = {}

    def first(self, source: Source, at: datetime) -> int:
        """Return an id before which all rows are older than ``at``.

        The search begins at the known id of the next later time and goes back in growing steps, so
        it needs few statements for a minute with few rows.
        """
        if (source.time, at) not in self._known:
            rows = source.rows().order_by("pk").values_list("pk", source.time)
            last = rows.last()
            if last is None:
                return 0
            known = self._known.items()
            later = [pk for (column, time), pk in known if column == source.time and time >= at]
            low, high, step = 0, min(later, default=last[0] + 1), 1
            while low < high:
                # Back in steps until an older row is found, then by bisection.
                middle = (low + high) // 2 if low else max(0, high - step)
                row = rows.filter(pk__gte=middle).first()
                if row is None or row[1] >= at:
                    high, step = middle, 2 * step
                else:
                    low = row[0] + 1
            self._known[source.time, at] = low
        return self._known[source.time, at]

    def forget(self, before: datetime) -> None:
        """Forget the ids of earlier times."""
        self._known = {key: pk for key, pk in self._known.items() if key[1] >= before}

    def rows_of(self, source: Source, minute: datetime, now: datetime) -> QuerySet[Any]:
        """Return the rows of this minute, by the primary key."""
        end = minute + MINUTE
        if not source.time:
            return source.rows().filter(pk__gte=_id_of(minute), pk__lt=_id_of(end))
        rows = source.rows().filter(pk__gte=self.first(source, minute - _EARLIER))
        if end + _LATER <= now:
            newer = source.rows().filter(
                **{"pk__gte": self.first(source, end + _LATER), f"{source.time}__gte": end + _LATER}
            )
            # The first newer row, and not the first id: smaller ids may be of open transactions.
            pk = newer.order_by("pk").values_list("pk", flat=True).first()
            if pk is not None:
                rows = rows.filter(pk__lt=pk)
        return rows.filter(**{f"{source.time}__gte": minute, f"{source.time}__lt": end})


# Changes of counts.


def _locked_position() -> datetime:
    """Lock the row POSITION; return the time before which minutes are settled."""
    return minute_of(counts().select_for_update().get(pk=_POSITION).minute)


def begin_counting(now: datetime) -> datetime:
    """Return the time before which minutes are settled: an hour ago if nothing was counted yet."""
    begun = settled_until()
    if begun is None:
        begun = minute_of(now - DELAYS[-1])
        row = MetricMinute(pk=_POSITION, span=Span.POSITION, minute=begun)
        counts().bulk_create([row], ignore_conflicts=True)
    return begun


def _write(
    span: Span,
    new: Mapping[Place, CountedDurations],
    merged: Callable[[CountedDurations, CountedDurations], CountedDurations],
) -> None:
    """Replace the counts of these places by what ``merged(old, new)`` returns."""
    old: dict[Place, MetricMinute] = {}
    kinds, minutes = {key.kind for _, key in new}, {minute for minute, _ in new}
    for row in counts().filter(span=span, minute__in=minutes, kind__in=kinds).order_by():
        place = minute_of(row.minute), _key_of(row)
        if place in new:
            old[place] = row
    changed: dict[Place, CountedDurations] = {}
    for place, counted in new.items():
        before = CountedDurations()
        if place in old:
            before = CountedDurations.stored(old[place].number, old[place].durations)
        after = merged(before, counted)
        if place not in old or after != before:
            changed[place] = after
    counts().filter(pk__in=[old[place].pk for place in changed if place in old]).delete()
    counts().bulk_create(
        [
            MetricMinute(
                span=span,
                minute=minute,
                **key._asdict(),
                number=counted.number,
                durations=counted.durations_as_json(),
            )
            for (minute, key), counted in changed.items()
        ],
        batch_size=500,
    )


def _key_of(row: MetricMinute) -> SeriesKey:
    return SeriesKey(MetricKind(row.kind), row.tenant_id, row.queue, row.name, row.status)


def _sum(old: CountedDurations, new: CountedDurations) -> CountedDurations:
    total = CountedDurations()
    total.add(old)
    total.add(new)
    return total


def _named(
    counts_by_place: Iterable[tuple[Place, CountedDurations]],
) -> dict[Place, CountedDurations]:
    """Return these counts under the series in which they are counted: a new series beyond
    SERIES_MAX of its kind as ``other``. New series get a total of 0.
    """
    counts_by_place = list(counts_by_place)
    totals = counts().filter(
        span=Span.TOTAL, kind__in={key.kind for (_, key), _ in counts_by_place}
    )
    known = {SeriesKey._make(key) for key in totals.order_by().values_list(*SeriesKey._fields)}
    names: dict[SeriesKey, SeriesKey] = {}
    for key in sorted({key for (_, key), _ in counts_by_place} - known):
        places = sum(series.kind == key.kind for series in known)
        names[key] = key
        if places >= SERIES_MAX:
            names[key] = key._replace(tenant_id=ALL_TENANTS, queue=OTHER, name=OTHER)
        if names[key] not in known:
            known.add(names[key])
            row = MetricMinute(span=Span.TOTAL, minute=_EPOCH, **names[key]._asdict())
            counts().bulk_create([row])
    result: dict[Place, CountedDurations] = {}
    for (minute, key), counted in counts_by_place:
        result.setdefault((minute, names.get(key, key)), CountedDurations()).add(counted)
    return result


@retry_on_deadlock
def raise_minute(minute: datetime, by_series: Counts) -> None:
    """Write what was counted in this minute, unless it is settled or was larger before."""
    if not by_series:
        return
    with tables.atomic():
        if minute < _locked_position():
            return
        rows = counts().filter(span=Span.MINUTE, minute=minute).order_by()
        before = dict(rows.values_list("kind").annotate(number=Sum("number")))
        # By the sum of all series: they have other names after a change of METRICS_TENANTS.
        numbers: Counter[str] = Counter()
        for key, counted in by_series.items():
            numbers[key.kind] += counted.number
        grown = {kind for kind, number in numbers.items() if number > before.get(kind, 0)}
        more = [((minute, key), counted) for key, counted in by_series.items() if key.kind in grown]
        _write(Span.MINUTE, _named(more), lambda old, new: new if new.number > old.number else old)


@retry_on_deadlock
def collect_endings(limit: int) -> int:
    """Add at most ``limit`` endings without an attempt to their minutes; return how many."""
    new = counts().filter(span=Span.NEW).order_by("pk")
    if not new.exists():
        return 0
    with tables.atomic():
        _locked_position()
        rows = list(new[:limit])
        places = ((minute_of(row.minute), _key_of(row)) for row in rows)
        numbers = (CountedDurations(row.number) for row in rows)
        _write(Span.MINUTE, _named(zip(places, numbers, strict=True)), _sum)
        counts().filter(pk__in=[row.pk for row in rows]).delete()
    return len(rows)


@retry_on_deadlock
def settle(until: datetime) -> None:
    """Add the minutes before ``until`` to their totals and quarters of an hour, and delete quarters
    after their retention.
    """
    with tables.atomic():
        if until <= _locked_position():
            return
        rows = list(counts().filter(span=Span.MINUTE, minute__lt=until))
        for span in (Span.QUARTER, Span.TOTAL):
            sums: dict[Place, CountedDurations] = {}
            for row in rows:
                minute = minute_of(row.minute)
                quarter = minute - MINUTE * (minute.minute % Span.QUARTER)
                place = (quarter if span == Span.QUARTER else _EPOCH), _key_of(row)
                counted = CountedDurations.stored(row.number, row.durations)
                sums.setdefault(place, CountedDurations()).add(counted)
            if sums:
                _write(span, sums, _sum)
        counts().filter(pk__in=[row.pk for row in rows]).delete()
        counts().filter(pk=_POSITION).update(minute=until)
        cutoff = conf.kept_from("METRICS", until)
        counts().filter(span=Span.QUARTER, minute__lt=cutoff).delete()


def record_endings(task_ids: Sequence[uuid.UUID], status: Status, **more: Any) -> None:
    """Receive ``ended_without_attempt``: insert one row for each queue, name and tenant of these
    tasks, in the transaction of the transition.

    Tasks whose status is not ``status`` are left out, because the transition did not change them.
    """
    ended = tables.tasks().filter(pk__in=list(task_ids), status=status).order_by()
    groups = ended.values_list("tenant_id", "queue", "name").annotate(number=Count("pk"))
    by_series: Counts = {}
    for tenant_id, queue, name, number in groups:
        _of(by_series, MetricKind.ENDED, tenant_id, queue, name, status).number += number
    counts().bulk_create(
        [
            MetricMinute(
                span=Span.NEW, minute=DatabaseNow(), **key._asdict(), number=counted.number
            )
            for key, counted in by_series.items()
        ]
    )


# The job of the leader.


def is_due(minute: datetime, counted_at: datetime | None, now: datetime) -> bool:
    """Return whether a minute, which this process has counted last at ``counted_at``, must be
    counted: while it lasts, and once after each of DELAYS. If several have passed, once.
    """
    end = minute + MINUTE
    times = (end + delay for delay in DELAYS)
    return counted_at is None or now < end or any(counted_at < time <= now for time in times)


@dataclass(slots=True)
class _Reading:
    """What was read of a minute, and the last id of each source."""

    minute: datetime
    counted: Counts = field(default_factory=dict)
    after: dict[Source, Any] = field(default_factory=dict)


class CountMetrics:
    """Count for one slice.

    A round may take several slices, so that the other jobs of the leader are not delayed. Returns 1
    if it is not complete, or if older minutes are left after an outage.
    """

    def __init__(self) -> None:
        self._ids, self._counted = Ids(), dict[datetime, datetime]()
        self._begun = _Reading(_EPOCH)
        """The minute that lasts: what was read of it is not read again before its end."""
        self._round: Iterator[None] | None = None
        self._left = 0

    def __call__(self, now: datetime, monitor: HeartbeatMonitor) -> int:
        end = time.monotonic() + SLICE
        with dedicated_connection():
            round_, self._round = self._round or self.count(now), None
            for _ in round_:
                if time.monotonic() >= end:
                    self._round = round_
                    return 1
        return self._left

    def count(self, now: datetime) -> Iterator[None]:
        """Count the minutes that are due, in parts: those of the last hour, the newest first, then
        the oldest ones that are not settled. Settle minutes that were counted for the last time.
        """
        begin, page = begin_counting(now), 4 * conf.settings().BATCH_SIZE
        while collect_endings(page) == page:
            yield
        self._counted = {minute: at for minute, at in self._counted.items() if minute >= begin}
        self._ids.forget(begin - MINUTE)
        last = minute_of(now - DELAYS[-1])  # the minutes before are due for the last time
        until = min(last, begin + _SETTLED_TOGETHER * MINUTE)
        recent = (minute_of(now) - max(begin, last)) // MINUTE
        minutes = [minute_of(now) - number * MINUTE for number in range(recent + 1)]
        minutes += [begin + number * MINUTE for number in range((until - begin) // MINUTE)]
        for minute in minutes:
            if is_due(minute, self._counted.get(minute), now):
                lasts = now < minute + MINUTE
                # After its end a minute is read anew, with what was committed late.
                reading = (
                    self._begun if lasts and self._begun.minute == minute else _Reading(minute)
                )
                if lasts:
                    self._begun = reading
                for source in SOURCES:
                    rows = self._ids.rows_of(source, minute, now).order_by("pk")
                    while True:
                        after = reading.after.get(source)
                        remaining = rows if after is None else rows.filter(pk__gt=after)
                        read = list(remaining.values_list("pk", *source.columns)[:page])
                        if read:  # first, so that no error makes a row count twice
                            reading.after[source] = read[-1][0]
                        source.add(reading.counted, (row[1:] for row in read))
                        yield
                        if len(read) < page:
                            break
                raise_minute(minute, reading.counted)
                self._counted[minute] = now
        if until > begin:
            settle(until)
        self._left = int(until < last)
