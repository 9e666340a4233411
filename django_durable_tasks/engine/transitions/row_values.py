"""Converts new tasks to ORM objects, and to the parameters of the SQL forms of bulk INSERTs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django_durable_tasks.engine.db.statements import recordset
from django_durable_tasks.models import Task
from django_durable_tasks.models.clock import DatabaseNow
from django_durable_tasks.rules.encryption import stored_value
from django_durable_tasks.rules.states import Status
from django_durable_tasks.rules.tasks.new_task import NewTask

_NO_COLUMN = frozenset({"wait", "expires_in", "has_given_id", "due_at", "unresolved"})
_COLUMNS = tuple(name for name in NewTask._fields if name not in _NO_COLUMN)


def object_of(task: NewTask) -> Task:
    """Return the unsaved object; without ``run_at`` the task is due at the time of the database."""
    start = task.run_at or DatabaseNow()
    values: dict[str, Any] = {name: getattr(task, name) for name in _COLUMNS}
    if task.expires_in is not None and task.expires_at is None:
        values["expires_at"] = start + timedelta(seconds=task.expires_in)
    if task.status != Status.BLOCKED:
        values["due_at"] = task.due_at or start + timedelta(seconds=task.wait or 0.0)
    if task.expected_duration is not None:
        values["expected_duration"] = timedelta(seconds=task.expected_duration)
    return Task(
        **values
        | {
            "args": _stored(task, task.args),
            "kwargs": _stored(task, task.kwargs),
            "options": json.loads(task.options) if task.options else None,
            "run_at": start,
            "unresolved_dependencies_count": task.unresolved,
            "open_key": task.key,
            "open_unique_key": task.unique_key,
        }
    )


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
