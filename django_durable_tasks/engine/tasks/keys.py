"""Idempotency keys, ``unique`` and ``key``: finds the task that has the key, or assigns the key to
the new task.

``enqueue`` calls these functions.
"""

from __future__ import annotations

import json
import uuid
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.models import Q

from django_durable_tasks.engine import transitions
from django_durable_tasks.engine.audit.actor import current_actor
from django_durable_tasks.engine.audit.task_values import masked_arguments
from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.tasks import requests
from django_durable_tasks.engine.tasks.insert import insert
from django_durable_tasks.engine.tasks.new_task import Call
from django_durable_tasks.exceptions import IdempotencyConflict, TransitionRefused, UniqueConflict
from django_durable_tasks.models import RequestKind, Task
from django_durable_tasks.rules.audit import AuditSource
from django_durable_tasks.rules.states import Status, UniqueOnConflict
from django_durable_tasks.rules.target_types import TargetType
from django_durable_tasks.rules.targets import content_id
from django_durable_tasks.rules.tasks.new_task import NewTask

_TRIES = 5


def same_call(call: Call, task: NewTask) -> uuid.UUID | None:
    """Return the task that the first call with this idempotency key, or this id, created.

    Raises IdempotencyConflict if that call was of another task or had other arguments. Clients of
    the API may not be able to read secrets, so that for them these are not compared.
    """
    lookup: dict[str, Any]
    if task.idempotency_key is not None:
        lookup = {"idempotency_key": task.idempotency_key}
        label = f"idempotency_key={task.idempotency_key!r}"
    elif task.has_given_id:
        lookup, label = {"pk": task.id}, f"task_id={task.id}"
    else:
        return None
    first = tables.tasks().for_tenant(task.tenant_id).filter(**lookup).first()
    if first is None:
        return None
    if first.name != task.name or not _same_arguments(first, task):
        raise IdempotencyConflict(
            f"{label} belongs to task {first.pk} ({first.name}) with other arguments."
        )
    return first.id


def _same_arguments(first: Task, task: NewTask) -> bool:
    args, kwargs = json.loads(task.args), json.loads(task.kwargs)
    if current_actor().source != AuditSource.API:
        return bool((first.args, first.kwargs) == (args, kwargs))
    shown = masked_arguments(first.name, first.args, first.kwargs)
    return shown == masked_arguments(first.name, args, kwargs)


def acquire_unique(call: Call, task: NewTask, key: str) -> uuid.UUID:
    """Apply ``unique_on_conflict`` to the open task that has the unique key.

    Return its id, or the id of the task that replaces it. Raises UniqueConflict.
    """
    policy = call.task.options.unique_on_conflict
    for _ in range(_TRIES):
        owner = requests.owner(RequestKind.UNIQUE_KEY, task.tenant_id, key)
        if owner is not None and policy == UniqueOnConflict.RAISE:
            raise UniqueConflict(
                f"unique={key!r} belongs to the open task {owner.pk} ({owner.status})."
            )
        if owner is not None and policy == UniqueOnConflict.RETURN_EXISTING:
            return owner.id
        with tables.atomic():
            if owner is not None:
                replaced = tables.tasks().filter(pk=owner.pk)
                transitions.cancel(replaced, "REPLACED")
                transitions.request_cancel(replaced, "REPLACED")
            if _insert_as_owner(owner, RequestKind.UNIQUE_KEY, task, key):
                return task.id
            # Nothing was inserted, so the cancellation of the owner is rolled back.
            transaction.set_rollback(True, using=tables.database())
    raise UniqueConflict(
        f"unique={key!r} was not acquired after {_TRIES} attempts because of concurrent updates;"
        " retry the call."
    )


