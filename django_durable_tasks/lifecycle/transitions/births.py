"""How rows are born, and how those that wait are changed."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from django.db import IntegrityError
from django.db.models import Case, F, When

from django_durable_tasks import ports
from django_durable_tasks.lifecycle.announcing import announce
from django_durable_tasks.lifecycle.rows import alike, columns_of, records_of, row_of
from django_durable_tasks.lifecycle.statements import statement
from django_durable_tasks.lifecycle.transitions.guards import (
    atomic,
    callers_transaction,
    count,
    locked,
    shown,
    tasks,
    write_running,
)
from django_durable_tasks.models import Task
from django_durable_tasks.models.clock import DatabaseNow
from django_durable_tasks.models.task import TaskQuerySet
from django_durable_tasks.rules.states import OPEN, TRANSITIONS, Status

_BULK = 2_000


def create(values: dict[str, Any]) -> bool:
    """Insert one row by one INSERT; False when one of its keys is taken (then nothing is raised, nothing written)."""
    sql = statement("create")
    created = _insert_unless_taken(values) if sql is None else count(sql, values) == 1
    if created:
        announce("create", Status(values["status"]), [values["id"]])
        ports.due.born([values])
    return created


def _insert_unless_taken(values: dict[str, Any]) -> bool:
    row = row_of(values)
    if not (values["named"] or row.idempotency_key or row.key or row.unique_key):
        tasks().bulk_create([row])
        return True
    if callers_transaction() and _is_taken(row):
        # InnoDB leaves the entry that a duplicate collides with locked, and the ending of its row would wait for it.
        return False
    try:
        with atomic():
            tasks().bulk_create([row])
    except IntegrityError as refused:
        # Looking for the holder would come too late: it may have let the key go since.
        if not any(word in str(refused).lower() for word in ("unique", "duplicate")):
            raise
        return False
    return True


def _is_taken(row: Task) -> bool:
    tenant = {"tenant_id": row.tenant_id}
    names = ("idempotency_key", "open_key", "open_unique_key")
    keys = [{name: getattr(row, name), **tenant} for name in names if getattr(row, name) is not None]
    return any(tasks().filter(**key).exists() for key in [{"pk": row.pk}, *keys])


def create_many(rows: Sequence[dict[str, Any]]) -> None:
    """Insert many rows whose keys, if they have any, are known to be free, in one statement a batch."""
    same = alike(rows)
    sql = statement("create_many" if same else "create_each")
    for first in range(0, len(rows), _BULK):
        batch = rows[first : first + _BULK]
        if sql is not None:
            count(sql, columns_of(batch) if same else records_of(batch))
        else:
            tasks().bulk_create([row_of(values) for values in batch])
    for status in {values["status"] for values in rows}:
        announce("create", Status(status), [values["id"] for values in rows if values["status"] == status])
    ports.due.born(rows)


def edit(question: TaskQuerySet, limit: int | None = None, **changes: Any) -> int:
    """Change arguments, run_at or options of waiting rows; the `due_at` of a PENDING task follows its `run_at`.

    With a limit (sweeps) only of rows that no other transaction has locked.
    """
    with atomic():
        pairs = locked(question.filter(status__in=TRANSITIONS["edit"].sources), limit)
        at = changes.get("due_at", changes.get("run_at"))
        if at is not None:
            ports.due.moved([task_id for task_id, _ in pairs], at)
        if "run_at" in changes:
            changes["due_at"] = Case(When(status=Status.PENDING, then=changes["run_at"]), default=None)
        if "due_at" in changes:
            changes["waiting_for_limit"] = None  # the next claim decides anew
        return tasks().filter(shown(pairs), status__standing=TRANSITIONS["edit"].sources).update(
            epoch=F("epoch") + 1, updated_at=DatabaseNow(), **changes
        )  # fmt: skip


def release_key(question: TaskQuerySet, marker: str) -> int:
    """Let RUNNING rows give up a key that a newer row takes; they end as they would have ended."""
    return write_running(question, **{marker: None})


def take_key(task_id: uuid.UUID, marker: str, key: str) -> int:
    """Let an open row, which the caller has locked or created, own this key, which no other open row owns."""
    return tasks().filter(pk=task_id, status__standing=OPEN).update(**{marker: key})


def name_key(task_id: uuid.UUID, name: str, key: str) -> bool:
    """Write the ``key`` or ``unique_key`` of a row that the caller has just created and that does not own it yet."""
    return bool(tasks().filter(pk=task_id).update(**{name: key}))
