"""New tasks as rows in the text format of PostgreSQL's COPY."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django_durable_tasks.engine.db.copy import NULL, copied, copied_text
from django_durable_tasks.rules.states import Status
from django_durable_tasks.rules.tasks.new_task import PER_CALL, NewTask

COLUMNS = (
    "id",
    "args",
    "kwargs",
    "shard_key",
    "limit_key",
    "tenant_id",
    "name",
    "queue",
    "priority",
    "options",
    "status",
    "run_at",
    "due_at",
    "expires_at",
    "created_at",
    "updated_at",
    "epoch",
    "publish_count",
    "max_attempts",
    "max_crashes",
    "on_orphan",
    "expected_duration",
    "idempotency_key",
    "unique_key",
    "open_unique_key",
    "time_zone",
    "recurring_task_id",
    "fire_time",
    "overlap_key",
    "workflow_id",
    "step",
    "join_count",
    "on_upstream_failure",
    "unresolved_dependencies_count",
    "has_dependents",
    "weight",
    "target_type",
    "encryption_key",
    "in_batch",
)
"""The columns of ``copy_tasks``, in its order. The first PER_CALL are those of NewTask."""


def rows_of(tasks: Sequence[NewTask], now: datetime) -> str:
    """Return the rows of tasks whose keys are free. ``now``: the time of tasks without ``run_at``,
    and of the creation.
    """
    shared: tuple[Any, ...] = ()
    end, lines = "", []
    for task in tasks:
        if task[PER_CALL:] != shared:
            shared, end = task[PER_CALL:], _shared_columns(task, now)
        limit_key = NULL if task.limit_key is None else copied_text(task.limit_key)
        lines.append(
            f"{task.id.int:032x}\t{copied_text(task.args)}\t{copied_text(task.kwargs)}"
            f"\t{task.shard_key}\t{limit_key}\t{end}\n"
        )
    return "".join(lines)


def _shared_columns(task: NewTask, now: datetime) -> str:
    """Return the columns in which the tasks of one bulk call do not differ."""
    start = task.run_at or now
    due_at = expires_at = None
    if task.status != Status.BLOCKED:
        due_at = task.due_at or start + timedelta(seconds=task.wait or 0.0)
    if task.expires_at is not None or task.expires_in is not None:
        expires_at = task.expires_at or start + timedelta(seconds=task.expires_in or 0.0)
    duration = task.expected_duration
    values = (
        *(task.tenant_id, task.name, task.queue, task.priority, task.options, task.status),
        *(start, due_at, expires_at, now, now, task.epoch, task.publish_count),
        *(task.max_attempts, task.max_crashes, task.on_orphan),
        None if duration is None else f"{duration} seconds",
        *(task.idempotency_key, task.unique_key, task.unique_key, task.time_zone),
        *(task.recurring_task_id, task.fire_time, task.overlap_key, task.workflow_id, task.step),
        *(task.join_count, task.on_upstream_failure, task.unresolved, task.has_dependents),
        *(task.weight, task.target_type, task.encryption_key, task.in_batch),
    )
    return "\t".join(map(copied, values))
