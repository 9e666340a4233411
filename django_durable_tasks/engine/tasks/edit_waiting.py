"""Edits a task that has not started: its arguments, times, queue and priority."""

from __future__ import annotations

import json
import uuid
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
from django_durable_tasks.exceptions import EncryptionError
from django_durable_tasks.models import Task
from django_durable_tasks.models.task_queries import TaskQuerySet
from django_durable_tasks.rules.target_types import TargetType
from django_durable_tasks.rules.targets.content_id import after_edit
from django_durable_tasks.rules.tasks.arguments import JSON_MAX_DEPTH, encode
from django_durable_tasks.rules.tasks.comments import done_by
from django_durable_tasks.rules.tasks.options import CallOptions, call_options, checked_name
from django_durable_tasks.rules.workflows.plan import REFERS

_BATCH = 1_000
"""Tasks per statement, because a statement has a limited number of parameters."""


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
    with recorded(f"tasks.{_NAMES[action]}", by=by, reason=reason) as entry, tables.atomic():
        entry.detail(**_given(change))
        waiting = queryset.filter(status__in=transitions.WAITING).order_by("pk")
        ids = list(waiting.values_list("pk", flat=True))
        more = {"reason": done_by(action, by, reason)} if by or reason else {}
        batches = (ids[first : first + _BATCH] for first in range(0, len(ids), _BATCH))
        return sum(_edit_batch(batch, change, more) for batch in batches)


def _edit_batch(ids: list[uuid.UUID], change: TaskEdit, more: dict[str, Any]) -> int:
    # Locked before they are read, so that the new arguments are derived from the present ones.
    these = tables.tasks().filter(pk__in=ids, status__in=transitions.WAITING)
    rows = list(tables.locked_for_change(these).order_by("pk"))
    groups = _alike({row.pk: {**_columns(row, change), **more} for row in rows})
    transitions.return_to_pending(these, 0)
    return sum(
        transitions.edit(tables.tasks().filter(pk__in=keys), **columns) for keys, columns in groups
    )


def _alike(
    columns: Mapping[uuid.UUID, dict[str, Any]],
) -> list[tuple[list[uuid.UUID], dict[str, Any]]]:
    """Return the tasks in groups whose new values are the same, with these values. Values that are
    independent of the task are one group, so the number of statements is constant.
    """
    groups: dict[str, tuple[list[uuid.UUID], dict[str, Any]]] = {}
    for key, values in columns.items():
        name = json.dumps(values, sort_keys=True, default=str)
        groups.setdefault(name, ([], values))[0].append(key)
    return list(groups.values())


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
    # The stored arguments are read only if they are needed: a task whose arguments cannot be
    # decrypted can still be rescheduled.
    if change.args is not None or change.kwargs is not None:
        args = list(row.args if change.args is None else change.args)
        kwargs = dict(row.kwargs if change.kwargs is None else change.kwargs)
        columns |= arguments_columns(row, args, kwargs)
    if change.queue is not None:
        # A named queue does not depend on the arguments.
        queue = ports.queue_of(row.name, change.queue, (), {})
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
        task.check(args, kwargs)
        stored: Mapping[str, Any] = kwargs
    else:
        stored = prepared_kwargs(task, call.args, kwargs)
    payload = encode(
        row.name,
        args,
        stored,
        max_bytes=settings.PAYLOAD_MAX_BYTES,
        max_depth=JSON_MAX_DEPTH,
    )
    columns = {
        "args": json.loads(payload.args),
        "kwargs": json.loads(payload.kwargs),
        "limit_key": limit_key(call),
    }
    sends_requests = row.attempts and task.target.type is TargetType.HTTP_CALLBACK
    if sends_requests and not _has_arguments(row, columns["args"], columns["kwargs"]):
        columns["options"] = after_edit(row.options)
    return columns


def _has_arguments(row: Task, args: Any, kwargs: Any) -> bool:
    """Return whether the task has these arguments; False if its own cannot be decrypted."""
    try:
        return bool((args, kwargs) == (row.args, row.kwargs))
    except EncryptionError:
        return False
