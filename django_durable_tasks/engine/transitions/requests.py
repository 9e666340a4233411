"""What a caller's transaction wants of RUNNING rows: written beside them, and applied after its
commit.

An UPDATE of the row would block its heartbeat and its ending until the caller commits. A request is
a row of its own, so it is rolled back with the transaction, and the leader applies what a process
that died after its commit has left.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from django.db import IntegrityError, connections, transaction

from django_durable_tasks import ports
from django_durable_tasks.engine.db.tables import atomic, database, tasks
from django_durable_tasks.models import RequestKind, TaskRequest
from django_durable_tasks.rules.states import OPEN


def _leave(rows: Sequence[TaskRequest]) -> None:
    TaskRequest.objects.using(database()).bulk_create(rows)
    _apply_after_commit([row.task_id for row in rows])


class _AfterCommit:
    """The one on-commit hook of a transaction: applies all that it requested."""

    def __init__(self) -> None:
        self.task_ids: dict[uuid.UUID, None] = {}
        self.done = False

    def __call__(self) -> None:
        self.done = True  # a test may run the hooks of a transaction that goes on
        ports.apply_requests(list(self.task_ids))


def _apply_after_commit(task_ids: Sequence[uuid.UUID]) -> None:
    # Whatever hook is still registered serves: rolling back to a savepoint that is open now removes
    # the requests of
    # this moment together with the hook, and one that is closed cannot be rolled back by itself.
    hooks = (hook for _, hook, *_ in reversed(connections[database()].run_on_commit))
    hook = next((hook for hook in hooks if isinstance(hook, _AfterCommit) and not hook.done), None)
    if hook is None:
        hook = _AfterCommit()
        transaction.on_commit(hook, using=database(), robust=True)
    hook.task_ids |= dict.fromkeys(task_ids)


def leave_cancels(ids: Sequence[uuid.UUID], reason: str) -> None:
    """Request that these tasks stop."""
    if ids:
        _leave(
            [
                TaskRequest(kind=RequestKind.CANCEL, task_id=task_id, reason=reason[:200])
                for task_id in ids
            ]
        )


def leave_marks(ids: Sequence[uuid.UUID]) -> None:
    """Request that these upstreams, which were not locked, learn of edges that this transaction has
    placed.
    """
    if ids:
        _leave([TaskRequest(kind=RequestKind.DEPENDENTS, task_id=task_id) for task_id in ids])


def leave_key(
    kind: RequestKind, tenant_id: int, key: str, owner: uuid.UUID, before: uuid.UUID | None
) -> bool:
    """Request that the task ``owner`` takes this key over, or takes it instead of ``before``, which
    was to take it.

    A task that is not open any more takes nothing: its request is taken over. False when another
    transaction was first.
    """
    same = TaskRequest.objects.using(database()).for_key(kind, tenant_id, key)
    if before is not None:
        _apply_after_commit([owner])
        return bool(same.filter(task_id=before).update(task_id=owner))
    named = same.values_list("task_id", flat=True).first()
    stale = None if named is None or tasks().filter(pk=named, status__in=OPEN).exists() else named
    if stale is not None and same.filter(task_id=stale).update(task_id=owner):
        _apply_after_commit([owner])
        return True
    try:
        with atomic():
            _leave([TaskRequest(kind=kind, tenant_id=tenant_id, key=key, task_id=owner)])
    except IntegrityError:
        return False
    return True
