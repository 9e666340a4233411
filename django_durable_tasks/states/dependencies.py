"""The transitions of dependencies: release, block, skip, fail and force_run.

``dependencies/`` calls them.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import connections, transaction
from django.db.models import Case, F, Value, When

from django_durable_tasks import ports
from django_durable_tasks.choices import Status
from django_durable_tasks.exceptions import TransitionRefused
from django_durable_tasks.models import Task
from django_durable_tasks.models.fields import DatabaseNow
from django_durable_tasks.models.tasks import TaskQuerySet
from django_durable_tasks.states.claims import BlockedDependent, ClaimedTask
from django_durable_tasks.states.guarded_update import (
    CLOSED,
    IDLE,
    PART,
    REOPENED,
    TRIES,
    Pair,
    announce,
    locked,
    move,
)
from django_durable_tasks.states.machine import TRANSITIONS
from django_durable_tasks.store import tables
from django_durable_tasks.store.clock import after
from django_durable_tasks.store.dialects import POSTGRESQL, sql, verb

_DUE: Any = Case(When(run_at__gt=tables.NOW, then=F("run_at")), default=tables.NOW)


def _by_row(values: Mapping[uuid.UUID, Any]) -> Case:
    return Case(
        *(When(pk=task_id, then=Value(value)) for task_id, value in values.items()), default=None
    )


def lock_rows(ids: Sequence[uuid.UUID], *, even_running: bool = False) -> dict[uuid.UUID, Task]:
    """Lock these rows in primary-key order, in any status, and return those that exist.

    Must be called inside ``atomic()``. In a transaction that the caller opened, RUNNING rows are
    read without a lock, unless ``even_running``. ``read_at`` of each row is the time of the
    database when it read the row.
    """
    if even_running or not tables.callers_transaction():
        return {row.pk: row for row in tables.locked_for_change(_rows(ids))}
    return _lock_idle(sorted(set(ids)))


def _lock_idle(ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, Task]:
    """Lock those of these rows that are not RUNNING, in one statement.

    If a row starts before it is locked, the statement is repeated up to TRIES times. After that the
    rows are locked in smaller parts. Raises TransitionRefused if a single row keeps changing.
    """
    for _ in range(TRIES):
        rows = {row.pk: row for row in _rows(ids)}
        idle = [row.pk for row in rows.values() if row.status != Status.RUNNING]
        with tables.atomic():
            # PostgreSQL also locks rows that started while the statement waited for their locks.
            # The rollback to the savepoint unlocks them.
            locked_rows = {
                row.pk: row
                for row in tables.locked_for_change(_rows(idle).filter(status__standing=IDLE))
            }
            if len(locked_rows) == len(idle):
                return rows | locked_rows
            transaction.set_rollback(True, using=tables.database())
    if len(ids) == 1:
        raise TransitionRefused(
            f"Task {ids[0]} was not locked after {TRIES} attempts because of concurrent updates;"
            " retry the call."
        )
    size, all_rows = PART if len(ids) > PART else 1, dict[uuid.UUID, Task]()
    for first in range(0, len(ids), size):
        all_rows |= _lock_idle(ids[first : first + size])
    return all_rows


def lock_free(ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, Task]:
    """Lock these rows and return them in primary-key order.

    Rows that other transactions have locked are left out.
    """
    pairs = locked(tables.tasks().filter(pk__in=list(ids)), len(ids))
    return {row.pk: row for row in _rows([task_id for task_id, _ in pairs])}


def _rows(ids: Sequence[uuid.UUID]) -> TaskQuerySet:
    queryset: TaskQuerySet = (
        tables.tasks()
        .filter(pk__in=sorted(ids))
        .order_by("pk")
        .defer("args", "kwargs", "result", "progress", "position")
        .annotate(read_at=DatabaseNow())
    )
    return queryset


def release(pairs: Sequence[Pair]) -> int:
    """BLOCKED to PENDING, because the join is met; due at ``run_at``, or now if that has passed."""
    return move("release", pairs, Status.PENDING, due_at=_DUE, unresolved_dependencies_count=0)


def release_and_publish(pairs: Sequence[Pair], wait: float) -> int:
    """BLOCKED to QUEUED for tasks that are due now; the caller publishes them after the commit.

    ``wait``: the seconds after which a task is republished unless it has started.
    """
    return move(
        "release",
        pairs,
        Status.QUEUED,
        ready_at=None,
        queued_at=DatabaseNow(),
        due_at=after(wait),
        publish_count=1,
        unresolved_dependencies_count=0,
    )


@dataclass(frozen=True, slots=True)
class Released:
    """The result of one ``release_met`` statement.

    ``events``: how many ending events it read. ``more``: whether it has to be repeated. ``left``:
    the ids of the events that it did not resolve. ``moved``: how many tasks it released.
    ``queued``: those of them that the caller publishes.
    """

    events: int
    more: bool
    left: Sequence[int]
    moved: int
    queued: Sequence[ClaimedTask]


@verb
def blocked_dependents(task_id: uuid.UUID, limit: int) -> list[BlockedDependent] | None:
    """Return at most ``limit`` dependents of an ended task whose edges have no outcome yet.

    Returns None if this database has no statement for it. The caller then reads the edges.
    """
    return None


@blocked_dependents.on(POSTGRESQL)
def _blocked_dependents_in_one_statement(
    task_id: uuid.UUID, limit: int
) -> list[BlockedDependent] | None:
    rows = tables.read(sql("below"), {"id": task_id, "limit": limit})
    return [BlockedDependent._make(row) for row in rows]


@verb
def release_met(
    events: Sequence[int], limit: int, queues: Sequence[str], limited: Sequence[str], wait: float
) -> Released | None:
    """BLOCKED to PENDING or QUEUED for tasks whose joins these ending events meet.

    Due tasks of ``queues`` whose names are not in ``limited`` become QUEUED, all others PENDING.
    One statement reads at most ``limit`` edges. Returns None if this database has no such
    statement. The caller then locks the dependents and decides for each.
    """
    return None


@release_met.on(POSTGRESQL)
def _release_met_in_one_statement(
    events: Sequence[int], limit: int, queues: Sequence[str], limited: Sequence[str], wait: float
) -> Released | None:
    alone = not connections[tables.database()].in_atomic_block
    parameters = {"events": list(events), "limit": limit, "wait": wait, "alone": alone}
    parameters |= {"open": list(queues), "limited": list(limited)}
    rows = tables.read(sql("resolve_endings"), parameters)
    ((number, more, remaining, *_), *_) = rows
    # After the first four columns: the new status, and what a claim returns.
    released = [(row[4], ClaimedTask._make(row[5:])) for row in rows if row[4] is not None]
    pending = [task for status, task in released if status == Status.PENDING]
    queued = [task for status, task in released if status == Status.QUEUED]
    announce("release", Status.PENDING, [task.id for task in pending])
    announce("release", Status.QUEUED, [task.id for task in queued])
    if pending:
        ports.due.rescheduled(min(task.run_at for task in pending))
    return Released(number, more, remaining, len(released), queued)


def block(queryset: TaskQuerySet) -> list[uuid.UUID]:
    """PENDING to BLOCKED, because the task got one more dependency; return the locked ids."""
    with tables.atomic():
        pairs = locked(queryset.filter(status__in=TRANSITIONS["block"].sources))
        move("block", pairs, Status.BLOCKED, due_at=None, waiting_for_limit=None)
    return [task_id for task_id, _ in pairs]


def skip_blocked(
    pairs: Sequence[Pair], reasons: Mapping[uuid.UUID, str], causes: Mapping[uuid.UUID, uuid.UUID]
) -> int:
    """BLOCKED to SKIPPED, because the join cannot be met anymore."""
    return move(
        "skip", pairs, Status.SKIPPED, reason=_by_row(reasons), cause=_by_row(causes), **CLOSED
    )


def fail_blocked(
    pairs: Sequence[Pair], reasons: Mapping[uuid.UUID, str], causes: Mapping[uuid.UUID, uuid.UUID]
) -> int:
    """BLOCKED to FAILED, because the join cannot be met anymore.

    The caller opens the dead letters.
    """
    return move(
        "fail", pairs, Status.FAILED, reason=_by_row(reasons), cause=_by_row(causes), **CLOSED
    )


def force_run(queryset: TaskQuerySet, reason: str) -> list[uuid.UUID]:
    """BLOCKED or SKIPPED to PENDING, due now, although the join is not met; return the ids."""
    with tables.atomic():
        pairs = locked(queryset.filter(status__in=TRANSITIONS["force_run"].sources))
        writes = {**REOPENED, "reason": reason, "unresolved_dependencies_count": 0}
        move("force_run", pairs, Status.PENDING, due_at=tables.NOW, **writes)
    return [task_id for task_id, _ in pairs]


def replay_blocked(pairs: Sequence[Pair], name: str = "replay", *, reason: str = "") -> int:
    """Ended tasks to BLOCKED: they wait for their upstreams again, and both budgets are renewed.

    ``name`` is ``replay``, or ``rerun`` for tasks that succeeded.
    """
    # Without the position, because the results of the upstreams may be other ones.
    writes = {**REOPENED, "reason": reason, "position": None}
    return move(name, pairs, Status.BLOCKED, due_at=None, **writes)


def set_needed(needed: Mapping[uuid.UUID, int]) -> None:
    """Write how many dependencies each of these locked rows still needs.

    Rows with the same number share one statement.
    """
    by_number: dict[int, list[uuid.UUID]] = {}
    for task_id, number in needed.items():
        by_number.setdefault(number, []).append(task_id)
    for number, ids in sorted(by_number.items()):
        tables.tasks().filter(pk__in=ids).update(unresolved_dependencies_count=number)


def mark_upstreams(ids: Sequence[uuid.UUID]) -> None:
    """Set ``has_dependents`` on these locked rows, so that their endings insert ending events."""
    tables.tasks().filter(pk__in=list(ids), has_dependents=False).update(has_dependents=True)


def blame(causes: Mapping[uuid.UUID, uuid.UUID]) -> None:
    """Write another cause to locked rows whose status does not change."""
    tables.tasks().filter(pk__in=list(causes)).update(cause=_by_row(causes))
