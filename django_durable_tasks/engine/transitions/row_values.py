"""Converts new tasks to ORM objects, and to the parameters of the SQL forms of bulk INSERTs."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db.models import NOT_PROVIDED, Expression

from django_durable_tasks import conf
from django_durable_tasks.engine.db.statements import recordset
from django_durable_tasks.models import Task
from django_durable_tasks.models.clock import DatabaseNow
from django_durable_tasks.rules.encryption import stored_value
from django_durable_tasks.rules.states import Status
from django_durable_tasks.rules.tasks.new_task import NewTask

_NO_COLUMN = frozenset(
    {"wait", "expires_in", "has_given_id", "due_at", "unresolved", "starts_batch"}
)
_COLUMNS = tuple(name for name in NewTask._fields if name not in _NO_COLUMN)


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
    found = {field.attname: field.db_default for field in Task._meta.concrete_fields}
    unset = (NOT_PROVIDED,)
    return {
        name: None if value in unset or isinstance(value, Expression) else value
        for name, value in found.items()
    }


def _values_of(task: NewTask, start: Any) -> dict[str, Any]:
    values: dict[str, Any] = {name: getattr(task, name) for name in _COLUMNS}
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
    return value if task.encryption_key is None else stored_value(value) or value


def are_alike(tasks: Sequence[NewTask]) -> bool:
    """Return whether the tasks differ only in id, arguments, shard and limit key.

    This is the case for the tasks of one ``schedule_many`` call.
    """
    if not tasks:
        return True
    first = tasks[0]
    if first.recurring_task_id is not None or first.workflow_id is not None:
        return False
    return all(task.is_like(first) for task in tasks)


def records_of(tasks: Sequence[NewTask]) -> dict[str, str]:
    """Return the parameters of ``create_each``, for tasks that may differ in every column."""
    return {"rows": recordset(task._asdict() for task in tasks)}


def columns_of(tasks: Sequence[NewTask]) -> dict[str, Any]:
    """Return the parameters of ``create_many``, for tasks for which ``are_alike`` is true."""
    return {
        **tasks[0]._asdict(),
        "ids": [task.id for task in tasks],
        "argses": [task.args for task in tasks],
        "kwargses": [task.kwargs for task in tasks],
        "shards": [task.shard_key for task in tasks],
        "limit_keys": [task.limit_key for task in tasks],
    }
