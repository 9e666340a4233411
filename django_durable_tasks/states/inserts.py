"""Inserts tasks in every encoding, edits waiting tasks, and changes the owners of their keys."""

from __future__ import annotations

import functools
import json
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from struct import Struct
from typing import Any

from django.db import IntegrityError, connections
from django.db.models import NOT_PROVIDED, Case, Expression, F, JSONField, Q, Value, When

from django_durable_tasks import conf, encryption, ports
from django_durable_tasks.choices import OPEN, Status
from django_durable_tasks.models import Task
from django_durable_tasks.models.fields import TASK_TABLE, DatabaseNow, constant
from django_durable_tasks.models.tasks import TaskQuerySet
from django_durable_tasks.signals import tasks_transitioned
from django_durable_tasks.states.claims import returning_row, row_of
from django_durable_tasks.states.guarded_update import (
    announce,
    locked,
    matches_epochs,
    observe,
    write_running,
)
from django_durable_tasks.states.machine import TRANSITIONS
from django_durable_tasks.store.dialects import POSTGRESQL, recordset, sql, verb
from django_durable_tasks.store.errors import is_unique_violation
from django_durable_tasks.store.postgresql import (
    NULL,
    column_type,
    copied,
    copy_time,
    copying,
    microseconds,
)
from django_durable_tasks.store.tables import (
    atomic,
    callers_transaction,
    count,
    database,
    read,
    tasks,
)
from django_durable_tasks.task_values import PER_CALL, PER_OCCURRENCE, NewTask

# Encrypts the arguments and results that statements write, if encryption is switched on.


_EMPTY = ("[]", "{}")


def place(tenant_id: int, column: str, task_id: uuid.UUID) -> encryption.StorageLocation:
    """Return where a column of a task is stored."""
    return encryption.StorageLocation(tenant_id, TASK_TABLE, column, str(task_id))


def encrypted_task(task: NewTask) -> NewTask:
    """Return a new task with encrypted arguments; the same one if nothing is encrypted."""
    key = encryption.current_key_id()
    if key is None:
        if encryption.MARK in task.kwargs:
            encryption.encrypted(json.loads(task.kwargs), place(task.tenant_id, "kwargs", task.id))
        return task
    if task.encryption_key is not None or (task.args in _EMPTY and task.kwargs in _EMPTY):
        return task
    return task._replace(
        args=_encrypted_text(task.args, place(task.tenant_id, "args", task.id)),
        kwargs=_encrypted_text(task.kwargs, place(task.tenant_id, "kwargs", task.id)),
        encryption_key=key,
    )


def _encrypted_text(text: str, where: encryption.StorageLocation) -> str:
    value = encryption.encrypted(json.loads(text), where)
    return (
        json.dumps(dict(value.envelope)) if isinstance(value, encryption.EncryptedValue) else text
    )


def encrypted_result(
    result: str | None, tenant_id: int, task_id: uuid.UUID, column: str = "result"
) -> tuple[str | None, str | None]:
    """Return the JSON text to store, and the id of its key; the text itself and None if it is not
    encrypted.
    """
    key = encryption.current_key_id()
    if key is None or result is None:
        return result, None
    value = encryption.encrypted(json.loads(result), place(tenant_id, column, task_id))
    if not isinstance(value, encryption.EncryptedValue):
        return result, None
    return json.dumps(dict(value.envelope)), key


