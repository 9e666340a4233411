"""Encrypts the arguments and results that statements write, if encryption is switched on."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from django.db.models import Case, JSONField, Q, Value, When

from django_durable_tasks.encryption import current_key_id, encrypted
from django_durable_tasks.engine.db.tables import tasks
from django_durable_tasks.models.encrypted_json import TASK_TABLE
from django_durable_tasks.rules.encryption import MARK, MIXED, EncryptedValue, StorageLocation
from django_durable_tasks.rules.tasks.new_task import NewTask

_EMPTY = ("[]", "{}")


def place(tenant_id: int, column: str, task_id: uuid.UUID) -> StorageLocation:
    """Return where a column of a task is stored."""
    return StorageLocation(tenant_id, TASK_TABLE, column, str(task_id))


def encrypted_task(task: NewTask) -> NewTask:
    """Return a new task with encrypted arguments; the same one if nothing is encrypted."""
    key = current_key_id()
    if key is None:
        if MARK in task.kwargs:
            encrypted(json.loads(task.kwargs), place(task.tenant_id, "kwargs", task.id))
        return task
    if task.encryption_key is not None or (task.args in _EMPTY and task.kwargs in _EMPTY):
        return task
    return task._replace(
        args=_text(task.args, place(task.tenant_id, "args", task.id)),
        kwargs=_text(task.kwargs, place(task.tenant_id, "kwargs", task.id)),
        encryption_key=key,
    )


def encrypted_tasks(tasks_: Sequence[NewTask]) -> list[NewTask]:
    """Return new tasks with encrypted arguments. All have the same key id, so that they stay
    alike.
    """
    if current_key_id() is None and not any(MARK in task.kwargs for task in tasks_):
        return list(tasks_)
    found = [encrypted_task(task) for task in tasks_]
    key = next((task.encryption_key for task in found if task.encryption_key is not None), None)
    return found if key is None else [task._replace(encryption_key=key) for task in found]


def _text(text: str, where: StorageLocation) -> str:
    value = encrypted(json.loads(text), where)
    return json.dumps(dict(value.envelope)) if isinstance(value, EncryptedValue) else text


def encrypted_result(
    result: str | None, tenant_id: int, task_id: uuid.UUID
) -> tuple[str | None, str | None]:
    """Return the JSON text to store, and the id of its key; the text itself and None if it is not
    encrypted.
    """
    key = current_key_id()
    if key is None or result is None:
        return result, None
    value = encrypted(json.loads(result), place(tenant_id, "result", task_id))
    if not isinstance(value, EncryptedValue):
        return result, None
    return json.dumps(dict(value.envelope)), key


def encrypted_changes(ids: Sequence[uuid.UUID], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes of an UPDATE of these tasks with encrypted arguments, and the key id."""
    names = [name for name in ("args", "kwargs") if name in changes]
    key = current_key_id()
    if not names or key is None:
        return dict(changes)
    tenants = dict(tasks().filter(pk__in=list(ids)).values_list("pk", "tenant_id"))
    found = dict(changes)
    for name in names:
        values = {
            task_id: encrypted(changes[name], place(tenant_id, name, task_id))
            for task_id, tenant_id in tenants.items()
        }
        if any(isinstance(value, EncryptedValue) for value in values.values()):
            found[name] = Case(
                *(
                    When(pk=task_id, then=Value(dict(value.envelope), JSONField()))
                    for task_id, value in values.items()
                )
            )
            found["encryption_key"] = key_after(key)
    return found


def key_after(key: str) -> Case:
    """Return the key id of a row after a value was encrypted with this key: MIXED if other values
    of the row have another key, so that a rotation finds it.
    """
    same = Q(encryption_key__isnull=True) | Q(encryption_key=key)
    return Case(When(same, then=Value(key)), default=Value(MIXED))
