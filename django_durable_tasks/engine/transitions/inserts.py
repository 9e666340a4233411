"""Inserts tasks, edits waiting tasks, and changes the owners of their keys."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db import IntegrityError, connections
from django.db.models import Case, F, When

from django_durable_tasks import ports
from django_durable_tasks.encryption import current_key_id
from django_durable_tasks.engine.db.copy import copy_time, copying
from django_durable_tasks.engine.db.error_codes import is_unique_violation
from django_durable_tasks.engine.db.statements import statement
from django_durable_tasks.engine.db.tables import (
    atomic,
    callers_transaction,
    count,
    database,
    read,
    tasks,
)
from django_durable_tasks.engine.transitions.change_signals import announce
from django_durable_tasks.engine.transitions.change_tracking import observe
from django_durable_tasks.engine.transitions.copied_rows import rows_of
from django_durable_tasks.engine.transitions.guarded_update import (
    locked,
    matches_epochs,
    write_running,
)
from django_durable_tasks.engine.transitions.returned_rows import returning_row, row_of
from django_durable_tasks.engine.transitions.row_values import (
    are_alike,
    columns_of,
    object_of,
    records_of,
)
from django_durable_tasks.engine.transitions.stored_arguments import (
    encrypted_changes,
    encrypted_task,
    encrypted_tasks,
)
from django_durable_tasks.models import Task
from django_durable_tasks.models.clock import DatabaseNow
from django_durable_tasks.models.instants import constant
from django_durable_tasks.models.task_queries import TaskQuerySet
from django_durable_tasks.rules.states import OPEN, TRANSITIONS, Status
from django_durable_tasks.rules.tasks.new_task import NewTask
from django_durable_tasks.signals import tasks_transitioned

_BULK, _SENT = 5_000, 500
"""The numbers of tasks of a statement, and of a part of a COPY that is sent at once."""
_COPIED = 200
"""From this number of tasks on, COPY and the query before it take less time than one INSERT."""


def create(task: NewTask) -> bool:
    """Insert one task in one statement; return False, without a change, if a key is taken."""
    task = encrypted_task(task)
    sql = statement("create")
    created = _insert_unless_taken(task) if sql is None else count(sql, task._asdict()) == 1
    if created:
        _announce(task)
    return created


def create_row(task: NewTask) -> Task | None:
    """Insert one task as ``create`` does; return its row, or None if a key is taken.

    The INSERT of PostgreSQL returns the row. Other databases read it.
    """
    task = encrypted_task(task)
    sql, row = statement("create"), None
    if sql is not None:
        rows = read(f"{sql} {returning_row()}", task._asdict())
        row = row_of(rows[0]) if rows else None
    elif _insert_unless_taken(task):
        row = tasks().get(pk=task.id)
    if row is not None:
        _announce(task)
    return row


def can_create_with_answer() -> bool:
    """Return whether ``create_with_answer`` writes on this connection: PostgreSQL, outside of a
    transaction, arguments that are not encrypted, and no receivers whose writes belong to the
    transaction of the task.
    """
    connection = connections[database()]
    return (
        statement("create_with_answer") is not None
        and not connection.in_atomic_block
        and connection.get_autocommit()
        and current_key_id() is None
        and not tasks_transitioned.has_listeners(Task)
    )


def create_with_answer(task: NewTask, now: datetime, parameters: Mapping[str, Any]) -> bool:
    """Insert one task that has its times and no keys, the row of an Idempotency-Key with its
    answer, and audit entries, in one statement; return False, without a change, if the
    Idempotency-Key is taken.

    The caller has checked ``can_create_with_answer``.
    """
    task = encrypted_task(task)
    sql = statement("create_with_answer")
    if sql is None:
        raise ValueError("This database does not insert a task and an answer in one statement.")
    created = count(sql, {**parameters, **task._asdict(), "now": now}) > 0
    if created:
        _announce(task)
    return created


def _announce(task: NewTask) -> None:
    announce("create", Status(task.status), [task.id])
    ports.due.created([task])


def _insert_unless_taken(task: NewTask) -> bool:
    row = object_of(task)
    if not task.has_key:
        tasks().bulk_create([row])
        return True
    if callers_transaction() and _is_taken(row):
        # After a duplicate-key error InnoDB keeps a lock on the existing index entry. The ending of
        # that task would wait for the caller's commit.
        return False
    try:
        with atomic():
            tasks().bulk_create([row])
    except IntegrityError as error:
        # A query for the key's owner could find none: the owner may have released the key since.
        if not is_unique_violation(error):
            raise
        return False
    return True


def _is_taken(row: Task) -> bool:
    tenant = {"tenant_id": row.tenant_id}
    names = ("idempotency_key", "open_key", "open_unique_key")
    keys = [
        {name: getattr(row, name), **tenant} for name in names if getattr(row, name) is not None
    ]
    return any(tasks().filter(**key).exists() for key in [{"pk": row.pk}, *keys])


def create_many(new_tasks: Sequence[NewTask]) -> None:
    """Insert many tasks, one statement per batch.

    The caller has checked that their keys, if they have any, are free.
    """
    new_tasks = encrypted_tasks(new_tasks)
    now = copy_time() if len(new_tasks) >= _COPIED else None
    for first in range(0, len(new_tasks), _BULK):
        batch = new_tasks[first : first + _BULK]
        if now is None:
            _insert(batch)
        else:
            _copy(_slices(batch), now)
    _announce_all(new_tasks)


def create_stream(
    parts: Iterator[Sequence[NewTask]], number: int, within: float
) -> Sequence[NewTask]:
    """Insert the next tasks of ``parts``, at most ``number``, and return them; none if there are
    no more.

    With COPY the database writes them while ``parts`` builds others, which must not use the
    connection. The statement ends after about ``within`` seconds, even if ``parts`` has more. If
    ``parts`` raises an exception, the caller rolls back.
    """
    now = copy_time() if number >= _COPIED else None
    if now is None:
        new_tasks: Sequence[NewTask] = encrypted_tasks([task for part in parts for task in part])
        if new_tasks:
            _insert(new_tasks)
    else:
        new_tasks = _copy(map(encrypted_tasks, parts), now, within)
    _announce_all(new_tasks)
    return new_tasks


def _slices(batch: Sequence[NewTask]) -> Iterator[Sequence[NewTask]]:
    for first in range(0, len(batch), _SENT):
        yield batch[first : first + _SENT]


def _copy(
    parts: Iterable[Sequence[NewTask]], now: datetime, within: float = float("inf")
) -> list[NewTask]:
    """Insert by COPY; ``now`` is the time of the database."""
    sql, copied, began = statement("copy_tasks"), list[NewTask](), time.monotonic()
    if sql is None:
        raise ValueError("This database has no COPY.")
    with copying(sql) as send:
        for part in parts:
            send(rows_of(part, now))
            copied += part
            if time.monotonic() - began > within:
                break
    return copied


def _insert(batch: Sequence[NewTask]) -> None:
    alike = are_alike(batch)
    sql = statement("create_many" if alike else "create_each")
    if sql is None:
        tasks().bulk_create([object_of(task) for task in batch])
    else:
        count(sql, columns_of(batch) if alike else records_of(batch))


def _announce_all(new_tasks: Sequence[NewTask]) -> None:
    for status in {task.status for task in new_tasks}:
        ids = [task.id for task in new_tasks if task.status == status]
        announce("create", Status(status), ids)
    ports.due.created(new_tasks)


def edit(queryset: TaskQuerySet, limit: int | None = None, **changes: Any) -> int:
    """Write ``changes`` to BLOCKED and PENDING tasks; return how many.

    ``run_at`` also sets the ``due_at`` of PENDING tasks. With ``limit``, rows that other
    transactions have locked are skipped.
    """
    with atomic():
        pairs = locked(queryset.filter(status__in=TRANSITIONS["edit"].sources), limit)
        observe([task_id for task_id, _ in pairs])
        at = changes.get("due_at", changes.get("run_at"))
        if at is not None:
            ports.due.rescheduled([task_id for task_id, _ in pairs], at)
        if "run_at" in changes:
            changes["due_at"] = Case(
                When(status=Status.PENDING, then=constant(changes["run_at"])), default=None
            )
        if "due_at" in changes:
            changes["waiting_for_limit"] = None  # the next claim checks the limits again
        changes = encrypted_changes([task_id for task_id, _ in pairs], changes)
        return (
            tasks()
            .filter(matches_epochs(pairs), status__standing=TRANSITIONS["edit"].sources)
            .update(epoch=F("epoch") + 1, updated_at=DatabaseNow(), **changes)
        )


def release_key(queryset: TaskQuerySet, marker: str) -> int:
    """Clear the key column ``marker`` of RUNNING tasks, because a newer task takes the key."""
    return write_running(queryset, **{marker: None})


def take_key(task_id: uuid.UUID, marker: str, key: str) -> int:
    """Make an open task the owner of this key; return how many rows changed.

    The caller has locked or created the task, and no other open task owns the key.
    """
    return tasks().filter(pk=task_id, status__standing=OPEN).update(**{marker: key})


def name_key(task_id: uuid.UUID, name: str, key: str) -> bool:
    """Write the ``key`` or ``unique_key`` of a task without making it the key's owner.

    The caller has just created the task.
    """
    return bool(tasks().filter(pk=task_id).update(**{name: key}))
