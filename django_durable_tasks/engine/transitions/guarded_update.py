"""What every move stands on: rows locked in primary-key order, shown with status and epoch,
counted, announced.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from django.db import connections, transaction
from django.db.models import F, Q
from django.db.models.lookups import In

from django_durable_tasks import ports
from django_durable_tasks.engine.db.tables import atomic, callers_transaction, database, tasks
from django_durable_tasks.engine.transitions.attempt_log import (
    insert_ending_events,
    insert_return_events,
)
from django_durable_tasks.engine.transitions.change_signals import announce
from django_durable_tasks.engine.transitions.change_tracking import touch
from django_durable_tasks.models import Task
from django_durable_tasks.models.clock import DatabaseNow
from django_durable_tasks.models.task_queries import TaskQuerySet
from django_durable_tasks.rules.states import TERMINAL, TRANSITIONS, WITH_DUE_AT, Status

Pair = tuple[uuid.UUID, int]
"""A row's primary key and epoch."""
PAGES = 20
"""Past how many pages of locked rows a sweep looks, where the limited statement cannot lock."""
WAITING = TRANSITIONS["skip"].sources


TRIES = 5
"""How often rows are locked anew that changed their status meanwhile."""
PART = 50
"""How many rows are locked together of those that could not be locked all at once."""
IDLE = frozenset(Status) - {Status.RUNNING}

NO_OWNER: dict[str, Any] = {"lease_until": None, "cancel_requested_at": None}
CLOSED: dict[str, Any] = {
    **NO_OWNER,
    "due_at": None,
    "waiting_for_limit": None,
    "open_key": None,
    "open_unique_key": None,
    "completed_at": DatabaseNow(),
}


def matches_epochs(pairs: Iterable[tuple[uuid.UUID, int]]) -> Q:
    """The guard "this row, still in this epoch" for many rows."""
    by_epoch: dict[int, list[uuid.UUID]] = {}
    for task_id, epoch in sorted(pairs):
        by_epoch.setdefault(epoch, []).append(task_id)
    guard = Q(pk__in=[])
    for epoch, ids in by_epoch.items():
        guard |= Q(pk__in=ids, epoch=epoch)
    return guard


def _lists_keys(question: TaskQuerySet) -> bool:
    """Whether the question names its rows by key; for a second list of keys PostgreSQL would read
    the whole table.
    """
    lists = (
        node
        for node in question.query.where.children
        if isinstance(node, In) and isinstance(node.rhs, list)
    )
    return any(getattr(node.lhs, "target", None) is Task._meta.pk for node in lists)


def locked(question: TaskQuerySet, limit: int | None = None) -> list[Pair]:
    """Lock rows of the question, inside ``atomic()``; return them in primary-key order.

    With a limit (claims, sweeps) the first ``limit`` rows that no other transaction has locked.
    Without one (operators) all rows are locked in primary-key order, and locked ones are waited
    for.
    """
    if limit is not None:
        return sorted(first_locked(question, limit))
    if callers_transaction():
        return _locked_as_found(question)
    return _lock(question, list(question.values_list("pk", flat=True)))


def _locked_as_found(question: TaskQuerySet) -> list[Pair]:
    """Lock rows of the question in a caller's transaction, without those that start while their
    lock is waited for.

    While some start at every try, the rows are locked in pages, and those of a page in which one
    starts one by one: this always ends, and keeps no lock of a RUNNING row.
    """
    found = dict[uuid.UUID, str]()
    for _ in range(TRIES):
        found = dict(question.order_by("pk").values_list("pk", "status"))
        pairs = _lock_all(question, found)
        if pairs is not None:
            return pairs
    rows, pairs = list(found.items()), list[Pair]()
    for first in range(0, len(rows), PART):
        page = dict(rows[first : first + PART])
        together = _lock_all(question, page)
        alone = (
            [] if together is not None else _lock_all(question, {key: page[key]}) or []
            for key in page
        )
        pairs += chain(together or (), *alone)
    return pairs


