"""The framework of ``durable verify``: checks and their findings, the reading of tables in pages by
primary key, and locks.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from inspect import getdoc
from typing import Any

from django.db.models import Model, QuerySet

from django_durable_tasks import models
from django_durable_tasks.models.guarded import GuardedQuerySet
from django_durable_tasks.store import tables
from django_durable_tasks.store.clock import database_now

# Tasks change while a page is read. A finding of the first, unlocked read is therefore checked
# again with the rows that decide about it locked. A statement after a lock reads everything that
# was committed before it (PostgreSQL documentation 13.2.1). Rows locked by other transactions are
# skipped, because they are changing.

Rows = QuerySet[Any]
# Rows per page.
PAGE = 5_000
# Rows per page of the models whose rows need more work each.
NARROW: Mapping[type[Model], int] = {models.WorkflowRun: 50, models.RecurringTask: 200}
# Rows that are locked together, to be checked again or repaired.
AT_ONCE = 100
# Seconds after which something is reported as late, beyond the delay that the engine itself allows.
PATIENCE = 60.0


class Severity(StrEnum):
    """The severity of a finding."""

    BROKEN = "BROKEN"
    """A guarantee of the engine is violated."""
    LATE = "LATE"
    """A step that should have been done by now is missing."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A wrong row: its primary key, a field, the value of the field, and the right one in words.

    ``check``, ``table``, ``severity`` and ``repair`` are those of the check unless it gives them.
    ``repair`` describes what ``durable verify --repair`` does. If it is empty, ``advice`` describes
    what an operator can do. ``value`` is the value that a repair writes, if the check computes it.
    """

    key: Any
    field: str
    found: Any
    right: str
    advice: str = ""
    repair: str | None = None
    severity: Severity | None = None
    table: str = ""
    check: str = ""
    value: Any = None

    @property
    def text(self) -> str:
        """The finding as a sentence."""
        return (
            f"{self.table} {self.key}: {self.field} is {shown(self.found)}; right is {self.right}."
        )


def shown(value: Any) -> str:
    """Return a value as text; instants in UTC."""
    if value is None:
        return "empty"
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return str(value) if isinstance(value, int | str) and value != "" else repr(value)


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
    leases = models.SchedulerLease.objects.using(tables.database()).order_by("-expires_at")
    lease = leases.first()
    if lease is None or lease.expires_at <= now:
        return VerifyContext(now=now, led=False, steady=now - (lease.expires_at if lease else now))
    return VerifyContext(now=now, led=True, steady=now - (lease.acquired_at or now))


Look = Callable[[VerifyContext, Rows], Iterable[Finding]]
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

    def find(self, context: VerifyContext, rows: Rows) -> list[Finding]:
        """Return the findings of these rows."""
        return [
            replace(
                finding,
                check=self.name,
                severity=finding.severity or self.severity,
                table=finding.table or str(self.model._meta.verbose_name),
                repair=self.repair_text if finding.repair is None else finding.repair,
            )
            for finding in self.look(context, rows)
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
        findings: list[Finding] = []
        for keys in batches(distinct(candidates)):
            if len(findings) >= most:
                break
            with tables.atomic():
                findings += self.find(read_context(), self.lock_rows(keys))
        return findings


def check(
    name: str,
    model: type[Any],
    group: str,
    *,
    repair: str = "",
    late: bool = False,
    lock: Lock | None = None,
    question: str = "",
) -> Callable[[Look], Check]:
    """Decorator: register the check whose ``look`` is the function.

    Its question is the first paragraph of the docstring, unless ``question`` is given. ``repair``:
    what the repair does. ``late``: its findings are LATE instead of BROKEN.
    """

    def registered(look: Look) -> Check:
        asked = question or " ".join((getdoc(look) or "").partition("\n\n")[0].split())
        new = Check(
            name=name,
            group=group,
            question=asked,
            model=model,
            look=look,
            repair_text=repair,
            severity=Severity.LATE if late else Severity.BROKEN,
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
    queryset = rows_of(model).filter(pk__in=list(keys))
    return list(tables.locked_for_change(queryset, skip_locked=True).values_list("pk", flat=True))


def free_tasks(ids: Iterable[uuid.UUID | None]) -> set[uuid.UUID]:
    """Lock tasks; return all of these ids except those of tasks locked by other transactions.

    Ids of deleted tasks are returned too.
    """
    task_ids = {task_id for task_id in ids if task_id is not None}
    locked = set(lock_rows(models.Task, sorted(task_ids)))
    if task_ids == locked:
        return task_ids
    locked_by_others = tables.tasks().filter(pk__in=task_ids - locked)
    return task_ids.difference(locked_by_others.values_list("pk", flat=True))


def lock_edges(keys: Sequence[int]) -> list[int]:
    """Lock the tasks at both ends of these edges; return the edges whose tasks could be locked."""
    edges = rows_of(models.TaskDependency).filter(pk__in=keys)
    ends = list(edges.values_list("pk", "task_id", "depends_on_id"))
    free = free_tasks(task for _, *two in ends for task in two)
    return [pk for pk, *two in ends if free.issuperset(task for task in two if task is not None)]
