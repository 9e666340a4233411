"""Applies requests to RUNNING tasks after the commit of the transaction that inserted them.

The process that committed applies its requests at once. The leader applies those that remain.
Each request is applied once: requests are locked with SKIP LOCKED before the tasks that they
name, and deleted in the same transaction. If the upstream of a new edge ends before the
request is applied, an ending event is inserted. If it ends afterwards, ``has_dependents`` is
already set. Both are decided under the lock of the upstream, so no ending is missed.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from functools import partial

from django.db import Error, connections
from django.db.models import Q

from django_durable_tasks.choices import OPEN, TERMINAL, Status
from django_durable_tasks.dependencies import edges
from django_durable_tasks.dependencies.rules import DELETED
from django_durable_tasks.models import RequestKind, Task, TaskRequest
from django_durable_tasks.models.tasks import TaskQuerySet, TaskRequestQuerySet
from django_durable_tasks.states import dependencies, endings, guarded_update, inserts
from django_durable_tasks.store import tables
from django_durable_tasks.store.connections import (
    LEADER,
    WORK,
    TimeLimits,
    bound_transaction,
    dedicated_connection,
)
from django_durable_tasks.store.errors import Isolation, retry_on_deadlock
from django_durable_tasks.texts import counted

logger = logging.getLogger("django_durable_tasks.runs")
_isolation = Isolation[int]("request")
_PAGE = 500
_WITHIN = 5.0
_KEYS = (RequestKind.KEY, RequestKind.UNIQUE_KEY)


def requests() -> TaskRequestQuerySet:
    """Return a queryset of all requests."""
    queryset: TaskRequestQuerySet = TaskRequest.objects.using(tables.database())
    return queryset


def next_owner(kind: RequestKind, tenant_id: int, key: str) -> Task | None:
    """Return the open task that becomes the owner of this key when a request is applied, or None.

    Requests are read only in a transaction that the caller opened. Otherwise they have been applied
    already, or will give the key to the newest task.
    """
    if not tables.callers_transaction():
        return None
    task_id = requests().for_key(kind, tenant_id, key).values_list("task_id", flat=True).first()
    return None if task_id is None else tables.tasks().filter(pk=task_id, status__in=OPEN).first()


def owner(kind: RequestKind, tenant_id: int, key: str) -> Task | None:
    """Return the open task that owns this key, or that owns it after the caller's commit."""
    return next_owner(kind, tenant_id, key) or _owning(kind, tenant_id, key).first()


def leave_key(
    kind: RequestKind, tenant_id: int, key: str, task_id: uuid.UUID, before: uuid.UUID | None
) -> bool:
    """Request that this task becomes the owner of the key, instead of ``before`` if given.

    Returns False if another transaction was faster.
    """
    requested = endings.leave_key(kind, tenant_id, key, task_id, before)
    # While this transaction waited, another request may have been applied. Its task owns the key
    # now.
    return (
        requested
        and not _owning(kind, tenant_id, key).filter(status__in=guarded_update.WAITING).exists()
    )


def _owning(kind: RequestKind, tenant_id: int, key: str) -> TaskQuerySet:
    return tables.tasks().filter(tenant_id=tenant_id, **{kind.marker: key})


def apply_of(task_ids: Sequence[uuid.UUID]) -> None:
    """Apply the requests to these tasks; called after the commit.

    Requests that cannot be applied remain for the leader.
    """
    # True if a test runs the hooks of its transaction.
    inside = connections[tables.database()].in_atomic_block
    try:
        with nullcontext() if inside else dedicated_connection(LEADER):
            for first in range(0, len(task_ids), _PAGE):
                _apply_all(
                    requests().of(task_ids[first : first + _PAGE]),
                    _PAGE,
                    None if inside else LEADER,
                )
    except Error as error:
        logger.warning(
            "Could not apply the requests to %s; the leader applies them: %s",
            counted(len(task_ids), "running task"),
            type(error).__name__,
        )


def apply_left(size: int) -> int:
    """Apply the remaining requests, ``size`` in one transaction; return how many."""
    return _apply_all(requests(), size, WORK)


