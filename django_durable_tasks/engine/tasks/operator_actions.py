"""Operations on tasks: cancel, reschedule, retry now, force-complete.

They are called through ``ports.tasks``. Waiting tasks are changed at once. For RUNNING tasks a
cancellation is requested.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django_durable_tasks.engine import transitions
from django_durable_tasks.engine.audit.recorder import recorded
from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.db.deadlocks import retry_on_deadlock
from django_durable_tasks.engine.dependencies import replay as dependency_replay
from django_durable_tasks.engine.tasks.dead_letters import replay
from django_durable_tasks.engine.transitions import attempt_log, dead_letters
from django_durable_tasks.models.task_queries import TaskQuerySet
from django_durable_tasks.rules.states import LogStatus, Resolution, Status
from django_durable_tasks.rules.tasks.comments import comment, done_by
from django_durable_tasks.rules.tasks.endings import EndingKind, Outcome


@dataclass(frozen=True, slots=True)
class Cancelled:
    """How many tasks were cancelled (``at_once``), and how many running ones were requested to stop
    (``stop_requested``).
    """

    at_once: int
    stop_requested: int

    @property
    def total(self) -> int:
        """Return the sum of both."""
        return self.at_once + self.stop_requested


@dataclass(frozen=True, slots=True)
class Retried:
    """How many waiting retries became due now, and which ended tasks run again."""

    released: int
    replayed: list[uuid.UUID]


@retry_on_deadlock
def cancel(queryset: TaskQuerySet, *, by: str = "", reason: str = "") -> Cancelled:
    """Cancel waiting tasks and request the cancellation of RUNNING ones; ended tasks do not change.

    The call may be repeated. ``by`` and ``reason`` are stored in the tasks.
    """
    comment_text = reason if reason and not by else comment("CANCELLED", by, reason)
    with recorded("tasks.cancel", by=by, reason=reason):
        return Cancelled(
            transitions.cancel(queryset, comment_text),
            transitions.request_cancel(queryset, comment_text),
        )


def reschedule(queryset: TaskQuerySet, run_at: datetime, *, by: str = "", reason: str = "") -> int:
    """Move tasks that have not started to another time; return how many.

    The messages of QUEUED tasks become stale.
    """
    with recorded("tasks.reschedule", by=by, reason=reason) as entry:
        entry.detail(run_at=run_at)
        transitions.return_to_pending(queryset, 0)
        return transitions.edit(
            queryset, run_at=run_at, **_reason_change("rescheduled", by, reason)
        )


def retry_now(queryset: TaskQuerySet, *, by: str = "", reason: str = "") -> int:
    """Make waiting retries due now; return how many. Their budgets do not change."""
    with recorded("tasks.retry", by=by, reason=reason):
        return transitions.edit(
            queryset.retrying(), due_at=tables.NOW, **_reason_change("retried", by, reason)
        )


def _reason_change(action: str, by: str, reason: str) -> dict[str, Any]:
    return {"reason": done_by(action, by, reason)} if by or reason else {}


def retry(queryset: TaskQuerySet, *, by: str, reason: str = "") -> Retried:
    """Make waiting retries due now and replay ended tasks; other tasks do not change."""
    with recorded("tasks.retry", by=by, reason=reason):
        released = retry_now(queryset, by=by, reason=reason)
        return Retried(released, replay(queryset, by=by, reason=reason))


@retry_on_deadlock
def force_complete(queryset: TaskQuerySet, *, by: str, reason: str = "") -> list[uuid.UUID]:
    """Set tasks to SUCCESS without running them; return their ids.

    A log entry contains ``by`` and ``reason``, and open dead letters are closed. Dependents that
    were skipped because of these tasks wait again.
    """
    completed = comment("completed", by, reason)
    with recorded("tasks.force_complete", by=by, reason=reason):
        open_or_failed = queryset.exclude(status=Status.SUCCESS)
        dependency_replay.hold(open_or_failed)
        rows = list(open_or_failed.order_by("pk"))
        done = set(transitions.force_complete(queryset, completed))
        returned = dependency_replay.revive_below(done)
        outcome = Outcome(kind=EndingKind.SUCCEEDED, error=reason or completed)
        for row in rows:
            # Without the run id, a task function that still runs does not find this success as its
            # own.
            row.run_id = None
        attempt_log.log_endings(
            [
                attempt_log.AttemptResult(task=row, log=LogStatus.SUCCESS, outcome=outcome)
                for row in rows
                if row.pk in done
            ]
        )
        letters = dead_letters.dead_letters().filter(task_id__in=done)
        dead_letters.close(letters, Resolution.DISCARDED, by=by, reason=reason or completed)
        dead_letters.close_replayed(returned, by=by, reason=reason or completed)
    return sorted(done)
