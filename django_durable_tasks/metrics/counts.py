"""Counts tasks, attempts and fire times for the metrics, each exactly once, and reads the
charts.
"""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from django.db import connections
from django.db.models import (
    BigIntegerField,
    Count,
    FloatField,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    Sum,
)
from django.db.models.fields.json import KT
from django.db.models.functions import Cast, ExtractMinute, TruncHour

from django_durable_tasks import conf
from django_durable_tasks.choices import LogStatus, MetricKind
from django_durable_tasks.metrics import series as metrics_series
from django_durable_tasks.metrics.series import (
    ALL_TENANTS,
    BUCKETS,
    DELAYS,
    MINUTE,
    ChartPeriod,
    ChartPoint,
    CountedDurations,
    Distribution,
    Duration,
    IdGap,
    SeriesKey,
    minute_of,
    next_minute,
    skipped_to,
)
from django_durable_tasks.models import (
    MetricMinute,
    MetricPosition,
    MetricSeries,
    OccurrenceRecord,
    Task,
    TaskExecutionLog,
    UncountedEnding,
)
from django_durable_tasks.models.metrics import (
    MetricMinuteQuerySet,
    MetricPositionQuerySet,
    MetricSeriesQuerySet,
    UncountedEndingQuerySet,
)
from django_durable_tasks.models.tasks import first_uuid7_of
from django_durable_tasks.store import tables
from django_durable_tasks.store.errors import retry_on_deadlock

