"""Inserts log entries of attempts and ending events.

The transitions call these functions in their own transaction.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import Q

from django_durable_tasks import conf
from django_durable_tasks.models import EndingEvent, Task, TaskExecutionLog
from django_durable_tasks.models.clock import DatabaseNow
from django_durable_tasks.rules.states import LogStatus, Status
from django_durable_tasks.rules.tasks.endings import Outcome
from django_durable_tasks.rules.tasks.runs import Run


def insert_ending_events(ids: Sequence[uuid.UUID], status: Status) -> int:
    """Insert an event for each of these tasks that has dependents or belongs to a workflow.

    Must be called in the transaction of the transition. Tasks whose status is not ``status`` are
    left out, because the transition did not change them. Return the number of events.
    """
    database = conf.settings().DATABASE
    ended = Task.objects.using(database).filter(pk__in=list(ids), status=status)
    graph = ended.filter(Q(has_dependents=True) | Q(workflow__isnull=False))
    found = graph.values_list("pk", "epoch", "workflow_id", "has_dependents")
    events = EndingEvent.objects.using(database).bulk_create(
        [
            EndingEvent(
                task_id=task_id,
                epoch=epoch,
                workflow_id=workflow,
                status=status,
                resolved=not has_dependents,
            )
            for task_id, epoch, workflow, has_dependents in found
        ]
    )
    return len(events)


def insert_return_events(rows: Sequence[tuple[uuid.UUID, int, uuid.UUID | None, str]]) -> None:
    """Insert an event for each ended workflow task that is replayed, so that its workflow subtracts
    it from its counts.

    Each row contains the task, the epoch and status before the replay, and the workflow. Rows
    without a workflow are ignored.
    """
    EndingEvent.objects.using(conf.settings().DATABASE).bulk_create(
        [
            EndingEvent(
                task_id=task_id,
                epoch=epoch,
                workflow_id=workflow,
                status=status,
                delta=-1,
                resolved=True,
            )
            for task_id, epoch, workflow, status in rows
            if workflow is not None
        ]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptResult:
    """The result of one attempt and the worker that executed it; ``task`` is the locked row."""

    task: Task
    log: LogStatus
    outcome: Outcome
    worker: str = ""
    celery_id: str = ""


def log_successes(runs: Sequence[Run], worker: str) -> None:
    """Insert the log entries of these successes, in the caller's transaction."""
    _insert([_log_of(run, LogStatus.SUCCESS, worker) for run in runs])


def log_refused(run: Run, status: LogStatus, worker: str, error: str = "") -> None:
    """Insert the log entry of a run whose ending was refused (FENCED), or of a message that did not
    start a run (DUPLICATE).
    """
    _insert([_log_of(run, status, worker, error)])


def _log_of(run: Run, status: LogStatus, worker: str, error: str = "") -> TaskExecutionLog:
    return TaskExecutionLog(
        task_id=run.task_id,
        tenant_id=run.tenant_id,
        attempt_number=run.attempt,
        status=status,
        node=run.node,
        ready_at=run.ready_at,
        queued_at=run.queued_at,
        started_at=run.started_at,
        completed_at=DatabaseNow(),
        worker=worker,
        run_id=run.run_id,
        celery_id=run.celery_id,
        error_message=error,
    )


def log_endings(results: Sequence[AttemptResult]) -> None:
    """Insert one log entry for each ended attempt, in the caller's transaction."""
    _insert(
        [
            TaskExecutionLog(
                task_id=result.task.pk,
                tenant_id=result.task.tenant_id,
                attempt_number=result.task.attempts,
                status=result.log,
                ready_at=result.task.ready_at,
                queued_at=result.task.queued_at or result.task.created_at,
                started_at=result.task.started_at,
                completed_at=DatabaseNow(),
                node=result.task.node,
                run_id=result.task.run_id,
                worker=result.worker,
                celery_id=result.celery_id,
                error_message=result.outcome.error,
                traceback=result.outcome.traceback,
                exception=result.outcome.exception,
            )
            for result in results
        ]
    )


def _insert(rows: list[TaskExecutionLog]) -> None:
    TaskExecutionLog.objects.using(conf.settings().DATABASE).unguarded().bulk_create(rows)
