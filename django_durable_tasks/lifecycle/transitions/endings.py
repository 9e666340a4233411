"""Endings without a run, and what brings ended rows back."""

from __future__ import annotations

import uuid
from typing import Any

from django.db.models import F

from django_durable_tasks.lifecycle.transitions.guards import (
    CLOSED,
    NO_OWNER,
    WAITING,
    atomic,
    locked,
    move,
    write_running,
)
from django_durable_tasks.models.clock import DatabaseNow
from django_durable_tasks.models.task import TaskQuerySet
from django_durable_tasks.rules.states import OPEN, TRANSITIONS, Status


def cancel(question: TaskQuerySet, reason: str) -> int:
    """BLOCKED, PENDING and QUEUED rows to CANCELLED; RUNNING ones are only asked (``request_cancel``)."""
    with atomic():
        # All open rows are held first, so that none slips from one kind to the other between the two verbs.
        locked(question.filter(status__in=OPEN))
        pairs = locked(question.filter(status__in=WAITING))
        return move("cancel", pairs, Status.CANCELLED, reason=reason, **CLOSED)


def request_cancel(question: TaskQuerySet, reason: str) -> int:
    """Ask RUNNING rows to stop: their next heartbeat tells the body, their ending honours it."""
    return write_running(question.filter(cancel_requested_at=None), cancel_requested_at=DatabaseNow(), reason=reason)


def skip(question: TaskQuerySet, reason: str) -> int:
    """BLOCKED, PENDING and QUEUED rows to SKIPPED."""
    with atomic():
        return move("skip", locked(question.filter(status__in=WAITING)), Status.SKIPPED, reason=reason, **CLOSED)


def expire(question: TaskQuerySet, limit: int) -> int:
    """Rows of the question, which came too late, to EXPIRED."""
    with atomic():
        pairs = locked(question.filter(status__in=WAITING), limit)
        return move("expire", pairs, Status.EXPIRED, reason="EXPIRED", **CLOSED)


def replay(question: TaskQuerySet, name: str = "replay", **changes: Any) -> list[uuid.UUID]:
    """Ended rows (by the name ``rerun`` those that succeeded) to PENDING, due now, both budgets renewed."""
    with atomic():
        pairs = locked(question.filter(status__in=TRANSITIONS[name].sources))
        move(
            name, pairs, Status.PENDING, alarm_at=DatabaseNow(), failures=0, crashes=0, publish_count=0, node=None,
            expires_at=None, completed_at=None, open_key=F("key"), open_unique_key=F("unique_key"), reason="",
            cause=None, unresolved_dependencies_count=0, **NO_OWNER, **changes,
        )  # fmt: skip
    return [task_id for task_id, _ in pairs]


def force_complete(question: TaskQuerySet, reason: str) -> list[uuid.UUID]:
    """Any row but a SUCCESS to SUCCESS, by an operator's word."""
    with atomic():
        pairs = locked(question.filter(status__in=TRANSITIONS["force_complete"].sources))
        move("force_complete", pairs, Status.SUCCESS, reason=reason, **CLOSED)
    return [task_id for task_id, _ in pairs]