# Adds counts to the totals and to the minutes, each exactly once.
#
# A caller reads a position, then the rows after it, and then calls ``record``. In one transaction
# ``record`` raises the revision of the position, unless another process has, and writes totals and
# minutes as values that were computed before. Each kind of series has its own position, and only
# its owner writes the series of the kind, so the values cannot have changed if the revision has
# not.


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
def record_counts(
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


# Reads the rows of a table that were committed since the last read, each exactly once.
#
# Rows are read by primary key, in the order of ids and in bounded batches. Ids that were passed
# over are read again: see ``metrics/series.py``.


def new_rows(
    queryset: QuerySet[Any],
    columns: Sequence[str],
    position: CountPosition,
    now: datetime,
    limit: int,
) -> tuple[list[tuple[Any, ...]], CountPosition]:
    """Return rows that were not read before, with the position after them.

    The first column must be ``id``. At most ``limit`` rows after the position and ``limit`` rows of
    gaps are returned. One statement, or two if there are gaps.
    """
    at = now.timestamp()
    passed_over = metrics_series.kept_gaps((IdGap(*gap) for gap in position.details), at)
    late = _of_gaps(queryset, columns, passed_over)[:limit] if passed_over else []
    following = queryset.filter(pk__gt=position.last_id).order_by("pk")
    rows = list(following.values_list(*columns)[:limit])
    found = list(late)
    left = [
        *metrics_series.gaps_without(passed_over, [row[0] for row in found]),
        *metrics_series.new_gaps(position.last_id, [row[0] for row in rows], at),
    ]
    last_id = rows[-1][0] if rows else position.last_id
    return [*found, *rows], position.moved(
        last_id, [list(gap) for gap in metrics_series.kept_gaps(left, at)]
    )


def _of_gaps(
    queryset: QuerySet[Any], columns: Sequence[str], passed_over: Sequence[IdGap]
) -> QuerySet[Any, tuple[Any, ...]]:
    inside = Q()
    for gap in passed_over:
        inside |= Q(pk__gte=gap.first, pk__lte=gap.last)
    return queryset.filter(inside).order_by("pk").values_list(*columns)


def is_counted(position: CountPosition, row_id: int) -> bool:
    """Return whether the row of this id was read, or given up."""
    return row_id <= position.last_id and not any(
        first <= row_id <= last for first, last, _ in position.details
    )


# Counts the attempt log: how attempts ended, how long they ran, and how long they waited.
#
# The ending of an attempt writes nothing for the metrics. The log is read by its primary key, a
# few seconds later, and its rows are joined to their tasks by theirs.


MEASURED = frozenset({LogStatus.SUCCESS, LogStatus.FAILED, LogStatus.RETRY, LogStatus.CANCELLED})
"""Attempts whose end is known. That of a LOST one is when it was noticed."""


class LoggedAttempt(NamedTuple):
    """A log entry with the queue and the name of its task, which are empty if it was deleted."""

    id: int
    tenant_id: int
    status: str
    run_id: uuid.UUID | None
    ready_at: datetime | None
    queued_at: datetime | None
    started_at: datetime | None
    completed_at: datetime
    task_queue: str | None
    task_name: str | None

    @property
    def key(self) -> SeriesKey:
        """The series in which the attempt is counted."""
        return SeriesKey(
            MetricKind.ATTEMPT,
            tenant_of(self.tenant_id),
            self.task_queue or "",
            self.task_name or "",
            self.status,
        )

    def count_in(self, counted: CountedDurations) -> None:
        """Count this attempt."""
        counted.number += 1
        if self.run_id is None or self.started_at is None or self.status not in MEASURED:
            return  # an operator's success has no run
        counted.observe(Duration.RUN, (self.completed_at - self.started_at).total_seconds())
        if self.queued_at is None:
            return  # the attempt ended before the upgrade that added the column
        ready_at = self.ready_at or self.queued_at
        counted.observe(Duration.SCHEDULER_WAIT, (self.queued_at - ready_at).total_seconds())
        counted.observe(Duration.BROKER_WAIT, (self.started_at - self.queued_at).total_seconds())


def log() -> QuerySet[TaskExecutionLog]:
    """Return a queryset of all log entries, with the queue and the name of their tasks.

    Subqueries, because a join of a few rows to a large table may be planned as one of both tables.
    """
    task = Task.objects.filter(pk=OuterRef("task_id"))
    entries: QuerySet[Any] = TaskExecutionLog.objects.using(tables.database())
    found: QuerySet[TaskExecutionLog] = entries.annotate(
        task_queue=Subquery(task.values("queue")[:1]), task_name=Subquery(task.values("name")[:1])
    )
    return found


def count_attempts(now: datetime, limit: int) -> int:
    """Count at most ``limit`` new log entries; return how many, 0 if another process counts."""
    position = read_position(MetricKind.ATTEMPT)
    rows, after = new_rows(log(), LoggedAttempt._fields, position, now, limit)
    if after == position:
        return 0
    increments = Increments()
    for row in map(LoggedAttempt._make, rows):
        row.count_in(increments.of(row.key, minute_of(row.completed_at), row.id))
    return len(rows) if record_counts(position, after, increments) else 0


def with_uncounted_attempts(task_ids: Collection[uuid.UUID]) -> set[uuid.UUID]:
    """Return those of these tasks whose attempts must not be deleted yet, because they are not
    counted.
    """
    position = read_position(MetricKind.ATTEMPT)
    entries = TaskExecutionLog.objects.using(tables.database()).filter(task_id__in=list(task_ids))
    ids = entries.order_by().values_list("task_id", "pk")
    return {task_id for task_id, row_id in ids if not is_counted(position, row_id)}


# Counts the tasks that were created in each minute, by their ids.
#
# An id begins with the time of its creation (UUIDv7), so a minute is a range of the primary key
# and creating a task costs nothing more. A transaction that creates tasks may commit long after. A
# minute is therefore counted again after each of DELAYS, and the total grows by what is new.


@dataclass(slots=True)
class PartialCount:
    """What was counted of a minute so far; ``past`` is the last id that was read."""

    index: int
    minute: datetime
    revision: int
    past: uuid.UUID
    numbers: Counter[SeriesKey] = field(default_factory=Counter)


class CreationCounter:
    """Counts one part of a minute per call, and writes a minute when it is complete.

    A process that dies in between has written nothing, and the next one starts the minute again.
    """

    def __init__(self) -> None:
        self._partial: PartialCount | None = None

    def __call__(self, now: datetime, limit: int) -> int:
        """Read at most ``limit`` ids; return 1 if a minute is incomplete or another one is due."""
        position = read_position(MetricKind.CREATED)
        nexts = _nexts(position, now)
        due = next_minute(nexts, now, _oldest(now))
        if due is None:
            self._partial = None
            if not position.details:  # counting begins with this minute
                record_counts(position, _at(position, nexts), Increments())
            return 0
        part = self._partial
        if part is None or (part.index, part.minute, part.revision) != (*due, position.revision):
            part = PartialCount(*due, position.revision, _first_id(due[1]))
        self._partial = part
        if _read_part(part, limit):
            return 1
        self._partial = None
        nexts = [skipped_to(nexts, index, now, _oldest(now)) for index in range(len(DELAYS))]
        nexts[part.index] = part.minute + MINUTE
        record_counts(position, _at(position, nexts), _increments(part))
        return 1


def first_uncounted_id() -> uuid.UUID | None:
    """Return the id from which tasks are not counted yet; None if counting has not begun."""
    position = read_position(MetricKind.CREATED)
    return _first_id(_instant(position.details[0])) if position.details else None


def _oldest(now: datetime) -> datetime:
    """Return the time before which minutes may have been pruned, and are not counted."""
    return now - timedelta(seconds=conf.settings().METRICS_RETENTION) + 2 * MINUTE


def _nexts(position: CountPosition, now: datetime) -> list[datetime]:
    if len(position.details) != len(DELAYS):
        return [minute_of(now)] * len(DELAYS)
    return [_instant(seconds) for seconds in position.details]


def _at(position: CountPosition, nexts: list[datetime]) -> CountPosition:
    return position.moved(0, [int(minute.timestamp()) for minute in nexts])


def _instant(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _first_id(minute: datetime) -> uuid.UUID:
    return first_uuid7_of(int(minute.timestamp() * 1_000))


def _read_part(part: PartialCount, limit: int) -> bool:
    """Count the next ``limit`` ids of a minute; return whether there may be more."""
    end = _first_id(part.minute + MINUTE)
    ids = tables.tasks().filter(pk__gte=part.past, pk__lt=end).order_by("pk")
    last = ids.values_list("pk", flat=True)[limit - 1 : limit].first()
    these = ids.filter(pk__lte=last) if last is not None else ids
    groups = these.order_by().values_list("tenant_id", "queue", "name")
    for tenant_id, queue, name, number in groups.annotate(number=Count("pk")):
        key = SeriesKey(MetricKind.CREATED, tenant_of(tenant_id), queue, name, "")
        part.numbers[key] += number
    if last is None:
        return False
    part.past = uuid.UUID(int=last.int + 1)
    return True


def _increments(part: PartialCount) -> Increments:
    """Return what this count of the minute has found and the earlier ones have not.

    The sum is also limited, because a change of METRICS_TENANTS or METRICS_SERIES_MAX between two
    counts makes known tasks appear under new keys.
    """
    rows = minutes().filter(minute=part.minute, series__kind=MetricKind.CREATED)
    before = dict(rows.order_by().values_list("series_id", "number"))
    names, found = counted_as(part.numbers.keys(), MetricKind.CREATED), Counter[SeriesKey]()
    for key, number in part.numbers.items():
        found[names[key]] += number
    increments, left = Increments(), sum(found.values()) - sum(before.values())
    for key, number in sorted(found.items()):
        new = min(left, number - before.get(key.digest(), 0))
        if new > 0:
            increments.of(key, part.minute).number += new
            left -= new
    return increments


# Counts the tasks that ended without an attempt: skipped, expired, cancelled, or failed because of
# an upstream task.


def count_endings_without_attempt(now: datetime, limit: int) -> int:
    """Count and delete at most ``limit`` rows that transitions have left; return how many."""
    position = read_position(MetricKind.ENDED)
    rows = list(uncounted_endings().order_by("pk")[:limit])
    if not rows:
        return 0
    increments = Increments()
    for row in rows:
        key = SeriesKey(MetricKind.ENDED, tenant_of(row.tenant_id), row.queue, row.name, row.status)
        increments.of(key, minute_of(row.ended_at)).number += row.number
    done = record_counts(position, position, increments, [row.pk for row in rows])
    return len(rows) if done else 0


# Counts the fire times of recurring tasks by their outcome in the ledger.


_COLUMNS = ("id", "tenant_id", "outcome", "count", "created_at")


def count_occurrences(now: datetime, limit: int) -> int:
    """Count at most ``limit`` new ledger entries; return how many."""
    position = read_position(MetricKind.OCCURRENCE)
    ledger: QuerySet[Any] = OccurrenceRecord.objects.using(tables.database())
    rows, after = new_rows(ledger, _COLUMNS, position, now, limit)
    if after == position:
        return 0
    increments = Increments()
    for _, tenant_id, outcome, number, created_at in rows:
        key = SeriesKey(MetricKind.OCCURRENCE, tenant_of(tenant_id), "", "", outcome)
        increments.of(key, minute_of(created_at)).number += number
    return len(rows) if record_counts(position, after, increments) else 0


# Which tasks must not be deleted yet, because they are not counted for the metrics.


_FUTURE = timedelta(minutes=5)
"""Tasks of a host whose clock is further ahead than this are not waited for."""


def uncounted(task_ids: Collection[uuid.UUID], now: datetime) -> set[uuid.UUID]:
    """Return those of these tasks that are not counted yet; none unless METRICS is set."""
    if not conf.settings().METRICS or not task_ids:
        return set()
    first = first_uncounted_id()
    if first is None:
        return set()  # counting has not begun
    future = first_uuid7_of(int((now + _FUTURE).timestamp() * 1_000))
    created = {task_id for task_id in task_ids if first <= task_id < future}
    return created | with_uncounted_attempts(task_ids)


# Reads the counts per minute for charts, summed to the points of a period.
#
# PostgreSQL sums them itself. The other databases store durations as text and parse it again for
# each of its numbers, which takes four times as long on MariaDB as to sum the rows in Python, as
# is done there.
#
# The number of rows is bounded by ``row_limit``. A period with more rows is shortened at its
# beginning. Two statements, and a third one if the selected series may have more rows.


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
    rows = (
        series()
        .filter(kind__in=metrics_series.ENDING_KINDS)
        .exclude(status__in=metrics_series.NOT_ENDINGS)
    )
    if tenants is not None:
        rows = rows.filter(tenant_id__in=sorted(tenants))
    return EndingSeries(list(rows.order_by().values_list("pk", "queue", "name")))


def read_points(ids: Sequence[uuid.UUID], period: ChartPeriod, now: datetime) -> ChartData:
    """Return the counts of these series in the period that ends ``now``."""
    start, is_cut = _bounded_start(ids, period, now)
    found = metrics_series.chart_points(period, start, now)
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
    return metrics_series.utc(first_left_out[0]) + MINUTE, True


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
        at = metrics_series.utc(minute)
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
        at = metrics_series.utc(hour) + MINUTE * int(minute)
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
