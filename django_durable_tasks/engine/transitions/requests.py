"""Inserts requests to RUNNING tasks in a transaction that the caller opened.

An UPDATE of the task's row would block its heartbeat and its ending until the caller commits. A
request is a separate row, so it is rolled back with the transaction. It is applied after the COMMIT
(``engine/tasks/requests.py``). If the process terminates before that, the leader applies it.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from django.db import IntegrityError

from django_durable_tasks import ports
from django_durable_tasks.engine.db.commit_hooks import CommitHook, hook_of_transaction
from django_durable_tasks.engine.db.tables import atomic, database, tasks
from django_durable_tasks.models import RequestKind, TaskRequest
from django_durable_tasks.rules.states import OPEN


def _insert(rows: Sequence[TaskRequest]) -> None:
    TaskRequest.objects.using(database()).bulk_create(rows)
    _apply_after_commit([row.task_id for row in rows])


class _ApplyHook(CommitHook):
    """Applies all requests of a transaction."""

    def __init__(self) -> None:
        super().__init__()
        self.task_ids: dict[uuid.UUID, None] = {}

    def act(self) -> None:
        ports.apply_requests(list(self.task_ids))


def _apply_after_commit(task_ids: Sequence[uuid.UUID]) -> None:
    # Applying the requests of a savepoint that was rolled back does nothing: their rows are gone.
    hook = hook_of_transaction(_ApplyHook, _ApplyHook, any_savepoint=True)
    hook.task_ids |= dict.fromkeys(task_ids)


def leave_cancels(ids: Sequence[uuid.UUID], reason: str) -> None:
    """Request the cancellation of these tasks."""
    if ids:
        _insert(
            [
                TaskRequest(kind=RequestKind.CANCEL, task_id=task_id, reason=reason[:200])
                for task_id in ids
            ]
        )


def leave_marks(ids: Sequence[uuid.UUID]) -> None:
    """Request that ``has_dependents`` is set on these upstreams, because this transaction inserted
    edges to them without locking them.
    """
    if ids:
        _insert([TaskRequest(kind=RequestKind.DEPENDENTS, task_id=task_id) for task_id in ids])


def leave_key(
    kind: RequestKind, tenant_id: int, key: str, owner: uuid.UUID, before: uuid.UUID | None
) -> bool:
    """Request that the task ``owner`` becomes the owner of this key.

    ``before``: the task that the existing request names, if the caller has found one. That request
    is changed. A request whose task is not open anymore is changed too. Returns False if another
    transaction has changed or inserted a request of this key.
    """
    of_key = TaskRequest.objects.using(database()).for_key(kind, tenant_id, key)
    if before is not None:
        _apply_after_commit([owner])
        return bool(of_key.filter(task_id=before).update(task_id=owner))
    requested = of_key.values_list("task_id", flat=True).first()
    stale = (
        None
        if requested is None or tasks().filter(pk=requested, status__in=OPEN).exists()
        else requested
    )
    if stale is not None and of_key.filter(task_id=stale).update(task_id=owner):
        _apply_after_commit([owner])
        return True
    try:
        with atomic():
            _insert([TaskRequest(kind=kind, tenant_id=tenant_id, key=key, task_id=owner)])
    except IntegrityError:
        return False
    return True
