"""Endings without a run, and what brings ended rows back."""

from __future__ import annotations

import uuid
from typing import Any

from django.db.models import F

from django_durable_tasks.engine.db.tables import atomic, callers_transaction
from django_durable_tasks.engine.transitions.guarded_update import (
    CLOSED,
    NO_OWNER,
    WAITING,
    locked,
    move,
    write_running,
)
from django_durable_tasks.engine.transitions.requests import leave_cancels
from django_durable_tasks.exceptions import TransitionRefused
from django_durable_tasks.models.clock import DatabaseNow
from django_durable_tasks.models.task_queries import TaskQuerySet
from django_durable_tasks.rules.states import OPEN, TRANSITIONS, Status


def cancel(question: TaskQuerySet, reason: str) -> int:
    """BLOCKED, PENDING and QUEUED rows to CANCELLED; RUNNING ones are only asked
    (``request_cancel``).
    """
    with atomic():
        if not callers_transaction():
            # All open rows are held first, so that none slips from one kind to the other between
            # the two verbs.
            locked(question.filter(status__in=OPEN))
        pairs = locked(question.filter(status__in=WAITING))
        return move("cancel", pairs, Status.CANCELLED, reason=reason, **CLOSED)


def request_cancel(question: TaskQuerySet, reason: str) -> int:
    """Ask RUNNING rows to stop: their next heartbeat tells the body, their ending honours it.

    In a caller's transaction they are asked after its commit, and with them what has left RUNNING
    since ``cancel``.
    """
    unasked = question.filter(cancel_requested_at=None)
    if not callers_transaction():
        return write_running(unasked, cancel_requested_at=DatabaseNow(), reason=reason)
    ids = list(unasked.filter(status__in=OPEN).order_by("pk").values_list("pk", flat=True))
    leave_cancels(ids, reason)
    return len(ids)


def skip(question: TaskQuerySet, reason: str) -> int:
    """BLOCKED, PENDING and QUEUED rows to SKIPPED."""
    with atomic():
        return move(
            "skip",
            locked(question.filter(status__in=WAITING)),
            Status.SKIPPED,
            reason=reason,
            **CLOSED,
        )


def expire(question: TaskQuerySet, limit: int) -> int:
    """Rows of the question, which came too late, to EXPIRED.

    A claim and a release of parked tasks expire all late rows together, and no single row can make
    that fail: locked rows are skipped, nothing but keys and epochs is read, constants are written,
    and receivers' errors are caught.
    """
    with atomic():
        pairs = locked(question.filter(status__in=WAITING), limit)
        return move("expire", pairs, Status.EXPIRED, reason="EXPIRED", **CLOSED)


def replay(
    question: TaskQuerySet, name: str = "replay", *, reason: str = "", **changes: Any
) -> list[uuid.UUID]:
    """Ended rows (by the name ``rerun`` those that succeeded) to PENDING, due now, both budgets
    renewed.
    """
    with atomic():
        pairs = locked(question.filter(status__in=TRANSITIONS[name].sources))
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


def force_complete(question: TaskQuerySet, reason: str) -> list[uuid.UUID]:
    """Any row but a SUCCESS to SUCCESS, by an operator's word.

    Raises TransitionRefused for a RUNNING row in a caller's transaction, which would have to lock
    it until its commit.
    """
    with atomic():
        pairs = locked(question.filter(status__in=_movable_by_force()))
        if callers_transaction():
            for task_id in question.filter(status=Status.RUNNING).values_list("pk", flat=True)[:1]:
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
