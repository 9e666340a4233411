"""The framework of ``durable verify``: findings, the rules for correct values, and the reading
of tables in pages by primary key.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from django.db.models import Model, QuerySet

from django_durable_tasks.choices import DEADLINE, OPEN, RecurringStatus, Status, WorkflowStatus
from django_durable_tasks.models import (
    RecurringTask,
    SchedulerLease,
    Task,
    TaskDependency,
    WorkflowRun,
)
from django_durable_tasks.models.guarded import GuardedQuerySet
from django_durable_tasks.models.workflows import COUNTS
from django_durable_tasks.store import tables
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.workflows.builder import verdict

# Rules of ``durable verify``: which values of rows are wrong, and the correct ones. Pure.
#
# A finding contains one row, one field, its value and the correct one. ``repair`` describes what
# ``durable verify --repair`` does; if it is empty, ``advice`` describes what an operator can do.


class Severity(StrEnum):
    """The severity of a finding."""

    BROKEN = "BROKEN"
    """A guarantee of the engine is violated."""
    LATE = "LATE"
    """A step that should have been done by now is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One wrong row; ``key`` is its primary key."""

    check: str
    severity: Severity
    table: str
    key: Any
    field: str
    found: Any
    right: str
    repair: str = ""
    advice: str = ""

    @property
    def text(self) -> str:
        """The finding as a sentence."""
        return (
            f"{self.table} {self.key}: {self.field} is {shown(self.found)}; right is {self.right}."
        )


@dataclass(frozen=True, slots=True)
class WrongField:
    """A wrong field; ``value`` is what a repair writes, if ``safe``."""

    field: str
    found: Any
    right: str
    value: Any = None
    safe: bool = True

    def of(self, key: Any, advice: str = "") -> Wrong:
        """Return it as the finding of a row; ``advice`` is for an operator if it is not safe."""
        row = Wrong(key, self.field, self.found, self.right)
        return row if self.safe else replace(row, repair="", advice=advice)


def shown(value: Any) -> str:
    """Return a value as text; instants in UTC."""
    if value is None:
        return "empty"
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return str(value) if isinstance(value, int | str) and value != "" else repr(value)


# Tasks --------------------------------------------------------------------------------------------


def wrong_marker(
    field: str, marker: str | None, key: str | None, status: str, attempts: int
) -> WrongField | None:
    """Return the error in the marker of an open key (``open_key``, ``open_unique_key``); None if
    there is none.

    A task that has started may have lost its key to a newer one, so only a task that never started
    must have it.
    """
    if Status(status) not in OPEN:
        return (
            None
            if marker is None
            else WrongField(field, marker, f"empty, because the task is {status}")
        )
    if marker == key or (marker is None and attempts > 0):
        return None
    return WrongField(field, marker, f"{shown(key)}, because the task is {status}", key)


def wrong_completion(status: str, completed_at: datetime | None) -> WrongField | None:
    """Return the error in ``completed_at``; None if there is none."""
    is_open = Status(status) in OPEN
    if is_open == (completed_at is None):
        return None
    right = "empty" if is_open else "when it ended"
    return WrongField("completed_at", completed_at, f"{right}, because the task is {status}")


def wrong_attempts(
    attempts: int, *, running: bool, endings: int, distinct: int, highest: int
) -> WrongField | None:
    """Return the contradiction between the log entries of accepted endings and ``attempts``; None
    if they agree.

    ``endings``: how many there are; ``distinct``: of how many attempts; ``highest``: the number of
    the last one. An attempt that ended twice cannot be repaired; a counter that is too low can.
    """
    if endings > distinct:
        return WrongField(
            "attempts",
            attempts,
            f"one ending an attempt, and {distinct} of them ended {endings} times",
            safe=False,
        )
    least = highest + running
    if attempts < least:
        return WrongField(
            "attempts", attempts, f"at least {least}, by the log rows of its endings", least
        )
    return None


# Workflows ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """A workflow run and its tasks: its counters, the changes of pending ending events, and the
    number of tasks per status.
    """

    status: str
    total: int
    counted: Mapping[str, int]
    in_events: Mapping[str, int]
    present: Mapping[str, int]
    uncounted_events: int = 0
    cancelled: bool = False
    reason: str = ""

    @property
    def open(self) -> int:
        """How many of its tasks have not ended."""
        return sum(self.present.get(status, 0) for status in OPEN)


def wrong_counts(run: RunFacts) -> list[WrongField]:
    """Return the counters that differ from the tasks, including the changes of pending ending
    events.

    Pruned tasks were counted and no longer exist. For a run with pruned tasks, no counter may be
    lower than the number of existing tasks, and tasks that have not ended must be counted as open.
    """
    if run.status == WorkflowStatus.STARTING:
        return []
    expected = {
        column: run.counted[column] + run.in_events.get(column, 0) for column in COUNTS.values()
    }
    there = {column: run.present.get(status, 0) for status, column in COUNTS.items()}
    if sum(there.values()) + run.open == run.total:
        return [
            _count(run, column, there[column])
            for column in there
            if expected[column] != there[column]
        ]
    wrong = [
        _count(run, column, there[column]) for column in there if expected[column] < there[column]
    ]
    if not wrong and run.total - sum(expected.values()) != run.open:
        right = sum(expected.values()) + run.open
        wrong = [
            WrongField(
                "total",
                run.total,
                f"{right}: {sum(expected.values())} ended and {run.open} open",
                right,
                safe=expected == there,
            )
        ]
    return wrong


def _count(run: RunFacts, column: str, rows: int) -> WrongField:
    right = rows - run.in_events.get(column, 0)
    return WrongField(column, run.counted[column], f"{right}, by a recount of its tasks", right)


def wrong_status(run: RunFacts) -> WrongField | None:
    """Return the error in the status of a run, by its own counters; None if there is none, or if
    ending events are pending.
    """
    if run.uncounted_events or run.status == WorkflowStatus.STARTING:
        return None
    right = verdict(
        run.counted,
        run.total,
        cancelled=run.cancelled,
        overdue=run.cancelled and run.reason == DEADLINE,
    )
    if right == run.status:
        return None
    why = (
        f"{run.open} of its tasks are open"
        if right == WorkflowStatus.RUNNING
        else "all of its tasks have ended"
    )
    return WrongField("status", run.status, f"{right}, because {why}")


# Recurring tasks ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NextRun:
    """The next due time of a recurring task, and that of its agenda (``following``); instants are
    aware.
    """

    status: str
    now: datetime
    stored: datetime | None
    following: datetime | None = None
    paused_until: datetime | None = None
    put_off: float = 0.0


def wrong_next_run(row: NextRun) -> WrongField | None:
    """Return the error in ``next_run_at``; ``put_off`` is the delay (seconds) of a fire whose task
    is not registered.

    A task that is already due is not checked here: another check reports schedules that do not
    fire.
    """
    right = row.following
    if row.status == RecurringStatus.PAUSED:
        right = row.paused_until
    elif row.status == RecurringStatus.CANCELLED:
        right = None
    if row.stored == right or (
        row.stored is not None and row.stored <= row.now and row.status != "CANCELLED"
    ):
        return None
    late = right is not None and right <= row.now and row.status == RecurringStatus.ACTIVE
    if late and row.stored is not None and row.stored <= row.now + timedelta(seconds=row.put_off):
        return None
    why = f"because it is {row.status}" if row.status != RecurringStatus.ACTIVE else "by its agenda"
    return WrongField("next_run_at", row.stored, f"{shown(right)}, {why}", right)


# The framework of ``durable verify``: reads tables in pages by primary key and confirms findings
# under lock.
#
# Tasks change while a page is read. A finding of the first, unlocked read is therefore checked
# again with the rows that decide about it locked. A statement after a lock reads everything that
# was committed before it (PostgreSQL documentation 13.2.1). Rows locked by other transactions are
# skipped, because they are changing.


Rows = QuerySet[Any]
PAGE = 5_000
"""Rows per page."""
NARROW: Mapping[type[Model], int] = {WorkflowRun: 50, RecurringTask: 200}
"""Rows per page of the models whose rows need more work each."""
AT_ONCE = 100
"""Rows that are locked together, to be checked again or repaired."""
PATIENCE = 60.0
"""Seconds after which something is reported as late, beyond the delay that the engine itself
allows.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyContext:
    """The time of a read: the database clock, whether there is a leader, and how long that has not
    changed.

    Lateness is reported only after a steady period, because after an outage of the database
    everything is late.
    """

    now: datetime
    led: bool
    steady: timedelta

    def is_steady_for(self, seconds: float) -> bool:
        """Return whether the leadership has been steady for ``seconds``, so that lateness can be
        reported.
        """
        return self.steady >= timedelta(seconds=seconds)

    def ago(self, seconds: float) -> datetime:
        """Return the instant ``seconds`` before now."""
        return self.now - timedelta(seconds=seconds)


