"""The transitions that end tasks without a run, and the replay of ended tasks."""

from __future__ import annotations

import uuid
from typing import Any

from django.db.models import F

from django_durable_tasks.engine.db.tables import atomic, callers_transaction
from django_durable_tasks.engine.transitions.change_tracking import observe
from django_durable_tasks.engine.transitions.guarded_update import (
    CLOSED,
    NO_OWNER,
    WAITING,
    locked,
    move,
    write_running,
)
from django_durable_tasks.engine.transitions.requests import leave_cancels
from django_durable_tasks.engine.transitions.stored_arguments import encrypted_changes
from django_durable_tasks.exceptions import TransitionRefused
from django_durable_tasks.models.clock import DatabaseNow
from django_durable_tasks.models.task_queries import TaskQuerySet
from django_durable_tasks.rules.states import OPEN, TRANSITIONS, Status


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
        move(
            name,
            pairs,
            Status.PENDING,
            due_at=DatabaseNow(),
            failures=0,
            crashes=0,
            publish_count=0,
            node=None,
            expires_at=None,
            completed_at=None,
            open_key=F("key"),
            open_unique_key=F("unique_key"),
            reason=reason,
            cause=None,
            unresolved_dependencies_count=0,
            **NO_OWNER,
            **changes,
        )
    return [task_id for task_id, _ in pairs]


def force_complete(queryset: TaskQuerySet, reason: str) -> list[uuid.UUID]:
    """Any status except SUCCESS to SUCCESS, for an operator; return the locked ids.

    Raises TransitionRefused for a RUNNING task in a transaction that the caller opened, because its
    row would stay locked until the commit.
    """
    with atomic():
        pairs = locked(queryset.filter(status__in=_movable_by_force()))
        if callers_transaction():
            for task_id in queryset.filter(status=Status.RUNNING).values_list("pk", flat=True)[:1]:
                raise TransitionRefused(
                    f"Task {task_id} is RUNNING: it cannot be counted as done inside a transaction,"
                    " which would stop its heartbeat until the commit. Do it outside of a"
                    " transaction, or cancel the task first."
                )
        move("force_complete", pairs, Status.SUCCESS, reason=reason, **CLOSED)
    return [task_id for task_id, _ in pairs]


def _movable_by_force() -> frozenset[Status]:
    sources = TRANSITIONS["force_complete"].sources
    return sources - {Status.RUNNING} if callers_transaction() else sources
