"""Edits a task that has not started: its arguments, times, queue and priority."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django_durable_tasks import conf, ports, registry
from django_durable_tasks.engine import transitions
from django_durable_tasks.engine.audit.recorder import recorded
from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.db.deadlocks import retry_on_deadlock
from django_durable_tasks.engine.tasks.new_task import (
    Call,
    check_options,
    limit_key,
    prepared_kwargs,
)
from django_durable_tasks.models import Task
from django_durable_tasks.models.task_queries import TaskQuerySet
from django_durable_tasks.rules.tasks.arguments import bind, encode
from django_durable_tasks.rules.tasks.comments import done_by
from django_durable_tasks.rules.tasks.options import CallOptions, call_options, checked_name
from django_durable_tasks.rules.workflows.plan import REFERS


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEdit:
    """New values; None keeps the present one."""

    run_at: datetime | None = None
    expires_at: datetime | None = None
    priority: int | None = None
    queue: str | None = None
    args: Sequence[Any] | None = None
    kwargs: Mapping[str, Any] | None = None


@retry_on_deadlock
def edit_waiting(
    queryset: TaskQuerySet,
    change: TaskEdit,
    *,
    by: str = "",
    reason: str = "",
    action: str = "edited",
) -> int:
    """Edit the tasks that have not started; return how many.

    Raises DurableTasksError for values that a new task could not have, before anything is written.
    The messages of QUEUED tasks become stale.
    """
    with recorded(f"tasks.{_NAMES[action]}", by=by, reason=reason) as entry:
        entry.detail(**_given(change))
        edited = 0
        for row in list(queryset.filter(status__in=transitions.WAITING).order_by("pk")):
            this = tables.tasks().filter(pk=row.pk)
            columns = _columns(row, change)
            if by or reason:
                columns["reason"] = done_by(action, by, reason)
            transitions.return_to_pending(this, 0)
            edited += transitions.edit(this, **columns)
        return edited


_NAMES = {"edited": "edit", "rescheduled": "reschedule"}


def _given(change: TaskEdit) -> dict[str, Any]:
    """Return the new values for the audit entry, without the arguments, which may be secret."""
    names = ("run_at", "expires_at", "priority", "queue")
    return {name: value for name in names if (value := getattr(change, name)) is not None}


def _columns(row: Task, change: TaskEdit) -> dict[str, Any]:
    options = call_options(
        CallOptions(),
        {
            "run_at": change.run_at or row.run_at,
            "expires_at": change.expires_at or row.expires_at,
            "priority": change.priority,
            "queue": change.queue,
        },
    )
    check_options(options, conf.settings())
    columns: dict[str, Any] = {
        name: value
        for name in ("run_at", "expires_at", "priority")
        if (value := getattr(change, name)) is not None
    }
    args = list(row.args if change.args is None else change.args)
    kwargs = dict(row.kwargs if change.kwargs is None else change.kwargs)
    if change.args is not None or change.kwargs is not None:
        columns |= arguments_columns(row, args, kwargs)
    if change.queue is not None:
        queue = ports.queue_of(row.name, change.queue, args, kwargs)
        columns["queue"] = checked_name("queue", queue)
    return columns


def arguments_columns(row: Task, args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of changed arguments of a task; raises DurableTasksError if a call could
    not have them.

    Arguments with references to results are checked by the target when the references are resolved.
    """
    settings, task = conf.settings(), registry.get(row.name)
    call = Call(task, tuple(args), kwargs, CallOptions(tenant=row.tenant_id))
    if REFERS in (row.options or {}):
        bind(task.signature, row.name, args, kwargs)
        stored: Mapping[str, Any] = kwargs
    else:
        stored = prepared_kwargs(call)
    payload = encode(
        row.name,
        args,
        stored,
        max_bytes=settings.PAYLOAD_MAX_BYTES,
        max_depth=settings.JSON_MAX_DEPTH,
    )
    return {
        "args": json.loads(payload.args),
        "kwargs": json.loads(payload.kwargs),
        "limit_key": limit_key(call),
    }
