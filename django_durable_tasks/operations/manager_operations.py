"""Implements the ports behind the managers of Task, DeadLetter and RecurringTask with functions
of the engine.

``apps.py`` installs these classes when Django starts.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django_durable_tasks import ports, registry
from django_durable_tasks.models import (
    DEFAULT_TENANT_ID,
    OccurrenceOverride,
    RecurringTask,
    RequestKind,
    Task,
)
from django_durable_tasks.models.tasks import DeadLetterQuerySet, TaskQuerySet
from django_durable_tasks.option_values import checked_key, instant
from django_durable_tasks.schedules import explain as recurring_explain
from django_durable_tasks.schedules import lifecycle, manual_runs
from django_durable_tasks.schedules.misfires import BackfillReport
from django_durable_tasks.store import tables
from django_durable_tasks.tasks import operator_actions, requests


class EngineTaskOperations:
    """See ``ports.tasks``."""

    def replay(
        self,
        question: TaskQuerySet,
        *,
        by: str,
        reason: str,
        args: Sequence[Any] | None,
        kwargs: Mapping[str, Any] | None,
    ) -> list[uuid.UUID]:
        """Run ended tasks again."""
        return operator_actions.replay_letters(
            _tasks_of(question), by=by, reason=reason, args=args, kwargs=kwargs
        )

    def retry(self, question: TaskQuerySet, *, by: str, reason: str) -> int:
        """Make tasks that wait for a retry due now."""
        return operator_actions.retry_now(_tasks_of(question), by=by, reason=reason)

    def cancel(self, question: TaskQuerySet, *, by: str, reason: str) -> int:
        """Cancel open tasks."""
        return operator_actions.cancel(_tasks_of(question), by=by, reason=reason).total

    def force_complete(self, question: TaskQuerySet, *, by: str, reason: str) -> list[uuid.UUID]:
        """Set tasks to SUCCESS without running them."""
        return operator_actions.force_complete(_tasks_of(question), by=by, reason=reason)

    def reschedule(self, question: TaskQuerySet, run_at: Any, *, by: str, reason: str) -> int:
        """Move tasks that have not started to another time."""
        return operator_actions.reschedule(
            _tasks_of(question), instant("run_at", run_at), by=by, reason=reason
        )

    def cancel_key(self, key: str, *, tenant: Any, by: str, reason: str) -> int:
        """Cancel the open task of this key."""
        return operator_actions.cancel(_of_key(key, tenant), by=by, reason=reason).total

    def reschedule_key(self, key: str, run_at: Any, *, tenant: Any, by: str, reason: str) -> int:
        """Move the open task of this key to another time; a RUNNING one is left alone."""
        return operator_actions.reschedule(
            _of_key(key, tenant), instant("run_at", run_at), by=by, reason=reason
        )


class EngineDeadLetterOperations:
    """See ``ports.dead_letters``."""

    def replay(
        self,
        letters: DeadLetterQuerySet,
        *,
        by: str,
        reason: str,
        args: Sequence[Any] | None,
        kwargs: Mapping[str, Any] | None,
    ) -> list[uuid.UUID]:
        """Run the tasks of open dead letters again."""
        found = letters.using(tables.database()).open().order_by().values("task_id")
        question = tables.tasks().filter(pk__in=found)
        return operator_actions.replay_letters(
            question,
            by=by,
            reason=reason,
            args=args,
            kwargs=kwargs,
            operation="dead_letters.replay",
        )

    def discard(self, letters: DeadLetterQuerySet, *, by: str, reason: str) -> int:
        """Close open dead letters."""
        return operator_actions.discard_letters(letters, by=by, reason=reason)


def _of_key(key: str, tenant: Any) -> TaskQuerySet:
    """Return the open task that owns this key, or will own it after the caller's commit. Raises
    InvalidOption.
    """
    checked_key("key", key)
    tenant_id = getattr(tenant, "pk", tenant) or DEFAULT_TENANT_ID
    next_owner = requests.next_owner(RequestKind.KEY, tenant_id, key)
    if next_owner is not None:
        return tables.tasks().filter(pk=next_owner.pk)
    return tables.tasks().for_tenant(tenant_id).filter(open_key=key)


def _tasks_of(question: TaskQuerySet) -> TaskQuerySet:
    """Return the same tasks as a plain queryset of the database of tasks.

    A caller's joins, annotations, DISTINCT or order would reach the engine's locks and updates.
    """
    chosen = question.using(tables.database()).order_by().values("pk")
    return tables.tasks().filter(pk__in=chosen)


class ManagerOperations:
    """The operations of RecurringTask and its manager."""

    pause = staticmethod(lifecycle.pause)
    snooze = staticmethod(lifecycle.snooze)
    resume = staticmethod(lifecycle.resume)
    cancel = staticmethod(lifecycle.cancel)
    withdraw = staticmethod(lifecycle.withdraw_override)
    next_fire_times = staticmethod(recurring_explain.next_fire_times)

    def upsert(self, *, name: str, task: Any, **options: Any) -> RecurringTask:
        """Create or change the schedule of this name."""
        _load_for(task)
        return lifecycle.upsert(name=name, task=task, **options)

    def trigger_now(
        self, row: RecurringTask, *, request_id: str | None, by: str, reason: str
    ) -> Task:
        """Run once now."""
        _load_for(row.task)
        return manual_runs.trigger_now(row, request_id=request_id, by=by, reason=reason)

    def explain(self, row: RecurringTask, at: datetime) -> str:
        """Describe the outcome of a fire time."""
        _load_for(row.task)
        return recurring_explain.explain(row, at)

    def backfill(
        self, row: RecurringTask, start: datetime, end: datetime, **options: Any
    ) -> BackfillReport:
        """Run the fire times of [start, end] that have no run."""
        _load_for(row.task)
        return manual_runs.backfill(row, start, end, **options)

    def override(
        self, row: RecurringTask, fire_time: datetime, action: str, **options: Any
    ) -> OccurrenceOverride:
        """Skip, move or add one fire time."""
        return lifecycle.override(row, fire_time, action, **options)


def _load_for(task: Any) -> None:
    """Import the project's task modules if this process, for example a web process, has not
    imported this task.
    """
    if isinstance(task, str) and registry.find(task) is None:
        ports.load_tasks()