def read_context() -> VerifyContext:
    """Read the clock and the lease of the leader; two statements."""
    now = database_now()
    leases = SchedulerLease.objects.using(tables.database()).order_by("-expires_at")
    lease = leases.first()
    if lease is None or lease.expires_at <= now:
        return VerifyContext(now=now, led=False, steady=now - (lease.expires_at if lease else now))
    return VerifyContext(now=now, led=True, steady=now - (lease.acquired_at or now))


@dataclass(frozen=True, slots=True)
class Wrong:
    """A wrong row as a check reports it: its key, the field, its value, and the right one in words.

    ``repair``, ``severity`` and ``table`` are those of the check unless given. An empty ``repair``
    means that an operator is needed, for whom ``advice`` is.
    """

    key: Any
    field: str
    found: Any
    right: str
    advice: str = ""
    repair: str | None = None
    severity: Severity | None = None
    table: str = ""


Look = Callable[[VerifyContext, Rows], Iterable[Wrong]]
Lock = Callable[[Sequence[Any]], list[Any]]
Repair = Callable[[VerifyContext, Sequence[Any]], Collection[Any] | None]

GROUPS = ("graphs", "tasks", "recurring", "nodes", "orphans", "shards")
"""The groups of checks in the order in which they run. Within a group they run in the order in
which they are defined. Repairs run in this order too: edges before the counts that depend on them.
"""
_checks: list[Check] = []


