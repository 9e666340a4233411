"""New tasks as rows in the binary format of PostgreSQL's COPY."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from struct import Struct
from typing import Any

from django_durable_tasks.engine.db.copy import NULL, copied, microseconds
from django_durable_tasks.rules.states import Status
from django_durable_tasks.rules.tasks.new_task import PER_CALL, PER_OCCURRENCE, NewTask

COLUMNS = {
    "id": "uuid",
    "args": "jsonb",
    "kwargs": "jsonb",
    "shard_key": "smallint",
    "limit_key": "text",
    "run_at": "timestamptz",
    "due_at": "timestamptz",
    "expires_at": "timestamptz",
    "idempotency_key": "text",
    "unique_key": "text",
    "open_unique_key": "text",
    "recurring_task_id": "uuid",
    "fire_time": "timestamptz",
    "overlap_key": "text",
    "step": "text",
    "tenant_id": "bigint",
    "name": "text",
    "queue": "text",
    "priority": "smallint",
    "options": "jsonb",
    "status": "text",
    "created_at": "timestamptz",
    "updated_at": "timestamptz",
    "epoch": "bigint",
    "publish_count": "integer",
    "max_attempts": "integer",
    "max_crashes": "integer",
    "on_orphan": "text",
    "expected_duration": "interval",
    "time_zone": "text",
    "workflow_id": "uuid",
    "join_count": "integer",
    "on_upstream_failure": "text",
    "unresolved_dependencies_count": "integer",
    "has_dependents": "boolean",
    "weight": "smallint",
    "target_type": "text",
    "encryption_key": "text",
    "in_batch": "boolean",
}
"""The columns of ``copy_tasks`` and their types, in its order: those of the fields PER_CALL of
NewTask, those of its fields PER_OCCURRENCE, and the others.
"""
_OWN = PER_CALL - PER_OCCURRENCE + 1
"""The number of columns of the first two groups: ``unique_key`` is written to two columns."""
_SHARED = tuple(COLUMNS.values())[_OWN:]
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
    end, rows, width = b"", list[bytes](), len(COLUMNS)
    ends = dict[tuple[Any, ...], bytes]()
    for task in tasks:
        if task[PER_CALL:] != shared:
            shared, group = task[PER_CALL:], task[PER_CALL:PER_OCCURRENCE]
            if group not in ends:
                ends[group] = _shared_columns(task, now)
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
    schedule, unique_key = task.recurring_task_id, _text(task.unique_key)
    return b"".join(
        (
            run_at := _time(8, microseconds(start)),
            run_at if due_at is start else _instant(due_at),
            _instant(expires_at),
            _text(task.idempotency_key),
            unique_key,
            unique_key,
            NULL if schedule is None else _uuid(16, schedule.bytes),
            run_at if task.fire_time is start else _instant(task.fire_time),
            _text(task.overlap_key),
            _text(task.step),
        )
    )


def _instant(value: datetime | None) -> bytes:
    return NULL if value is None else _time(8, microseconds(value))


def _text(value: str | None) -> bytes:
    return NULL if value is None else copied(value, "text")


def _shared_columns(task: NewTask, now: datetime) -> bytes:
    """Return the columns in which neither the tasks of one bulk call nor the occurrences of
    schedules of one task differ.
    """
    values = (
        *(task.tenant_id, task.name, task.queue, task.priority, task.options, task.status),
        *(now, now, task.epoch, task.publish_count),
        *(task.max_attempts, task.max_crashes, task.on_orphan, task.expected_duration),
        *(task.time_zone, task.workflow_id),
        *(task.join_count, task.on_upstream_failure, task.unresolved, task.has_dependents),
        *(task.weight, task.target_type, task.encryption_key, task.in_batch),
    )
    return b"".join(map(copied, values, _SHARED))
