"""Runs an operation on a graph together with everything that follows from it, or previews it.

A preview executes the same statements in the same transaction, reads the resulting statuses and
rolls back. Nothing is published and no signal is sent, because Django discards the on-commit
callbacks of a transaction that is rolled back ("Performing actions after commit"). Called by
``operations``.
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
from django_durable_tasks.engine.audit.recorder import AuditRecorder, recorded
from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.db.deadlocks import retry_on_deadlock
from django_durable_tasks.engine.db.error_codes import LOCK_TIMEOUTS, code_of
from django_durable_tasks.engine.db.publish_on_commit import publish_after_commit
from django_durable_tasks.engine.dependencies import edges, resolve
from django_durable_tasks.engine.transitions.change_tracking import TrackedChanges, watching
from django_durable_tasks.exceptions import TransitionRefused
from django_durable_tasks.models import Task, WorkflowRun
from django_durable_tasks.rules.states import OPEN, Status

T = TypeVar("T")
_MANY = 2_000
_LOCK_TIMEOUT = 5
"""Seconds that a preview waits for a row lock."""


@dataclass(frozen=True, slots=True)
class StatusChange:
    """The change of one task. ``before`` and ``after`` are equal if only its edges or
    gates change.
    """

    task_id: uuid.UUID
    step: str
    name: str
    before: str
    after: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class GraphReport:
    """The changes of an operation, or of its preview, the oldest task first.

    ``stop_requested`` contains the RUNNING tasks that were requested to stop.
    """

    changes: tuple[StatusChange, ...]
    stop_requested: tuple[uuid.UUID, ...]
    dry_run: bool

    @property
    def total(self) -> int:
        """Return the number of tasks affected."""
        return len(self.changes) + len(self.stop_requested)


@dataclass(slots=True)
class GraphOperation:
    """The state of one operation: the tasks changed, those requested to stop, and tasks to report
    by name.

    ``resolve_again`` contains tasks whose last ending has to be resolved again.
    """

    watch: TrackedChanges
    stop_requested: set[uuid.UUID] = field(default_factory=set)
    named: dict[uuid.UUID, str] = field(default_factory=dict)
    resolve_again: set[uuid.UUID] = field(default_factory=set)

    def cancel(self, ids: Collection[uuid.UUID], why: str) -> None:
        """Cancel those of these tasks that wait and request RUNNING ones to stop, in primary-key
        order.
        """
        for some in in_parts(sorted(ids)):
            these = tables.tasks().filter(pk__in=some)
            transitions.cancel(these, why)
            # In a caller's transaction a RUNNING task is not locked. A retry may have made it wait
            # since.
            left = list(
                these.filter(status__in=OPEN, cancel_requested_at=None).values_list("pk", flat=True)
            )
            if left:
                transitions.request_cancel(these.filter(pk__in=left), why)
                self.stop_requested.update(left)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedOperation:
    """What the audit entry of an operation contains in addition to its changes.

    ``subject``: type, id and tenant of its object; None for a set of tasks.
    """

    name: str
    by: str
    reason: str
    subject: tuple[str, uuid.UUID, int] | None = None

    @contextmanager
    def recorded(self) -> Iterator[AuditRecorder]:
        """Record the changes of the block."""
        with recorded(self.name, by=self.by, reason=self.reason) as entry:
            if self.subject is not None:
                entry.subject(*self.subject)
            yield entry


def audited(
    name: str, by: str, reason: str, row: Task | WorkflowRun | None = None
) -> AuditedOperation:
    """Return what the entry of an operation on this object, or on a set of tasks, contains."""
    if row is None:
        return AuditedOperation(name=name, by=by, reason=reason)
    kind = "task" if isinstance(row, Task) else "workflow run"
    return AuditedOperation(name=name, by=by, reason=reason, subject=(kind, row.pk, row.tenant_id))


def carry_out(
    act: Callable[[GraphOperation], None], entry_of: AuditedOperation, *, dry_run: bool
) -> GraphReport:
    """Execute ``act`` and everything that follows from it in one transaction; with ``dry_run``,
    roll back.

    Both return the same report. Raises the errors of ``act``. Retries after a deadlock.
    """
    try:
        return _once(act, entry_of, dry_run)
    except OperationalError as error:
        if dry_run and code_of(error) in LOCK_TIMEOUTS:
            raise TransitionRefused(
                f"Tasks of this graph stayed locked for more than {_LOCK_TIMEOUT} s: try again."
            ) from error
        raise


@retry_on_deadlock
def _once(
    act: Callable[[GraphOperation], None], entry_of: AuditedOperation, dry_run: bool
) -> GraphReport:
    with watching(preview=dry_run) as watch, _transaction(entry_of, dry_run) as entry:
        operation = GraphOperation(watch)
        with _lock_timeout(dry_run):
            act(operation)
            _resolve_consequences(operation)
        report = _report(operation, dry_run)
        if entry is not None and operation.named:
            entry.detail(change="; ".join(operation.named.values()))
        if dry_run:
            transaction.set_rollback(True, using=tables.database())
    return report


@contextmanager
def _transaction(entry_of: AuditedOperation, dry_run: bool) -> Iterator[AuditRecorder | None]:
    """Open the transaction, and record what it changes unless it is a preview."""
    if dry_run:
        with tables.atomic():
            yield None
        return
    with entry_of.recorded() as entry:
        yield entry


@contextmanager
def _lock_timeout(dry_run: bool) -> Iterator[None]:
    """Limit how long a preview waits for row locks to ``_PATIENCE`` seconds."""
    connection = connections[tables.database()]
    if dry_run and connection.vendor == "postgresql":
        _set(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}s'")
    if not dry_run or connection.vendor != "mysql":
        yield
        return
    with connection.cursor() as cursor:
        cursor.execute("SHOW VARIABLES LIKE 'innodb_lock_wait_timeout'")
        _, before = cursor.fetchone()
    _set(f"SET innodb_lock_wait_timeout = {_LOCK_TIMEOUT}")
    try:
        yield
    finally:
        _set(f"SET innodb_lock_wait_timeout = {int(before)}")


def _set(sql: str) -> None:
    with connections[tables.database()].cursor() as cursor:
        cursor.execute(sql)


# Consequences -------------------------------------------------------------------------------------


def _resolve_consequences(operation: GraphOperation) -> None:
    """Resolve the endings that this operation caused, and those caused by them, until no task waits
    for one.
    """
    waiting = set(operation.resolve_again)
    while True:
        waiting |= operation.watch.latest
        operation.watch.latest.clear()
        events = _unresolved_endings(sorted(waiting))
        waiting = {task_id for _, task_id in events}
        moved = 0
        for some in in_parts(events):
            done = resolve.resolve_given_endings([event for event, _ in some])
            publish_after_commit(done.messages)
            moved += done.events
        if not moved:
            return


def _unresolved_endings(keys: Sequence[uuid.UUID]) -> list[tuple[int, uuid.UUID]]:
    """Return the unresolved ending events of the last endings of these tasks for which a BLOCKED
    task waits.

    Events of earlier endings are left to the leader, which may have locked them and may wait for a
    task that this transaction has locked.
    """
    last = tables.tasks().filter(pk=OuterRef("task_id"), epoch=OuterRef("epoch"))
    waits = (
        edges.edges()
        .unresolved()
        .filter(depends_on=OuterRef("task_id"), outcome__isnull=True, task__status=Status.BLOCKED)
    )
    found: list[tuple[int, uuid.UUID]] = []
    for some in in_parts(keys):
        events = edges.endings().unresolved().filter(Exists(last), Exists(waits), task_id__in=some)
        found += events.values_list("pk", "task_id")
    return found


def below(ids: Collection[uuid.UUID]) -> set[uuid.UUID]:
    """Return these tasks and all tasks that depend on them, of any status; one
    statement per level.
    """
    found, frontier = set(ids), set(ids)
    while frontier:
        under: set[uuid.UUID] = set()
        for some in in_parts(sorted(frontier)):
            under.update(edges.edges().below(some).values_list("task", flat=True))
        frontier = under - found
        found |= frontier
    return found


def _report(operation: GraphOperation, dry_run: bool) -> GraphReport:
    before, changes = operation.watch.before, []
    for some in in_parts(sorted({*before, *operation.named})):
        rows = (
            tables.tasks().filter(pk__in=some).values_list("pk", "step", "name", "status", "reason")
        )
        for key, step, name, status, reason in sorted(rows):
            reported = operation.named.get(key, "")
            if before.get(key, status) != status or key in operation.named:
                changes.append(
                    StatusChange(
                        key, step or "", name, before.get(key, status), status, reason or reported
                    )
                )
    return GraphReport(tuple(changes), tuple(sorted(operation.stop_requested)), dry_run)


def in_parts(found: Iterable[T]) -> Iterator[list[T]]:
    """Yield the items in parts small enough for the parameters of one statement."""
    items = list(found)
    for first in range(0, len(items), _MANY):
        yield items[first : first + _MANY]
