"""The transitions that end tasks without a run, replays, requests to RUNNING tasks, and
deadlines that a clock ahead has computed.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db import IntegrityError
from django.db.models import Case, F, Q, When

from django_durable_tasks import ports
from django_durable_tasks.choices import OPEN, Status
from django_durable_tasks.exceptions import TransitionRefused
from django_durable_tasks.models import RequestKind, TaskRequest
from django_durable_tasks.models.fields import DatabaseNow, constant
from django_durable_tasks.models.tasks import NEVER, TaskQuerySet
from django_durable_tasks.states.guarded_update import (
    CLOSED,
    REOPENED,
    WAITING,
    locked,
    matches_epochs,
    move,
    observe,
    write_running,
)
from django_durable_tasks.states.inserts import encrypted_changes
from django_durable_tasks.states.machine import TRANSITIONS
from django_durable_tasks.store.clock import after
from django_durable_tasks.store.tables import (
    NOW,
    CommitHook,
    atomic,
    callers_transaction,
    database,
    hook_of_transaction,
    tasks,
)

# Inserts requests to RUNNING tasks in a transaction that the caller opened.
#
# An UPDATE of the task's row would block its heartbeat and its ending until the caller commits. A
# request is a separate row, so it is rolled back with the transaction. It is applied after the
# COMMIT (``tasks/requests.py``). If the process terminates before that, the leader applies
# it.


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
    if (
        requested is not None
        and not tasks().filter(pk=requested, status__in=OPEN).exists()
        and of_key.filter(task_id=requested).update(task_id=owner)
    ):
        _apply_after_commit([owner])
        return True
    try:
        with atomic():
            _insert([TaskRequest(kind=kind, tenant_id=tenant_id, key=key, task_id=owner)])
    except IntegrityError:
        return False
    return True


def cancel(queryset: TaskQuerySet, reason: str) -> int:
    """BLOCKED, PENDING and QUEUED to CANCELLED; return how many.

    For RUNNING tasks see ``request_cancel``.
    """
    with atomic():
        if not callers_transaction():
            # All open rows are locked first, so that no task starts between this UPDATE and
            # ``request_cancel``.
            locked(queryset.filter(status__in=OPEN))
        pairs = locked(queryset.filter(status__in=WAITING))
        return move("cancel", pairs, Status.CANCELLED, reason=reason, **CLOSED)


def request_cancel(queryset: TaskQuerySet, reason: str) -> int:
    """Request the cancellation of RUNNING tasks; return how many.

    The next heartbeat passes the request to the task function. When the run ends, the task becomes
    CANCELLED. In a transaction that the caller opened, requests are inserted for all open tasks and
    applied after the commit, because a task may change its status until then.
    """
    unrequested = queryset.filter(cancel_requested_at=None)
    if not callers_transaction():
        return write_running(unrequested, cancel_requested_at=DatabaseNow(), reason=reason)
    ids = list(unrequested.filter(status__in=OPEN).order_by("pk").values_list("pk", flat=True))
    observe(ids)
    leave_cancels(ids, reason)
    return len(ids)


def skip(queryset: TaskQuerySet, reason: str) -> int:
    """BLOCKED, PENDING and QUEUED to SKIPPED; return how many."""
    with atomic():
        return move(
            "skip",
            locked(queryset.filter(status__in=WAITING)),
            Status.SKIPPED,
            reason=reason,
            **CLOSED,
        )


def expire(queryset: TaskQuerySet, limit: int) -> int:
    """BLOCKED, PENDING and QUEUED to EXPIRED for at most ``limit`` tasks; return how many.

    The caller selects tasks whose ``expires_at`` has passed. A claim and a release of waiting tasks
    expire all such tasks together. A single row cannot make that fail: locked rows are skipped,
    only keys and epochs are read, only constants are written, and errors of receivers are caught.
    """
    with atomic():
        pairs = locked(queryset.filter(status__in=WAITING), limit)
        return move("expire", pairs, Status.EXPIRED, reason="EXPIRED", **CLOSED)


def replay(
    queryset: TaskQuerySet, name: str = "replay", *, reason: str = "", **changes: Any
) -> list[uuid.UUID]:
    """Ended tasks to PENDING, due now, with both budgets renewed; return the locked ids.

    ``name`` is ``replay``, or ``rerun`` for tasks that succeeded. ``changes`` are written to the
    rows.
    """
    with atomic():
        pairs = locked(queryset.filter(status__in=TRANSITIONS[name].sources))
        changes = encrypted_changes([task_id for task_id, _ in pairs], changes)
        if name == "rerun" or "args" in changes or "kwargs" in changes:
            changes["position"] = None  # all of it is done again, or with other arguments
        writes = {**REOPENED, "reason": reason, "unresolved_dependencies_count": 0, **changes}
        move(name, pairs, Status.PENDING, due_at=DatabaseNow(), **writes)
    return [task_id for task_id, _ in pairs]


def force_complete(queryset: TaskQuerySet, reason: str) -> list[uuid.UUID]:
    """Any status except SUCCESS to SUCCESS, for an operator; return the locked ids.

    Raises TransitionRefused for a RUNNING task in a transaction that the caller opened, because its
    row would stay locked until the commit.
    """
    with atomic():
        sources = TRANSITIONS["force_complete"].sources
        if callers_transaction():
            sources -= {Status.RUNNING}
        pairs = locked(queryset.filter(status__in=sources))
        if callers_transaction():
            for task_id in queryset.filter(status=Status.RUNNING).values_list("pk", flat=True)[:1]:
                raise TransitionRefused(
                    f"Task {task_id} is RUNNING: it cannot be counted as done inside a transaction,"
                    " which would stop its heartbeat until the commit. Do it outside of a"
                    " transaction, or cancel the task first."
                )
        move("force_complete", pairs, Status.SUCCESS, reason=reason, **CLOSED)
    return [task_id for task_id, _ in pairs]


# Deadlines of tasks that were computed by a database clock which was ahead and was set back.


def move_waits(now: datetime, tolerance: float, limit: int) -> int:
    """Move the ``due_at`` of at most ``limit`` PENDING tasks that were written later than ``now``
    plus ``tolerance`` seconds; return how many.

    They wait for as long as they would have, from now on: a retry for the rest of its back-off. A
    ``run_at`` that the caller chose is an instant and does not move. Rows that other transactions
    have locked are skipped.
    """
    # `due_at` first, because it is indexed.
    early = tasks().filter(
        Q(run_at__lte=F("created_at")) | ~Q(due_at=F("run_at")),
        status=Status.PENDING,
        due_at__gt=now,
        due_at__lt=NEVER,
        updated_at__gt=now + timedelta(seconds=tolerance),
    )
    with atomic():
        epochs = dict(locked(early, limit))
        if not epochs:
            return 0
        rows = tasks().filter(pk__in=list(epochs)).values_list("pk", "due_at", "updated_at")
        moved = {pk: max(now, due - (written - now)) for pk, due, written in rows if due}
        whens = [When(pk=pk, then=constant(due)) for pk, due in moved.items()]
        queryset = tasks().filter(matches_epochs(epochs.items()), status__standing=[Status.PENDING])
        number = queryset.update(due_at=Case(*whens, default=F("due_at")), updated_at=NOW)
        ports.due.rescheduled(min(moved.values()))
        return number


def shorten_republish_waits(longest: float, limit: int) -> int:
    """Let QUEUED tasks be republished in at most ``longest`` seconds; return how many changed."""
    with atomic():
        late = tasks().filter(status=Status.QUEUED, due_at__gt=after(longest + 1.0))
        pairs = locked(late, limit)
        queryset = tasks().filter(matches_epochs(pairs), status__standing=[Status.QUEUED])
        return queryset.update(due_at=after(longest)) if pairs else 0