def encrypted_changes(ids: Sequence[uuid.UUID], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes of an UPDATE of these tasks with encrypted arguments, and the key id."""
    names = [name for name in ("args", "kwargs") if name in changes]
    key = encryption.current_key_id()
    if not names or key is None:
        return dict(changes)
    tenants = dict(tasks().filter(pk__in=list(ids)).values_list("pk", "tenant_id"))
    columns = dict(changes)
    for name in names:
        values = {
            task_id: encryption.encrypted(changes[name], place(tenant_id, name, task_id))
            for task_id, tenant_id in tenants.items()
        }
        if any(isinstance(value, encryption.EncryptedValue) for value in values.values()):
            columns[name] = Case(
                *(
                    When(pk=task_id, then=Value(dict(value.envelope), JSONField()))
                    for task_id, value in values.items()
                )
            )
            columns["encryption_key"] = key_after(key)
    return columns


def key_after(key: str) -> Case:
    """Return the key id of a row after a value was encrypted with this key: MIXED if other values
    of the row have another key, so that a rotation finds it.
    """
    same = Q(encryption_key__isnull=True) | Q(encryption_key=key)
    return Case(When(same, then=Value(key)), default=Value(encryption.MIXED))


# Converts new tasks to ORM objects, and to the parameters of the SQL forms of bulk INSERTs.


# The columns that have the values of the fields of NewTask of the same names. Statements compute
# the others.
COLUMNS = tuple(
    name
    for name in NewTask._fields
    if name in {field.attname for field in Task._meta.concrete_fields}
    and name not in {"run_at", "due_at", "expires_at", "expected_duration"}
)


@functools.cache
def insert_statement(name: str) -> str:
    """Return a statement that inserts tasks, with COLUMNS in place of its placeholders."""
    types = {column: column_type(Task, column) for column in COLUMNS}
    texts = {
        "{columns}": ", ".join(COLUMNS),
        "{copied}": ", ".join(_COPIED_COLUMNS),
        "{parameters}": ", ".join(f"%({column})s::{types[column]}" for column in COLUMNS),
        "{fields}": ", ".join(f"{column}::{types[column]}" for column in COLUMNS),
        # In JSON the values of jsonb columns are texts.
        "{record}": ", ".join(
            f"{column} {'text' if types[column] == 'jsonb' else types[column]}"
            for column in COLUMNS
        ),
    }
    statement = sql(name)
    for placeholder, columns in texts.items():
        statement = statement.replace(placeholder, columns)
    return statement


def object_of(task: NewTask) -> Task:
    """Return the unsaved object; without ``run_at`` the task is due at the time of the database."""
    return Task(**_values_of(task, task.run_at or DatabaseNow()))


def with_times(task: NewTask, now: datetime) -> NewTask:
    """Return the task with the times that the INSERT would compute at ``now``."""
    start = task.run_at or now
    expires_at = task.expires_at
    if expires_at is None and task.expires_in is not None:
        expires_at = start + timedelta(seconds=task.expires_in)
    due_at = task.due_at
    if due_at is None and task.status != Status.BLOCKED:
        due_at = start + timedelta(seconds=task.wait or 0.0)
    return task._replace(run_at=start, due_at=due_at, expires_at=expires_at)


def row_at(task: NewTask, now: datetime) -> Task:
    """Return the row of a task, which has its times, as a query would read it after an INSERT at
    ``now``.
    """
    values = {**_defaults(), "created_at": now, "updated_at": now, **_values_of(task, now)}
    return Task.from_db(conf.settings().DATABASE, list(values), list(values.values()))


@functools.cache
def _defaults() -> Mapping[str, Any]:
    """Return what an INSERT that names no column writes, in the order of the columns."""
    defaults = {field.attname: field.db_default for field in Task._meta.concrete_fields}
    unset = (NOT_PROVIDED,)
    return {
        name: None if value in unset or isinstance(value, Expression) else value
        for name, value in defaults.items()
    }


def _values_of(task: NewTask, start: Any) -> dict[str, Any]:
    values: dict[str, Any] = {name: getattr(task, name) for name in COLUMNS}
    values["expires_at"] = task.expires_at
    if task.expires_in is not None and task.expires_at is None:
        values["expires_at"] = start + timedelta(seconds=task.expires_in)
    if task.status != Status.BLOCKED:
        values["due_at"] = task.due_at or start + timedelta(seconds=task.wait or 0.0)
    if task.expected_duration is not None:
        values["expected_duration"] = timedelta(seconds=task.expected_duration)
    return values | {
        "args": _stored(task, task.args),
        "kwargs": _stored(task, task.kwargs),
        "options": json.loads(task.options) if task.options else None,
        "run_at": start,
        "unresolved_dependencies_count": task.unresolved,
        "open_key": task.key,
        "open_unique_key": task.unique_key,
    }


def _stored(task: NewTask, text: str) -> Any:
    """Return the value of a JSON text; an EncryptedValue if the task was encrypted."""
    value = json.loads(text)
    return value if task.encryption_key is None else encryption.stored_value(value) or value


# New tasks as rows in the binary format of PostgreSQL's COPY.


# The columns of ``rows_of`` after those of the fields PER_CALL, which are all columns.
_OCCURRENCE = (
    *("run_at", "due_at", "expires_at", "idempotency_key", "unique_key", "open_unique_key"),
    *("recurring_task_id", "fire_time", "overlap_key", "step"),
)
_SHARED = tuple(name for name in NewTask._fields[PER_CALL:PER_OCCURRENCE] if name in COLUMNS)
_COPIED_COLUMNS = (
    *(*NewTask._fields[:PER_CALL], *_OCCURRENCE, *_SHARED),
    *("expected_duration", "unresolved_dependencies_count", "open_key", "created_at", "updated_at"),
)
# The number of columns, the id, and the length and version of ``args``, as one value of ``jsonb``.
_start = Struct(">hi16sib").pack
_json = Struct(">ib").pack
_shard = Struct(">ih").pack


_time = Struct(">iq").pack
_uuid = Struct(">i16s").pack


def rows_of(tasks: Sequence[NewTask], now: datetime) -> bytes:
    """Return the rows of tasks whose keys are free. ``now``: the time of tasks without ``run_at``,
    and of the creation.
    """
    shared: tuple[Any, ...] = ()
    end, rows, width = b"", list[bytes](), len(_COPIED_COLUMNS)
    ends = dict[tuple[Any, ...], bytes]()
    for task in tasks:
        if task[PER_CALL:] != shared:
            shared, group = task[PER_CALL:], task[PER_CALL:PER_OCCURRENCE]
            if group not in ends:
                # The columns in which neither the tasks of one bulk call nor the occurrences of
                # schedules of one task differ.
                values = [getattr(task, name) for name in _SHARED]
                values += [task.expected_duration, task.unresolved, task.key, now, now]
                ends[group] = b"".join(map(copied, values, _shared_types()))
            end = _own_columns(task, now) + ends[group]
        args, kwargs, limit_key = task.args.encode(), task.kwargs.encode(), task.limit_key
        rows += (
            _start(width, 16, task.id.bytes, len(args) + 1, 1),
            args,
            _json(len(kwargs) + 1, 1),
            kwargs,
            _shard(2, task.shard_key),
            NULL if limit_key is None else copied(limit_key, "text"),
            end,
        )
    return b"".join(rows)


def _own_columns(task: NewTask, now: datetime) -> bytes:
    """Return the columns of the fields PER_OCCURRENCE."""
    start = task.run_at or now
    due_at = expires_at = None
    if task.status != Status.BLOCKED:
        due_at = task.due_at or (start + timedelta(seconds=task.wait) if task.wait else start)
    if task.expires_at is not None or task.expires_in is not None:
        expires_at = task.expires_at or start + timedelta(seconds=task.expires_in or 0.0)
    schedule, unique_key = task.recurring_task_id, _text_field(task.unique_key)
    return b"".join(
        (
            run_at := _time(8, microseconds(start)),
            run_at if due_at is start else _instant(due_at),
            _instant(expires_at),
            _text_field(task.idempotency_key),
            unique_key,
            unique_key,
            NULL if schedule is None else _uuid(16, schedule.bytes),
            run_at if task.fire_time is start else _instant(task.fire_time),
            _text_field(task.overlap_key),
            _text_field(task.step),
        )
    )


def _instant(value: datetime | None) -> bytes:
    return NULL if value is None else _time(8, microseconds(value))


def _text_field(value: str | None) -> bytes:
    return NULL if value is None else copied(value, "text")


@functools.cache
def _shared_types() -> Sequence[str]:
    return [column_type(Task, name) for name in _COPIED_COLUMNS[PER_CALL + len(_OCCURRENCE) :]]


_KEYS = ("idempotency_key", "open_key", "open_unique_key")
_BULK, _SENT = 5_000, 500
"""The numbers of tasks of a statement, and of a part of a COPY that is sent at once."""
_COPIED = 128
"""From this number of tasks on, COPY and the query before it take less time than one INSERT."""


def create(task: NewTask) -> bool:
    """Insert one task in one statement; return False, without a change, if a key is taken."""
    task = encrypted_task(task)
    created = _insert_unless_taken(task)
    if created:
        _announce(task)
    return created


def create_row(task: NewTask) -> Task | None:
    """Insert one task as ``create`` does; return its row, or None if a key is taken."""
    task = encrypted_task(task)
    row = _insert_row(task)
    if row is not None:
        _announce(task)
    return row


@verb
def _insert_row(task: NewTask) -> Task | None:
    return tasks().get(pk=task.id) if _insert_unless_taken(task) else None


@_insert_row.on(POSTGRESQL)
def _insert_and_return_row(task: NewTask) -> Task | None:
    rows = read(f"{insert_statement('create')} {returning_row()}", task._asdict())
    return row_of(rows[0]) if rows else None


@verb
def can_create_with_answer() -> bool:
    """Return whether ``create_with_answer`` writes on this connection: PostgreSQL, outside of a
    transaction, arguments that are not encrypted, and no receivers whose writes belong to the
    transaction of the task.
    """
    return False


@can_create_with_answer.on(POSTGRESQL)
def _can_create_with_answer() -> bool:
    connection = connections[database()]
    return (
        not connection.in_atomic_block
        and connection.get_autocommit()
        and encryption.current_key_id() is None
        and not tasks_transitioned.has_listeners(Task)
    )


def create_with_answer(task: NewTask, now: datetime, parameters: Mapping[str, Any]) -> bool:
    """Insert one task that has its times and no keys, the row of an Idempotency-Key with its
    answer, and audit entries, in one statement; return False, without a change, if the
    Idempotency-Key is taken.

    The caller has checked ``can_create_with_answer``.
    """
    task = encrypted_task(task)
    created = (
        count(
            insert_statement("create_with_answer"),
            {**parameters, **task._asdict(), "now": now},
        )
        > 0
    )
    if created:
        _announce(task)
    return created


def _announce(task: NewTask) -> None:
    announce("create", Status(task.status), [task.id])
    ports.due.created([task])


@verb
def _insert_unless_taken(task: NewTask) -> bool:
    row = object_of(task)
    if not task.has_key:
        tasks().bulk_create([row])
        return True
    if callers_transaction():
        # After a duplicate-key error InnoDB keeps a lock on the existing index entry. The ending of
        # that task would wait for the caller's commit.
        keys = {name: getattr(row, name) for name in _KEYS if getattr(row, name) is not None}
        of_tenant = tasks().filter(tenant_id=row.tenant_id)
        if tasks().filter(pk=row.pk).exists() or any(
            of_tenant.filter(**{name: key}).exists() for name, key in keys.items()
        ):
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


@_insert_unless_taken.on(POSTGRESQL)
def _insert_unless_in_conflict(task: NewTask) -> bool:
    return count(insert_statement("create"), task._asdict()) == 1


def create_many(new_tasks: Sequence[NewTask]) -> None:
    """Insert many tasks, one statement per batch.

    The caller has checked that their keys, if they have any, are free.
    """
    new_tasks = [encrypted_task(task) for task in new_tasks]
    now = copy_time() if len(new_tasks) >= _COPIED else None
    for first in range(0, len(new_tasks), _BULK):
        batch = new_tasks[first : first + _BULK]
        if now is None:
            _insert(batch)
        else:
            _copy((batch[at : at + _SENT] for at in range(0, len(batch), _SENT)), now)
    _announce_all(new_tasks)


def create_free(new_tasks: Sequence[NewTask]) -> set[uuid.UUID]:
    """Insert those of these tasks whose keys are free, in one statement; return their ids.

    The caller has read that the keys are free. Another transaction may have taken some since.
    """
    new_tasks = [encrypted_task(task) for task in new_tasks]
    created = _insert_free(new_tasks) if new_tasks else set()
    _announce_all([task for task in new_tasks if task.id in created])
    return created


@verb
def _insert_free(batch: Sequence[NewTask]) -> set[uuid.UUID]:
    try:
        with atomic():
            tasks().bulk_create([object_of(task) for task in batch])
    except IntegrityError as error:
        if not is_unique_violation(error):
            raise
        return {task.id for task in batch if _insert_unless_taken(task)}
    return {task.id for task in batch}


@_insert_free.on(POSTGRESQL)
def _insert_free_in_one_statement(batch: Sequence[NewTask]) -> set[uuid.UUID]:
    statement = f"{insert_statement('create_each')} ON CONFLICT DO NOTHING RETURNING id"
    rows = read(statement, {"rows": recordset(task._asdict() for task in batch)})
    return {task_id for (task_id,) in rows}


def create_stream(
    chunks: Iterator[Sequence[NewTask]], number: int, within: float
) -> Sequence[NewTask]:
    """Insert the next tasks of ``chunks``, at most ``number``, and return them; none if there are
    no more.

    With COPY the database writes them while ``chunks`` builds others, which must not use the
    connection. The statement ends after about ``within`` seconds, even if ``chunks`` has more. If
    ``chunks`` raises an exception, the caller rolls back.
    """
    now = copy_time() if number >= _COPIED else None
    if now is None:
        new_tasks = [encrypted_task(task) for chunk in chunks for task in chunk]
        if new_tasks:
            _insert(new_tasks)
    else:
        new_tasks = _copy(
            ([encrypted_task(task) for task in chunk] for chunk in chunks), now, within
        )
    _announce_all(new_tasks)
    return new_tasks


def _copy(
    chunks: Iterable[Sequence[NewTask]], now: datetime, within: float = float("inf")
) -> list[NewTask]:
    """Insert by COPY; ``now`` is the time of the database."""
    copied, began = list[NewTask](), time.monotonic()
    with copying(insert_statement("copy_tasks")) as send:
        for chunk in chunks:
            send(rows_of(chunk, now))
            copied += chunk
            if time.monotonic() - began > within:
                break
    return copied


@verb
def _insert(batch: Sequence[NewTask]) -> None:
    tasks().bulk_create([object_of(task) for task in batch])


@_insert.on(POSTGRESQL)
def _insert_in_one_statement(batch: Sequence[NewTask]) -> None:
    count(insert_statement("create_each"), {"rows": recordset(task._asdict() for task in batch)})


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
        if at is not None and pairs:
            ports.due.rescheduled(at)
        if "run_at" in changes:
            changes["due_at"] = Case(
                When(status=Status.PENDING, then=constant(changes["run_at"])), default=None
            )
        if "due_at" in changes:
            changes["waiting_for_limit"] = None  # the next claim checks the limits again
        if "args" in changes or "kwargs" in changes:
            changes["position"] = None  # it belongs to the other arguments
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
