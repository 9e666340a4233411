"""How the tables are looked at: in pages of the key's order, and each suspicion once more under
lock.

Rows move while somebody looks. So what one look suspects is judged anew with the rows that decide
about it locked: by the lock it is one view, and what was on its way has arrived. Rows that somebody
else holds are moving, and are not waited for. Facts: a statement after a lock sees what was
committed before it (PostgreSQL documentation 13.2.1).
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
"""How many rows of a table one statement looks at ..."""
NARROW: Mapping[type[Model], int] = {WorkflowRun: 50, RecurringTask: 200}
"""... and of those that have many rows of their own, or an agenda."""
AT_ONCE = 100
"""How many rows are locked together, to be judged anew or repaired."""
PATIENCE = 60.0
"""For so long (seconds) nobody is called late beyond what the engine itself allows."""


class Unreadable(DurableTasksError):
    """What a check looks at beside the tables does not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The moment of a look: the database's now, whether somebody leads, and for how long that has
    not changed.

    A reign that was not broken for a while proves that the database was there: after an outage
    everything is late.
    """

    now: datetime
    led: bool
    steady: timedelta

    def may_judge(self, seconds: float) -> bool:
        """Return whether what is late by so much is late by its own fault."""
        return self.steady >= timedelta(seconds=seconds)

    def ago(self, seconds: float) -> datetime:
        """Return the instant so many seconds before now."""
        return self.now - timedelta(seconds=seconds)


def look() -> Look:
    """Read the clock and the leader's lease; two statements."""
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
    """One question to the rows of a table.

    ``judge`` answers it for some rows by a number of statements that does not depend on how many
    they are; ``hold`` locks what decides about the rows of these keys, and returns those it got;
    ``repair`` mends findings whose rows are held, and returns by key what it did: what it leaves
    out is left to people. ``idle`` says why there is nothing to look at here, if so. Judges may
    raise Error, and Unreadable.
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
        """Name what it looks at."""
        return str(self.ground._meta.verbose_name_plural)

    def walk(self) -> Iterator[Page]:
        """Walk once through what it looks at."""
        return pages(self.ground)

    def guarded(self) -> AbstractContextManager[Any]:
        """Return what a second look and a repair happen in: a transaction, which keeps what is
        locked.
        """
        found: AbstractContextManager[Any] = tables.atomic()
        return found

    def rows(self) -> Rows:
        """Return all rows of its table."""
        return ground_rows(self.ground)

    def held(self, keys: Sequence[Any]) -> Rows:
        """Lock what decides about these rows, inside ``guarded()``; return the rows that nobody
        else holds.
        """
        got = self.hold(keys) if self.hold else held(self.ground, keys)
        return self.rows().filter(pk__in=got)

    def theirs(self, keys: Sequence[Any], rows: Rows) -> set[Any]:
        """Return which of these are there and somebody else's, when ``rows`` could be held."""
        ours = list(rows.values_list("pk", flat=True))
        return set(
            self.rows().filter(pk__in=keys).exclude(pk__in=ours).values_list("pk", flat=True)
        )

    def confirmed(self, suspects: Sequence[Finding], most: int) -> list[Finding]:
        """Return what is still found when the rows are locked; a batch that reaches ``most`` is the
        last.
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
    """A check of what stands in another server too, which nobody can lock and nobody asks inside a
    transaction.

    Its judge reads the other server first and the rows afterwards, so that a row which moved
    between is no finding.
    """

    def guarded(self) -> AbstractContextManager[Any]:
        """Return nothing that holds anything."""
        return nullcontext()

    def held(self, keys: Sequence[Any]) -> Rows:
        """Return these rows."""
        return self.rows().filter(pk__in=list(keys))

    def theirs(self, keys: Sequence[Any], rows: Rows) -> set[Any]:
        """Return none: nobody holds anything."""
        return set()


def ground_rows(ground: type[Model]) -> Rows:
    """Return all rows of a table."""
    rows = ground._default_manager.using(tables.database()).order_by("pk")
    return rows.unguarded() if isinstance(rows, GuardedQuerySet) else rows


def distinct(findings: Iterable[Finding]) -> list[Any]:
    """Return the keys of these findings, each once, in the order in which they are locked."""
    return sorted({finding.key for finding in findings})


def batches(keys: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Return the keys in batches that are locked together."""
    return (keys[first : first + AT_ONCE] for first in range(0, len(keys), AT_ONCE))


@dataclass(frozen=True, slots=True)
class Page:
    """Some rows that follow each other in the key's order: the question for them, how many, and how
    far that is.
    """

    rows: Rows
    number: int
    part: float


def pages(ground: type[Model]) -> Iterator[Page]:
    """Walk once through the rows that are there now; at least one page, so that what is missing is
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
    """Return how far a key lies between two others; keys that are no numbers say nothing."""
    low, at, high = (key.int if isinstance(key, uuid.UUID) else key for key in (first, here, last))
    if not isinstance(at, int) or high <= low:
        return 0.0
    return min(1.0, max(0.0, (at - low) / (high - low)))


# Locks --------------------------------------------------------------------------------------------


def held(ground: type[Model], keys: Iterable[Any]) -> list[Any]:
    """Lock rows in primary-key order, inside ``atomic()``; return the keys of those that nobody
    else holds.
    """
    features = connections[tables.database()].features
    how: dict[str, Any] = {
        "skip_locked": features.has_select_for_update_skip_locked,
        "no_key": features.has_select_for_no_key_update,
    }
    these = ground_rows(ground).filter(pk__in=list(keys))
    return list(these.select_for_update(**how).values_list("pk", flat=True))


def free_tasks(ids: Iterable[uuid.UUID | None]) -> set[uuid.UUID]:
    """Lock tasks, and return those that are ours or gone: all but those that somebody
    else holds.
    """
    wanted = {task_id for task_id in ids if task_id is not None}
    got = set(held(Task, sorted(wanted)))
    theirs = (
        set(tables.tasks().filter(pk__in=wanted - got).values_list("pk", flat=True))
        if wanted - got
        else ()
    )
    return wanted.difference(theirs)


def hold_edges(keys: Sequence[int]) -> list[int]:
    """Lock the tasks on both ends of these edges; return the edges of which nobody else
    holds one.
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
    """Return a finding, BROKEN where nothing else is said."""
    return Finding(
        check=check,
        table=table,
        key=key,
        field=field,
        found=found,
        right=right,
        **{"severity": Severity.BROKEN, **more},
    )
