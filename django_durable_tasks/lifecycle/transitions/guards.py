"""What every move stands on: rows locked in primary-key order, shown with status and epoch, counted, announced."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from django.db import connections, transaction
from django.db.models import F, Q
from django.db.models.lookups import In

from django_durable_tasks import conf, ports
from django_durable_tasks.lifecycle.announcing import announce
from django_durable_tasks.lifecycle.connections import cursor
from django_durable_tasks.lifecycle.records import note_endings, note_returns
from django_durable_tasks.lifecycle.watching import touch
from django_durable_tasks.models import Task
from django_durable_tasks.models.clock import DatabaseNow
from django_durable_tasks.models.task import TaskQuerySet
from django_durable_tasks.rules.states import ALARMED, TERMINAL, TRANSITIONS, Status

NOW = DatabaseNow()
WAITING = TRANSITIONS["skip"].sources

NO_OWNER: dict[str, Any] = {"lease_until": None, "cancel_requested_at": None}
CLOSED: dict[str, Any] = {
    **NO_OWNER, "alarm_at": None, "held_for": None, "open_key": None, "open_unique_key": None,
    "completed_at": DatabaseNow(),
}  # fmt: skip


def database() -> str:
    """Return the alias of the database that holds the tables."""
    return conf.settings().DATABASE


def tasks() -> TaskQuerySet:
    """Return all tasks, as a question to narrow."""
    questions: TaskQuerySet = Task.objects.using(database())
    return questions


def atomic() -> Any:
    """Return a transaction on the database that holds the tables."""
    return transaction.atomic(using=database())


def count(sql: str, parameters: dict[str, Any]) -> int:
    """Execute a statement of ours and return how many rows it wrote."""
    with cursor() as hand:
        hand.execute(sql, parameters)
        return int(hand.rowcount)


def read(sql: str, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Execute a statement of ours and return its rows."""
    with cursor() as hand:
        hand.execute(sql, parameters)
        return list(hand.fetchall())


def shown(pairs: Iterable[tuple[uuid.UUID, int]]) -> Q:
    """The guard "this row, still in this epoch" for many rows."""
    by_epoch: dict[int, list[uuid.UUID]] = {}
    for task_id, epoch in sorted(pairs):
        by_epoch.setdefault(epoch, []).append(task_id)
    guard = Q(pk__in=[])
    for epoch, ids in by_epoch.items():
        guard |= Q(pk__in=ids, epoch=epoch)
    return guard


def _lists_keys(question: TaskQuerySet) -> bool:
    """Whether the question names its rows by key; for a second list of keys PostgreSQL would read the whole table."""
    lists = (node for node in question.query.where.children if isinstance(node, In) and isinstance(node.rhs, list))
    return any(getattr(node.lhs, "target", None) is Task._meta.pk for node in lists)


def locked(question: TaskQuerySet, limit: int | None = None) -> list[tuple[uuid.UUID, int]]:
    """Lock rows of the question in primary-key order, inside ``atomic()``.

    With a limit (claims, sweeps) rows that somebody else holds are left; without one (operators) they are waited for.
    """
    found = list(question.values_list("pk", flat=True)[:limit])
    if not found:
        return []
    connection, named = connections[database()], question if _lists_keys(question) else question.filter(pk__in=found)
    these = named.order_by("pk").values_list("pk", "epoch")
    how: dict[str, Any] = {"skip_locked": limit is not None, "no_key": connection.features.has_select_for_no_key_update}
    if connection.vendor != "mysql":
        return list(these.select_for_update(**how)[:limit])
    # By the primary key alone: whoever locks the entry of another index first deadlocks with who locks the row first.
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
    moved = tasks().filter(shown(pairs), status__standing=sources).update(
        status=status, epoch=F("epoch") + 1, updated_at=DatabaseNow(), **writes
    )  # fmt: skip
    note_returns(leaving)
    if status in TERMINAL:
        tell_endings(ids, status)
    elif status == Status.PENDING:
        # What is handed back wakes nobody: a row that a limit refuses would come round without end.
        ports.due.moved(ids, None if name == "hand_back" else writes.get("alarm_at"))
    if Status.PENDING in sources and status not in ALARMED:
        ports.due.gone(ids)  # who is claimed was popped, or is refused once
    announce(name, status, ids)
    return moved


def tell_endings(ids: Sequence[uuid.UUID], status: Status) -> None:
    """Note these endings, and wake the leader where others wait for them or count them."""
    if note_endings(ids, status):
        ports.due.duties()


def _ended_in_workflows(ids: Sequence[uuid.UUID]) -> list[tuple[uuid.UUID, int, uuid.UUID | None, str]]:
    ended = tasks().filter(pk__in=list(ids), status__in=TERMINAL, workflow__isnull=False)
    return list(ended.values_list("pk", "epoch", "workflow_id", "status"))


def write_running(question: TaskQuerySet, **writes: Any) -> int:
    """Write something that is no status to RUNNING rows."""
    with atomic():
        pairs = locked(question.filter(status=Status.RUNNING))
        return tasks().filter(shown(pairs), status__standing=[Status.RUNNING]).update(**writes)
