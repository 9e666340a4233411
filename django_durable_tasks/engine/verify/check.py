"""The parts of a check: reading a table in pages of its primary key, and confirming findings under
lock.

Rows change while they are read. So each suspected finding is checked again with the deciding rows
locked, which gives one consistent view. Rows that another transaction has locked are being changed,
and are skipped. A statement after a lock reads what was committed before it (PostgreSQL
documentation 13.2.1).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connections
from django.db.models import Model, QuerySet

from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.db.clock import database_now
from django_durable_tasks.exceptions import DurableTasksError
from django_durable_tasks.models import (
    RecurringTask,
    SchedulerLease,
    Task,
    TaskDependency,
    WorkflowRun,
)
from django_durable_tasks.models.guarded import GuardedQuerySet
from django_durable_tasks.rules.verify import Finding, Severity

Rows = QuerySet[Any]
PAGE = 5_000
"""Rows of a table per statement ..."""
NARROW: Mapping[type[Model], int] = {WorkflowRun: 50, RecurringTask: 200}
"""... and of tables with many dependent rows or a timetable per row."""
AT_ONCE = 100
"""Rows that are locked together to be checked again or repaired."""
PATIENCE = 60.0
"""Seconds by which a task may be later than the engine allows before it is reported."""


class Unreadable(DurableTasksError):
    """The server that a check reads in addition to the tables does not respond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The time of a check: the database's clock, whether there is a leader, and for how long that
    has not changed.

    If the leadership was unbroken for a while, the database was available. After an outage
    everything is late.
    """

    now: datetime
    led: bool
    steady: timedelta

    def may_judge(self, seconds: float) -> bool:
        """Return whether the leadership has not changed for this many seconds, so that a delay of
        this length is a finding.
        """
        return self.steady >= timedelta(seconds=seconds)

    def ago(self, seconds: float) -> datetime:
        """Return the instant this many seconds before now."""
        return self.now - timedelta(seconds=seconds)


def look() -> Look:
    """Read the clock and the leader's lease with two statements."""
    now = database_now()
    leases = SchedulerLease.objects.using(tables.database()).order_by("-expires_at")
    lease = leases.first()
    if lease is None or lease.expires_at <= now:
        return Look(now=now, led=False, steady=now - (lease.expires_at if lease else now))
    return Look(now=now, led=True, steady=now - (lease.acquired_at or now))


