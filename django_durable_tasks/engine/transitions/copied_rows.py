"""New tasks as rows in the binary format of PostgreSQL's COPY."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from struct import Struct
from typing import Any

from django_durable_tasks.engine.db.copy import NULL, copied
from django_durable_tasks.rules.states import Status
from django_durable_tasks.rules.tasks.new_task import PER_CALL, NewTask

COLUMNS = {
    "id": "uuid",
    "args": "jsonb",
    "kwargs": "jsonb",
    "shard_key": "smallint",
    "limit_key": "text",
    "tenant_id": "bigint",
    "name": "text",
    "queue": "text",
    "priority": "smallint",
    "options": "jsonb",
    "status": "text",
    "run_at": "timestamptz",
    "due_at": "timestamptz",
    "expires_at": "timestamptz",
    "created_at": "timestamptz",
    "updated_at": "timestamptz",
    "epoch": "bigint",
    "publish_count": "integer",
    "max_attempts": "integer",
    "max_crashes": "integer",
    "on_orphan": "text",
    "expected_duration": "interval",
    "idempotency_key": "text",
    "unique_key": "text",
    "open_unique_key": "text",
    "time_zone": "text",
    "recurring_task_id": "uuid",
    "fire_time": "timestamptz",
    "overlap_key": "text",
    "workflow_id": "uuid",
    "step": "text",
    "join_count": "integer",
    "on_upstream_failure": "text",
    "unresolved_dependencies_count": "integer",
    "has_dependents": "boolean",
    "weight": "smallint",
    "target_type": "text",
    "encryption_key": "text",
    "in_batch": "boolean",
}
"""The columns of ``copy_tasks`` and their types, in its order. The first PER_CALL are those of
NewTask.
"""
_SHARED = tuple(COLUMNS.values())[PER_CALL:]
# The number of columns, the id, and the length and version of ``args``, as one value of ``jsonb``.
_start = Struct(">hi16sib").pack
_json = Struct(">ib").pack
_shard = Struct(">ih").pack


def rows_of(tasks: Sequence[NewTask], now: datetime) -> bytes:
    """Return the rows of tasks whose keys are free. ``now``: the time of tasks without ``run_at``,
    and of the creation.
    """
    shared: tuple[Any, ...] = ()
    end, rows, width = b"", list[bytes](), len(COLUMNS)
    for task in tasks:
        if task[PER_CALL:] != shared:
            shared, end = task[PER_CALL:], _shared_columns(task, now)
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


def _shared_columns(task: NewTask, now: datetime) -> bytes:
    """Return the columns in which the tasks of one bulk call do not differ."""
    start = task.run_at or now
    due_at = expires_at = None
    if task.status != Status.BLOCKED:
        due_at = task.due_at or start + timedelta(seconds=task.wait or 0.0)
    if task.expires_at is not None or task.expires_in is not None:
        expires_at = task.expires_at or start + timedelta(seconds=task.expires_in or 0.0)
    values = (
        *(task.tenant_id, task.name, task.queue, task.priority, task.options, task.status),
        *(start, due_at, expires_at, now, now, task.epoch, task.publish_count),
        *(task.max_attempts, task.max_crashes, task.on_orphan, task.expected_duration),
        *(task.idempotency_key, task.unique_key, task.unique_key, task.time_zone),
        *(task.recurring_task_id, task.fire_time, task.overlap_key, task.workflow_id, task.step),
        *(task.join_count, task.on_upstream_failure, task.unresolved, task.has_dependents),
        *(task.weight, task.target_type, task.encryption_key, task.in_batch),
    )
    return b"".join(map(copied, values, _SHARED))
