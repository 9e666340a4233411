"""Cancelling and moving tasks: waiting ones at once, running ones by asking."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django_durable_tasks.lifecycle import task_requests, transitions
from django_durable_tasks.lifecycle.deadlocks import through_deadlocks
from django_durable_tasks.models import DEFAULT_TENANT_ID, RequestKind
from django_durable_tasks.models.task import TaskQuerySet
from django_durable_tasks.rules.durations import instant


@dataclass(frozen=True, slots=True)
class Cancelled:
    """How many rows were cancelled, and how many running ones were asked to stop."""

    at_once: int
    asked: int

    @property
    def total(self) -> int:
        """Return how many rows the cancel reached."""
        return self.at_once + self.asked


@through_deadlocks
def cancel(question: TaskQuerySet, *, by: str = "", reason: str = "") -> Cancelled:
    """Cancel waiting rows of the question, ask running ones to stop; ended ones are left alone. Idempotent."""
    why = reason or (f"CANCELLED by {by}"[:200] if by else "CANCELLED")
    with transitions.atomic():
        return Cancelled(transitions.cancel(question, why), transitions.request_cancel(question, why))


def move(question: TaskQuerySet, run_at: datetime) -> int:
    """Move waiting tasks to another time; published ones are taken back first. Return how many moved."""
    with transitions.atomic():
        transitions.hand_back(question, 0)
        return transitions.edit(question, run_at=run_at)


def end_wait(question: TaskQuerySet) -> int:
    """Let tasks that wait for their next try be due now; their budgets stay as they are. Return how many."""
    return transitions.edit(question.retrying(), alarm_at=transitions.NOW)


class Verbs:
    """What the manager of Task offers by key; see ``ports.tasks``."""

    def cancel(self, key: Any, *, by: str = "", tenant: Any = None) -> int:
        """Cancel the open task of this key."""
        return cancel(_of_key(key, tenant), by=by).total

    def reschedule(self, key: Any, run_at: Any, *, by: str = "", tenant: Any = None) -> int:
        """Move the open task of this key; a running one is left alone."""
        when: datetime = instant("run_at", run_at)
        return move(_of_key(key, tenant), when)


def _of_key(key: Any, tenant: Any) -> TaskQuerySet:
    tenant_id = getattr(tenant, "pk", tenant) or DEFAULT_TENANT_ID
    next_owner = task_requests.next_owner(RequestKind.KEY, tenant_id, key)
    if next_owner is not None:
        return transitions.tasks().filter(pk=next_owner.pk)
    return transitions.tasks().for_tenant(tenant_id).filter(open_key=key)