Judge = Callable[[Look, Rows], list[Finding]]
Hold = Callable[[Sequence[Any]], list[Any]]
Repair = Callable[[Look, Sequence[Finding]], Mapping[Any, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A check of the rows of a table.

    ``judge`` returns the findings for some rows, with a number of statements that does not depend
    on their number. ``hold`` locks the rows that decide about these keys and returns the keys it
    could lock. ``repair`` repairs findings whose rows are locked, and returns by key what it did.
    Findings that it leaves out need a person. ``idle`` returns why there is nothing to check, if
    so. Judges may raise Error and Unreadable.
    """

    name: str
    group: str
    question: str
    ground: type[Any]
    judge: Judge
    hold: Hold | None = None
    repair: Repair | None = None
    idle: Callable[[], str] | None = None

    @property
    def plural(self) -> str:
        """Return the name of the table."""
        return str(self.ground._meta.verbose_name_plural)

    def walk(self) -> Iterator[Page]:
        """Walk once through what it looks at."""
        return pages(self.ground)

    def guarded(self) -> AbstractContextManager[Any]:
        """Return the context of a second check or repair: a transaction, which keeps the locks."""
        found: AbstractContextManager[Any] = tables.atomic()
        return found

    def rows(self) -> Rows:
        """Return the query of all rows."""
        return ground_rows(self.ground)

    def held(self, keys: Sequence[Any]) -> Rows:
        """Lock the rows that decide about these, inside ``guarded()``; return the ones that could
        be locked.
        """
        got = self.hold(keys) if self.hold else held(self.ground, keys)
        return self.rows().filter(pk__in=got)

    def theirs(self, keys: Sequence[Any], rows: Rows) -> set[Any]:
        """Return the rows among these that exist and are locked by another transaction."""
        ours = list(rows.values_list("pk", flat=True))
        return set(
            self.rows().filter(pk__in=keys).exclude(pk__in=ours).values_list("pk", flat=True)
        )

    def confirmed(self, suspects: Sequence[Finding], most: int) -> list[Finding]:
        """Return the findings that remain with the rows locked. A batch that reaches ``most`` is
        the last.
        """
        found: list[Finding] = []
        for some in batches(distinct(suspects)):
            if len(found) >= most:
                break
            with self.guarded():
                found += self.judge(look(), self.held(some))
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class UnlockedCheck(Check):
    """A check of data in another server, which cannot be locked and is not read inside a
    transaction.

    Its judge reads the other server first and the rows afterwards, so that a row that changed in
    between is not a finding.
    """

    def guarded(self) -> AbstractContextManager[Any]:
        """Return a context without locks."""
        return nullcontext()

    def held(self, keys: Sequence[Any]) -> Rows:
        """Return these rows. Nothing is locked."""
        return self.rows().filter(pk__in=list(keys))

    def theirs(self, keys: Sequence[Any], rows: Rows) -> set[Any]:
        """Return an empty set. Nothing is locked."""
        return set()


def ground_rows(ground: type[Model]) -> Rows:
    """Return the query of all rows of a table."""
    rows = ground._default_manager.using(tables.database()).order_by("pk")
    return rows.unguarded() if isinstance(rows, GuardedQuerySet) else rows


def distinct(findings: Iterable[Finding]) -> list[Any]:
    """Return the distinct keys of these findings, in lock order."""
    return sorted({finding.key for finding in findings})


def batches(keys: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Return the keys in batches that are locked together."""
    return (keys[first : first + AT_ONCE] for first in range(0, len(keys), AT_ONCE))


@dataclass(frozen=True, slots=True)
class Page:
    """A page of rows in primary-key order: the query, the number of rows, and the position in the
    table.
    """

    rows: Rows
    number: int
    part: float


def pages(ground: type[Model]) -> Iterator[Page]:
    """Yield the pages of the rows that exist now; at least one page, so that missing rows are
    noticed.
    """
    rows, size = ground_rows(ground), NARROW.get(ground, PAGE)
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
    """Return the relative position of a key between two others; keys that are not numbers have
    none.
    """
    low, at, high = (key.int if isinstance(key, uuid.UUID) else key for key in (first, here, last))
    if not isinstance(at, int) or high <= low:
        return 0.0
    return min(1.0, max(0.0, (at - low) / (high - low)))


# Locks --------------------------------------------------------------------------------------------


def held(ground: type[Model], keys: Iterable[Any]) -> list[Any]:
    """Lock rows in primary-key order, inside ``atomic()``; return the keys that no other
    transaction has locked.
    """
    features = connections[tables.database()].features
    how: dict[str, Any] = {
        "skip_locked": features.has_select_for_update_skip_locked,
        "no_key": features.has_select_for_no_key_update,
    }
    these = ground_rows(ground).filter(pk__in=list(keys))
    return list(these.select_for_update(**how).values_list("pk", flat=True))


def free_tasks(ids: Iterable[uuid.UUID | None]) -> set[uuid.UUID]:
    """Lock tasks; return those that could be locked or do not exist."""
    wanted = {task_id for task_id in ids if task_id is not None}
    got = set(held(Task, sorted(wanted)))
    theirs = (
        set(tables.tasks().filter(pk__in=wanted - got).values_list("pk", flat=True))
        if wanted - got
        else ()
    )
    return wanted.difference(theirs)


def hold_edges(keys: Sequence[int]) -> list[int]:
    """Lock the tasks at both ends of these edges; return the edges of which both could be
    locked.
    """
    ends = list(
        ground_rows(TaskDependency)
        .filter(pk__in=keys)
        .values_list("pk", "task_id", "depends_on_id")
    )
    free = free_tasks(task for _, *two in ends for task in two)
    return [pk for pk, *two in ends if free.issuperset(task for task in two if task is not None)]


def finding(
    check: str, table: str, key: Any, field: str, found: Any, right: str, **more: Any
) -> Finding:
    """Return a finding, by default with level BROKEN."""
    return Finding(
        check=check,
        table=table,
        key=key,
        field=field,
        found=found,
        right=right,
        **{"severity": Severity.BROKEN, **more},
    )