@dataclass(slots=True, kw_only=True)
class Check:
    """One question about the rows of a table.

    ``look`` returns what is wrong in some rows, with a number of statements that does not depend on
    the number of rows. ``lock`` locks the rows that decide about the given keys, and returns the
    keys it could lock. ``repair`` corrects the rows of these keys, which are locked, and returns
    the keys that it corrected; None means all, the others need an operator. ``done`` describes what
    it did.
    """

    name: str
    group: str
    question: str
    model: type[Any]
    look: Look
    repair_text: str = ""
    severity: Severity = Severity.BROKEN
    lock: Lock | None = None
    repair: Repair | None = None
    done: str = ""

    def repaired_by(self, done: str) -> Callable[[Repair], Repair]:
        """Decorator of the function that repairs the findings."""

        def registered(repair: Repair) -> Repair:
            self.repair, self.done = repair, done
            return repair

        return registered

    def locked_by(self, lock: Lock) -> Lock:
        """Decorator of the function that locks the rows."""
        self.lock = lock
        return lock

    def find(self, context: VerifyContext, rows: Rows) -> list[Finding]:
        """Return the findings of these rows."""
        return [
            Finding(
                check=self.name,
                severity=wrong.severity or self.severity,
                table=wrong.table or str(self.model._meta.verbose_name),
                key=wrong.key,
                field=wrong.field,
                found=wrong.found,
                right=wrong.right,
                repair=self.repair_text if wrong.repair is None else wrong.repair,
                advice=wrong.advice,
            )
            for wrong in self.look(context, rows)
        ]

    def lock_rows(self, keys: Sequence[Any]) -> Rows:
        """Lock the rows that decide about these keys, inside a transaction; return the rows that
        could be locked.
        """
        locked = self.lock(keys) if self.lock else lock_rows(self.model, keys)
        return rows_of(self.model).filter(pk__in=locked)

    def confirmed(self, candidates: Sequence[Finding], most: int) -> list[Finding]:
        """Return the findings that remain when their rows are locked; stops after the batch that
        reaches ``most``.
        """
        found: list[Finding] = []
        for keys in batches(distinct(candidates)):
            if len(found) >= most:
                break
            with tables.atomic():
                found += self.find(read_context(), self.lock_rows(keys))
        return found