def _apply_all(queryset: TaskRequestQuerySet, size: int, limits: TimeLimits | None) -> int:
    """Apply requests of the queryset for at most _WITHIN seconds, oldest first; return how many.

    Requests whose tasks are locked are skipped.
    """
    end, applied, last = time.monotonic() + _WITHIN, 0, 0
    while time.monotonic() < end:
        pending = queryset.filter(pk__gt=last).exclude(pk__in=_isolation.postponed())
        page = list(pending.order_by("pk").values_list("pk", "kind")[:size])
        # Those of keys are applied one by one, the others in one transaction.
        without_key = [pk for pk, kind in page if kind not in _KEYS]
        done = _isolation.batch(
            partial(_apply_many, without_key, limits),
            partial(list, without_key),
            lambda key: _apply_many([key], limits),
        )
        keys = [pk for pk, kind in page if kind in _KEYS]
        applied += sum(done) + sum(_isolation.each(keys, lambda key: _pass_on(key, limits)))
        if len(page) < size:
            break
        last, _ = page[-1]
    return applied


def _set_timeouts(limits: TimeLimits | None) -> None:
    """Set the timeouts of this transaction, because behind a pooler the session has none.

    ``limits`` is None in a transaction that another caller opened.
    """
    if limits is not None:
        bound_transaction(limits)


def _lock_requests(keys: Iterable[int]) -> list[TaskRequest]:
    return list(
        requests().filter(pk__in=list(keys)).order_by("pk").select_for_update(skip_locked=True)
    )


@retry_on_deadlock
def _apply_many(keys: Sequence[int], limits: TimeLimits | None) -> int:
    if not keys:
        return 0
    with tables.atomic():
        _set_timeouts(limits)
        locked_requests = _lock_requests(keys)
        rows = _locked({request.task_id for request in locked_requests})
        done = [request for request in locked_requests if request.task_id in rows]
        by_reason: dict[str, list[uuid.UUID]] = {}
        for request in done:
            if request.kind == RequestKind.CANCEL:
                by_reason.setdefault(request.reason, []).append(request.task_id)
        for reason, ids in sorted(by_reason.items()):
            tasks = tables.tasks().filter(pk__in=ids)
            endings.cancel(tasks, reason)
            endings.request_cancel(tasks, reason)
        marked = [request.task_id for request in done if request.kind == RequestKind.DEPENDENTS]
        upstreams = {task_id: rows[task_id] for task_id in marked}
        edges.insert_events_again(
            {
                task_id: (0, DELETED) if row is None else (row.epoch, row.status)
                for task_id, row in upstreams.items()
                if row is None or row.status in TERMINAL
            }
        )
        dependencies.mark_upstreams(list(upstreams))
        requests().filter(pk__in=[request.pk for request in done]).delete()
    return len(done)


def _locked(ids: set[uuid.UUID]) -> dict[uuid.UUID, Task | None]:
    """Lock these tasks and return them; the value of a deleted task is None.

    Tasks that other transactions have locked are left out.
    """
    existing = set(tables.tasks().filter(pk__in=ids).values_list("pk", flat=True))
    return {**dict.fromkeys(ids - existing), **dependencies.lock_free(sorted(existing))}


@retry_on_deadlock
def _pass_on(key: int, limits: TimeLimits | None) -> int:
    """Apply the request for a key: its newest waiting task becomes the owner.

    A RUNNING owner loses the key. Other waiting tasks of the key are cancelled as REPLACED.
    """
    with tables.atomic():
        _set_timeouts(limits)
        for request in _lock_requests([key]):
            marker = RequestKind(request.kind).marker
            owned = Q(tenant_id=request.tenant_id, **{marker: request.key})
            involved = Q(pk=request.task_id) | owned
            ids = set(tables.tasks().filter(involved).values_list("pk", flat=True))
            rows = [row for row in _locked(ids).values() if row is not None]
            if len(rows) < len(ids):
                return 0
            _assign(marker, str(request.key), [row for row in rows if row.status in OPEN])
            request.delete()
            return 1
    return 0


def _assign(marker: str, key: str, rows: Sequence[Task]) -> None:
    """Make the newest waiting task the owner of the key.

    A run that started before the commit has the arguments of an older call.
    """
    waiting = [row for row in rows if row.status != Status.RUNNING]
    new_owner = max(waiting or rows, key=lambda row: (row.created_at, row.pk), default=None)
    if new_owner is None:
        return
    for row in rows:
        this = tables.tasks().filter(pk=row.pk)
        if row.pk != new_owner.pk and row.status != Status.RUNNING:
            endings.cancel(this, "REPLACED")
        elif row.pk != new_owner.pk:
            inserts.release_key(this, marker)
            if marker == RequestKind.UNIQUE_KEY.marker:
                endings.request_cancel(this, "REPLACED")
    inserts.take_key(new_owner.pk, marker, key)
