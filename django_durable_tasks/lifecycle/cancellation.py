"""Cancelling and moving tasks: waiting ones at once, running ones by asking."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django_durable_tasks.lifecycle import transitions
from django_durable_tasks.lifecycle.deadlocks import through_deadlocks
from django_durable_tasks.models.task import TaskQuerySet
from django_durable_tasks.rules.comments import comment, done_by


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
    """Cancel waiting rows of the question, ask running ones to stop; ended ones are left alone. Idempotent.

    Without ``by`` the tasks keep ``reason`` as it is given.
    """
    why = reason if reason and not by else comment("CANCELLED", by, reason)
    with transitions.atomic():
        return Cancelled(transitions.cancel(question, why), transitions.request_cancel(question, why))


def move(question: TaskQuerySet, run_at: datetime, *, by: str = "", reason: str = "") -> int:
    """Move waiting tasks to another time; published ones are taken back first. Return how many moved."""
    with transitions.atomic():
        transitions.hand_back(question, 0)
        return transitions.edit(question, run_at=run_at, **_kept("rescheduled", by, reason))


def end_wait(question: TaskQuerySet, *, by: str = "", reason: str = "") -> int:
    """Let tasks that wait for their next try be due now; their budgets stay as they are. Return how many."""
    return transitions.edit(question.retrying(), due_at=transitions.NOW, **_kept("retried", by, reason))


def _kept(action: str, by: str, reason: str) -> dict[str, Any]:
    return {"reason": done_by(action, by, reason)} if by or reason else {}