def _insert_as_owner(owner: Task | None, kind: RequestKind, task: NewTask, key: str) -> bool:
    """Insert a task whose key this RUNNING owner releases; return False if another key is taken.

    In a caller's transaction the owner's row is not touched, because its ending would wait for the
    caller's commit. The key is passed on after that commit.
    """
    if owner is None:
        return insert(task)
    this = tables.tasks().filter(pk=owner.pk)
    if not tables.callers_transaction():
        transitions.release_key(this, kind.marker)
        return insert(task)
    before = owner.pk if getattr(owner, kind.marker) is None else None
    if before is None and not this.filter(**{kind.marker: key}).exists():
        return insert(task)
    if not requests.leave_key(kind, task.tenant_id, key, task.id, before):
        return False
    without_key = (
        task._replace(key=None) if kind == RequestKind.KEY else task._replace(unique_key=None)
    )
    return insert(without_key) and transitions.name_key(task.id, kind.lower(), key)


def upsert(call: Call, task: NewTask, key: str) -> uuid.UUID:
    """Update the waiting task of this key, or create it; return its id.

    A RUNNING task of the key finishes with its arguments, and a new task becomes the key's owner.
    """
    same = same_call(call, task)
    if same is not None:
        return same
    for _ in range(_TRIES):
        found = _update_or_insert(call, task, key) or same_call(call, task)
        if found is not None:
            return found
    if task.unique_key is not None:
        return acquire_unique(call, task, task.unique_key)
    raise TransitionRefused(
        f"key={key!r} was not acquired after {_TRIES} attempts because of concurrent updates;"
        " retry the call."
    )


def _update_or_insert(call: Call, task: NewTask, key: str) -> uuid.UUID | None:
    """Return the id of the task; None if the key's owner changed or another key is taken."""
    with tables.atomic():
        # The owner is locked by its primary key, as every transition locks it. On MariaDB a lock
        # by the index of the key would deadlock with them.
        current = requests.owner(RequestKind.KEY, task.tenant_id, key)
        owner = None if current is None else transitions.lock_rows([current.pk]).get(current.pk)
        if current is not None and (
            owner is None or owner.open_key != current.open_key or not owner.is_open
        ):
            return None
        if owner is not None and owner.name != task.name:
            raise TransitionRefused(
                f"key={key!r} belongs to the open task {owner.pk} of {owner.name}."
            )
        if owner is not None and owner.status != Status.RUNNING:
            return _update(owner, call, task)
        if _insert_as_owner(owner, RequestKind.KEY, task, key):
            return task.id
        # Nothing was inserted, so the RUNNING owner must keep its key.
        transaction.set_rollback(True, using=tables.database())
    return None


def _update(row: Task, call: Call, task: NewTask) -> uuid.UUID:
    this = tables.tasks().filter(pk=row.pk)
    args, kwargs = json.loads(task.args), json.loads(task.kwargs)
    options = json.loads(task.options) if task.options else None
    if row.attempts and call.task.target.type is TargetType.HTTP_CALLBACK:
        is_edited = (args, kwargs) != (row.args, row.kwargs)
        options = content_id.of_call(row.options, options, is_edited=is_edited)
    transitions.return_to_pending(this, 0)
    transitions.edit(
        this,
        args=args,
        kwargs=kwargs,
        priority=task.priority,
        queue=task.queue,
        run_at=call.options.run_at or tables.NOW,
        expires_at=_expiry(task),
        max_attempts=task.max_attempts,
        max_crashes=task.max_crashes,
        on_orphan=task.on_orphan,
        options=options,
        expected_duration=(
            timedelta(seconds=task.expected_duration) if task.expected_duration else None
        ),
        limit_key=task.limit_key,
        weight=task.weight,
        in_batch=task.in_batch,
    )
    return row.id


def _expiry(task: NewTask) -> Any:
    if task.expires_at is not None or task.expires_in is None:
        return task.expires_at
    return (task.run_at or tables.NOW) + timedelta(seconds=task.expires_in)


def key_owners(task: NewTask) -> list[uuid.UUID]:
    """Return the open tasks that own the keys of this one.

    The caller locks them together with the upstreams, in primary-key order.
    """
    names = {"key": task.key, "unique_key": task.unique_key}
    keys = {name: key for name, key in names.items() if key is not None}
    if not keys:
        return []
    owners = Q(*((f"open_{name}", key) for name, key in keys.items()), _connector=Q.OR)
    found = tables.tasks().filter(owners, tenant_id=task.tenant_id)
    return list(found.values_list("pk", flat=True))