def check(
    name: str,
    model: type[Any],
    question: str,
    *,
    group: str,
    repair: str = "",
    severity: Severity = Severity.BROKEN,
    lock: Lock | None = None,
) -> Callable[[Look], Check]:
    """Decorator: register the check whose ``look`` is the function. ``repair`` says what the repair
    does.
    """

    def registered(look: Look) -> Check:
        new = Check(
            name=name,
            group=group,
            question=question,
            model=model,
            look=look,
            repair_text=repair,
            severity=severity,
            lock=lock,
        )
        _checks.append(new)
        return new

    return registered


def all_checks() -> list[Check]:
    """Return the registered checks in the order in which they run."""
    return sorted(_checks, key=lambda check: GROUPS.index(check.group))


def rows_of(model: type[Model]) -> Rows:
    """Return a queryset of all rows of a model, ordered by primary key."""
    rows = model._default_manager.using(tables.database()).order_by("pk")
    return rows.unguarded() if isinstance(rows, GuardedQuerySet) else rows


def distinct(findings: Iterable[Finding]) -> list[Any]:
    """Return the distinct keys of these findings in the order in which they are locked."""
    return sorted({finding.key for finding in findings})


def batches(keys: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Return the keys in batches that are locked together."""
    return (keys[first : first + AT_ONCE] for first in range(0, len(keys), AT_ONCE))


@dataclass(frozen=True, slots=True)
class Page:
    """Consecutive rows in the order of keys, their number, and the part of the table read so far (0
    to 1).
    """

    rows: Rows
    number: int
    part: float


def pages(model: type[Model]) -> Iterator[Page]:
    """Yield the rows that exist now in pages; at least one page, so that missing rows are found."""
    rows, size = rows_of(model), NARROW.get(model, PAGE)
    keys = rows.values_list("pk", flat=True)
    first, last = keys.first(), keys.last()
    if last is None:
        yield Page(rows, 0, 1.0)
        return
    past, rows = None, rows.filter(pk__lte=last)
    while True:
        after = rows if past is None else rows.filter(pk__gt=past)
        upper = after.values_list("pk", flat=True)[size - 1 : size].first()
        if upper is None:
            yield Page(after, after.count(), 1.0)
            return
        yield Page(after.filter(pk__lte=upper), size, _part(first, upper, last))
        past = upper


def _part(first: Any, here: Any, last: Any) -> float:
    """Return the position of a key between two others (0 to 1); 0 if keys are not numbers."""
    low, at, high = (key.int if isinstance(key, uuid.UUID) else key for key in (first, here, last))
    if not isinstance(at, int) or high <= low:
        return 0.0
    return min(1.0, max(0.0, (at - low) / (high - low)))


# Locks --------------------------------------------------------------------------------------------


def lock_rows(model: type[Model], keys: Iterable[Any]) -> list[Any]:
    """Lock rows in primary-key order, inside ``atomic()``, and skip rows locked by other
    transactions.

    Return the keys of the locked rows.
    """
    these = rows_of(model).filter(pk__in=list(keys))
    return list(tables.locked_for_change(these, skip_locked=True).values_list("pk", flat=True))


def free_tasks(ids: Iterable[uuid.UUID | None]) -> set[uuid.UUID]:
    """Lock tasks; return all of these ids except those of tasks locked by other transactions.

    Ids of deleted tasks are returned too.
    """
    wanted = {task_id for task_id in ids if task_id is not None}
    locked = set(lock_rows(Task, sorted(wanted)))
    locked_by_others = (
        set(tables.tasks().filter(pk__in=wanted - locked).values_list("pk", flat=True))
        if wanted - locked
        else ()
    )
    return wanted.difference(locked_by_others)


def lock_edges(keys: Sequence[int]) -> list[int]:
    """Lock the tasks at both ends of these edges; return the edges whose tasks could be locked."""
    ends = list(
        rows_of(TaskDependency).filter(pk__in=keys).values_list("pk", "task_id", "depends_on_id")
    )
    free = free_tasks(task for _, *two in ends for task in two)
    return [pk for pk, *two in ends if free.issuperset(task for task in two if task is not None)]