def _lock_all(question: TaskQuerySet, found: Mapping[uuid.UUID, str]) -> list[Pair] | None:
    """Lock these rows and return those that still match the question; None, and no lock, if one has
    started.

    On PostgreSQL a row that starts while its lock is waited for stays locked although it is not
    returned; rolling back to the savepoint unlocks it. InnoDB unlocks what its statement does not
    match, unless it had to wait for the lock.
    """
    with atomic():
        standing = IDLE | set(found.values())
        no_key = connections[database()].features.has_select_for_no_key_update
        rows = tasks().filter(pk__in=list(found), status__standing=standing).order_by("pk")
        held = (
            set(rows.select_for_update(no_key=no_key).values_list("pk", flat=True))
            if found
            else set()
        )
        if len(held) < len(found):
            transaction.set_rollback(True, using=database())
            return None
        these = question if _lists_keys(question) else question.filter(pk__in=held)
        return (
            sorted(pair for pair in these.values_list("pk", "epoch") if pair[0] in held)
            if held
            else []
        )


def first_locked(question: TaskQuerySet, limit: int) -> list[Pair]:
    """Lock the first ``limit`` rows of the question that no other transaction has locked; in the
    question's order.
    """
    if connections[database()].vendor == "postgresql":
        # Locked by the statement that is limited, so that locked rows do not count as found.
        free = question.values_list("pk", "epoch").select_for_update(skip_locked=True, no_key=True)
        return list(free[:limit])
    held, seen = list[Pair](), list[uuid.UUID]()
    for _ in range(PAGES):
        rest = question.exclude(pk__in=seen) if seen else question
        page = list(rest.values_list("pk", flat=True)[: limit - len(held)])
        place = {task_id: number for number, task_id in enumerate(page)}
        got = _lock(question, page, skip_locked=True)
        held += sorted(got, key=lambda pair: place[pair[0]])
        seen += page
        if len(got) == len(page):
            break
    return held


def _lock(
    question: TaskQuerySet, found: Sequence[uuid.UUID], *, skip_locked: bool = False
) -> list[Pair]:
    if not found:
        return []
    connection, whole = connections[database()], not skip_locked and _lists_keys(question)
    these = (
        (question if whole else question.filter(pk__in=found))
        .order_by("pk")
        .values_list("pk", "epoch")
    )
    how: dict[str, Any] = {
        "skip_locked": skip_locked,
        "no_key": connection.features.has_select_for_no_key_update,
    }
    if connection.vendor != "mysql":
        return list(these.select_for_update(**how))
    # By the primary key alone: whoever locks the entry of another index first deadlocks with who
    # locks the row first.
    held = tasks().filter(pk__in=found).order_by("pk").select_for_update(**how)
    return list(these.filter(pk__in=list(held.values_list("pk", flat=True))))


def move(name: str, pairs: Sequence[tuple[uuid.UUID, int]], status: Status, **writes: Any) -> int:
    """One guarded UPDATE of rows that were read with their epochs; raises the epoch."""
    if not pairs:
        return 0
    sources = TRANSITIONS[name].sources
    ids = [task_id for task_id, _ in pairs]
    touch(ids)
    leaving = _ended_in_workflows(ids) if sources & TERMINAL else []
    moved = (
        tasks()
        .filter(matches_epochs(pairs), status__standing=sources)
        .update(status=status, epoch=F("epoch") + 1, updated_at=DatabaseNow(), **writes)
    )
    insert_return_events(leaving)
    if status in TERMINAL:
        record_endings(ids, status)
    elif status == Status.PENDING:
        # What is handed back wakes nobody: a row that a limit refuses would come round without end.
        ports.due.moved(ids, None if name == "hand_back" else writes.get("due_at"))
    if Status.PENDING in sources and status not in WITH_DUE_AT:
        ports.due.gone(ids)  # who is claimed was popped, or is refused once
    announce(name, status, ids)
    return moved


def record_endings(ids: Sequence[uuid.UUID], status: Status) -> None:
    """Note these endings, and wake the leader where others wait for them or count them."""
    if insert_ending_events(ids, status):
        ports.due.duties()


def _ended_in_workflows(
    ids: Sequence[uuid.UUID],
) -> list[tuple[uuid.UUID, int, uuid.UUID | None, str]]:
    ended = tasks().filter(pk__in=list(ids), status__in=TERMINAL, workflow__isnull=False)
    return list(ended.values_list("pk", "epoch", "workflow_id", "status"))


def write_running(question: TaskQuerySet, **writes: Any) -> int:
    """Write something that is no status to RUNNING rows."""
    with atomic():
        pairs = locked(question.filter(status=Status.RUNNING))
        return (
            tasks()
            .filter(matches_epochs(pairs), status__standing=[Status.RUNNING])
            .update(**writes)
        )
