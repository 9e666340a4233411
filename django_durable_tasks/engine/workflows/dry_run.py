"""Executes an operation on dependent tasks with all its consequences, or previews it.

A preview executes the same statements in the same transaction and rolls it back after reading the
result. Nothing is published and no signal is sent, because a rolled back transaction discards its
on_commit functions (Django, "Performing actions after commit").
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from django.db import OperationalError, connections, transaction
from django.db.models import Exists, OuterRef

from django_durable_tasks.engine import transitions
from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.db.deadlocks import LOCKED, code_of, retry_on_deadlock
from django_durable_tasks.engine.db.publish_on_commit import publish_after_commit
from django_durable_tasks.engine.dependencies import edges, resolve
from django_durable_tasks.engine.transitions.change_tracking import Watch, watching
from django_durable_tasks.exceptions import TransitionRefused
from django_durable_tasks.rules.states import OPEN, Status

T = TypeVar("T")
_MANY = 2_000
_PATIENCE = 5
"""Seconds for which a preview waits for a locked row."""


@dataclass(frozen=True, slots=True)
class Change:
    """The change of one task by an operation. ``before`` and ``after`` are equal if only its edges
    or gates change.
    """

    task_id: uuid.UUID
    step: str
    name: str
    before: str
    after: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """The changes of an operation or preview, the oldest task first. ``asked`` are RUNNING tasks
    that are requested to stop.
    """

    changes: tuple[Change, ...]
    asked: tuple[uuid.UUID, ...]
    dry_run: bool

    @property
    def total(self) -> int:
        """Return how many tasks are affected."""
        return len(self.changes) + len(self.asked)


@dataclass(slots=True)
class Operation:
    """An operation in progress: the changed tasks, the tasks requested to stop, and the tasks that
    it names itself.
    """

    watch: Watch
    asked: set[uuid.UUID] = field(default_factory=set)
    named: dict[uuid.UUID, str] = field(default_factory=dict)
    also_told: set[uuid.UUID] = field(default_factory=set)

    def cancel(self, ids: Collection[uuid.UUID], why: str) -> None:
        """Cancel the waiting tasks among these and request running ones to stop, in primary-key
        order.
        """
        for some in in_parts(sorted(ids)):
            these = tables.tasks().filter(pk__in=some)
            transitions.cancel(these, why)
            # In a transaction of the caller a RUNNING task is not locked, so a retry may have made
            # it PENDING since.
            left = list(
                these.filter(status__in=OPEN, cancel_requested_at=None).values_list("pk", flat=True)
            )
            if left:
                transitions.request_cancel(these.filter(pk__in=left), why)
                self.asked.update(left)


def carry_out(act: Callable[[Operation], None], *, dry_run: bool) -> Report:
    """Execute the operation and its consequences in one transaction; with ``dry_run`` roll it back.

    The report is the same in both cases. Raises the errors of the operation. A deadlock is retried.
    """
    try:
        return _once(act, dry_run)
    except OperationalError as error:
        if dry_run and code_of(error) in LOCKED:
            raise TransitionRefused(
                f"Rows of this graph are held by other work for more than {_PATIENCE} s: ask again."
            ) from error
        raise


@retry_on_deadlock
def _once(act: Callable[[Operation], None], dry_run: bool) -> Report:
    with watching(preview=dry_run) as watch, tables.atomic():
        operation = Operation(watch)
        with _patience(dry_run):
            act(operation)
            _follow(operation)
        report = _report(operation, dry_run)
        if dry_run:
            transaction.set_rollback(True, using=tables.database())
    return report


@contextmanager
def _patience(dry_run: bool) -> Iterator[None]:
    """Limit how long a preview waits for locked rows, in the transaction that is rolled back."""
    connection = connections[tables.database()]
    if dry_run and connection.vendor == "postgresql":
        _set(f"SET LOCAL lock_timeout = '{_PATIENCE}s'")
    if not dry_run or connection.vendor != "mysql":
        yield
        return
    with connection.cursor() as hand:
        hand.execute("SHOW VARIABLES LIKE 'innodb_lock_wait_timeout'")
        _, before = hand.fetchone()
    _set(f"SET innodb_lock_wait_timeout = {_PATIENCE}")
    try:
        yield
    finally:
        _set(f"SET innodb_lock_wait_timeout = {int(before)}")


def _set(sql: str) -> None:
    with connections[tables.database()].cursor() as hand:
        hand.execute(sql)


# What follows -------------------------------------------------------------------------------------


def _follow(operation: Operation) -> None:
    """Resolve the endings that this operation caused, and those that they cause, until no task
    depends on them.
    """
    waiting = set(operation.also_told)
    while True:
        waiting |= operation.watch.latest
        operation.watch.latest.clear()
        notes = _untold(sorted(waiting))
        waiting = {task_id for _, task_id in notes}
        moved = 0
        for some in in_parts(notes):
            done = resolve.resolve_given_endings([note for note, _ in some])
            publish_after_commit(done.messages)
            moved += done.events
        if not moved:
            return


def _untold(keys: Sequence[uuid.UUID]) -> list[tuple[int, uuid.UUID]]:
    """Return the events of these tasks' last endings on which tasks depend. The leader resolves all
    others.

    The leader may have locked events of earlier endings while it waits for a task that this
    operation has locked.
    """
    last = tables.tasks().filter(pk=OuterRef("task_id"), epoch=OuterRef("epoch"))
    waits = (
        edges.edges()
        .unresolved()
        .filter(depends_on=OuterRef("task_id"), outcome__isnull=True, task__status=Status.BLOCKED)
    )
    found: list[tuple[int, uuid.UUID]] = []
    for some in in_parts(keys):
        notes = edges.endings().unresolved().filter(Exists(last), Exists(waits), task_id__in=some)
        found += notes.values_list("pk", "task_id")
    return found


def below(ids: Collection[uuid.UUID]) -> set[uuid.UUID]:
    """Return these tasks and all tasks that depend on them, whatever their status; one statement
    per level.
    """
    found, frontier = set(ids), set(ids)
    while frontier:
        under: set[uuid.UUID] = set()
        for some in in_parts(sorted(frontier)):
            under.update(edges.edges().below(some).values_list("task", flat=True))
        frontier = under - found
        found |= frontier
    return found


def _report(operation: Operation, dry_run: bool) -> Report:
    before, changes = operation.watch.before, []
    for some in in_parts(sorted({*before, *operation.named})):
        rows = (
            tables.tasks().filter(pk__in=some).values_list("pk", "step", "name", "status", "reason")
        )
        for key, step, name, status, reason in sorted(rows):
            said = operation.named.get(key, "")
            if before.get(key, status) != status or key in operation.named:
                changes.append(
                    Change(key, step or "", name, before.get(key, status), status, reason or said)
                )
    return Report(tuple(changes), tuple(sorted(operation.asked)), dry_run)


def in_parts(found: Iterable[T]) -> Iterator[list[T]]:
    """Return parts that fit into one statement."""
    whole = list(found)
    for first in range(0, len(whole), _MANY):
        yield whole[first : first + _MANY]
