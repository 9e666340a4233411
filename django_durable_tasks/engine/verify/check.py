"""The framework of ``durable verify``: reads tables in pages by primary key and confirms findings
under lock.

Tasks change while a page is read. A finding of the first, unlocked read is therefore checked again
with the rows that decide about it locked. A statement after a lock reads everything that was
committed before it (PostgreSQL documentation 13.2.1). Rows locked by other transactions are
skipped, because they are changing. Used by the modules of this package and by
``due_index/verify.py``.
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


Find = Callable[[VerifyContext, Rows], list[Finding]]
Lock = Callable[[Sequence[Any]], list[Any]]
Repair = Callable[[VerifyContext, Sequence[Finding]], Mapping[Any, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One question about the rows of a table.

    ``find`` returns the findings of some rows, with a number of statements that does not depend on
    the number of rows. ``lock`` locks the rows that decide about the given keys, and returns the
    keys it could lock. ``repair`` corrects findings whose rows are locked, and returns its action
    by key; findings that it leaves out need an operator. ``idle`` returns why there is nothing to
    check, or an empty string. It may raise Error and Unreadable.
    """

    name: str
    group: str
    question: str
    ground: type[Any]
    find: Find
    lock: Lock | None = None
    repair: Repair | None = None
    idle: Callable[[], str] | None = None

    @property
    def plural(self) -> str:
        """The plural name of the model."""
        return str(self.ground._meta.verbose_name_plural)

    def walk(self) -> Iterator[Page]:
        """Yield the pages of the table, once."""
        return pages(self.ground)

    def guarded(self) -> AbstractContextManager[Any]:
        """Return the context of a confirmation or repair: a transaction, so that locks are kept."""
        found: AbstractContextManager[Any] = tables.atomic()
        return found

    def rows(self) -> Rows:
        """Return a queryset of all rows of the table."""
        return ground_rows(self.ground)

    def lock_rows(self, keys: Sequence[Any]) -> Rows:
        """Lock the rows that decide about these keys, inside ``guarded()``; return the rows that
        could be locked.
        """
        got = self.lock(keys) if self.lock else lock_rows(self.ground, keys)
        return self.rows().filter(pk__in=got)

    def theirs(self, keys: Sequence[Any], rows: Rows) -> set[Any]:
        """Return the keys that exist but are locked by other transactions; ``rows`` could be
        locked.
        """
        own_keys = list(rows.values_list("pk", flat=True))
        return set(
            self.rows().filter(pk__in=keys).exclude(pk__in=own_keys).values_list("pk", flat=True)
        )

    def confirmed(self, candidates: Sequence[Finding], most: int) -> list[Finding]:
        """Return the findings that remain when their rows are locked; stops after the batch that
        reaches ``most``.
        """
        found: list[Finding] = []
        for some in batches(distinct(candidates)):
            if len(found) >= most:
                break
            with self.guarded():
                found += self.find(read_context(), self.lock_rows(some))
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class UnlockedCheck(Check):
    """A check that also reads another server, which cannot be locked; it runs without a
    transaction.

    ``find`` reads the other server first and the rows second, so that a row that changed in
    between is no finding.
    """

    def guarded(self) -> AbstractContextManager[Any]:
        """Return a context without a transaction."""
        return nullcontext()

    def lock_rows(self, keys: Sequence[Any]) -> Rows:
        """Return these rows without a lock."""
        return self.rows().filter(pk__in=list(keys))

    def theirs(self, keys: Sequence[Any], rows: Rows) -> set[Any]:
        """Return an empty set, because nothing is locked."""
        return set()


def ground_rows(ground: type[Model]) -> Rows:
    """Return a queryset of all rows of a model, ordered by primary key."""
    rows = ground._default_manager.using(tables.database()).order_by("pk")
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


def pages(ground: type[Model]) -> Iterator[Page]:
    """Yield the rows that exist now in pages; at least one page, so that missing rows are found."""
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
    """Return the position of a key between two others (0 to 1); 0 if keys are not numbers."""
    low, at, high = (key.int if isinstance(key, uuid.UUID) else key for key in (first, here, last))
    if not isinstance(at, int) or high <= low:
        return 0.0
    return min(1.0, max(0.0, (at - low) / (high - low)))


# Locks --------------------------------------------------------------------------------------------


def lock_rows(ground: type[Model], keys: Iterable[Any]) -> list[Any]:
    """Lock rows in primary-key order, inside ``atomic()``, and skip rows locked by other
    transactions.

    Return the keys of the locked rows.
    """
    features = connections[tables.database()].features
    lock_options: dict[str, Any] = {
        "skip_locked": features.has_select_for_update_skip_locked,
        "no_key": features.has_select_for_no_key_update,
    }
    these = ground_rows(ground).filter(pk__in=list(keys))
    return list(these.select_for_update(**lock_options).values_list("pk", flat=True))


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
        ground_rows(TaskDependency)
        .filter(pk__in=keys)
        .values_list("pk", "task_id", "depends_on_id")
    )
    free = free_tasks(task for _, *two in ends for task in two)
    return [pk for pk, *two in ends if free.issuperset(task for task in two if task is not None)]


def finding(
    check: str, table: str, key: Any, field: str, found: Any, right: str, **more: Any
) -> Finding:
    """Return a finding with severity BROKEN, unless ``more`` sets another one."""
    return Finding(
        check=check,
        table=table,
        key=key,
        field=field,
        found=found,
        right=right,
        **{"severity": Severity.BROKEN, **more},
    )
