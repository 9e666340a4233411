"""What transitions record beside the task: attempts, ending events and dead letters."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import Q
from django.dispatch import Signal

from django_durable_tasks import conf
from django_durable_tasks.choices import LogStatus, Resolution, Status
from django_durable_tasks.encryption import current_key_id
from django_durable_tasks.models import DeadLetter, EndingEvent, Task, TaskExecutionLog
from django_durable_tasks.models.fields import DatabaseNow, undecrypted
from django_durable_tasks.models.tasks import DeadLetterQuerySet
from django_durable_tasks.states.machine import Outcome, Verdict, fingerprint
from django_durable_tasks.store import tables
from django_durable_tasks.task_values import Run

# Inserts log entries of attempts and ending events.
#
# The transitions call these functions in their own transaction.


def insert_ending_events(ids: Sequence[uuid.UUID], status: Status) -> int:
    """Insert an event for each of these tasks that has dependents or belongs to a workflow.

    Must be called in the transaction of the transition. Tasks whose status is not ``status`` are
    left out, because the transition did not change them. Return the number of events.
    """
    database = conf.settings().DATABASE
    ended = Task.objects.using(database).filter(pk__in=list(ids), status=status)
    graph = ended.filter(Q(has_dependents=True) | Q(workflow__isnull=False))
    rows = graph.values_list("pk", "epoch", "workflow_id", "has_dependents")
    events = EndingEvent.objects.using(database).bulk_create(
        [
            EndingEvent(
                task_id=task_id,
                epoch=epoch,
                workflow_id=workflow,
                status=status,
                resolved=not has_dependents,
            )
            for task_id, epoch, workflow, has_dependents in rows
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
    """The result of one attempt and the worker that executed it; ``task`` is the locked row.

    ``delay``: the seconds until the next attempt, if there is one.
    """

    task: Task
    verdict: Verdict
    outcome: Outcome
    worker: str = ""
    celery_id: str = ""
    delay: float = 0.0


def log_successes(runs: Sequence[Run], worker: str) -> None:
    """Insert the log entries of these successes, in the caller's transaction."""
    _insert([_entry(run, run.task_id, run.attempt, LogStatus.SUCCESS, worker) for run in runs])


def log_refused(run: Run, status: LogStatus, worker: str, error: str = "") -> None:
    """Insert the log entry of a run whose ending was refused (FENCED), or of a message that did not
    start a run (DUPLICATE).
    """
    entry = _entry(run, run.task_id, run.attempt, status, worker)
    entry.error_message = error
    _insert([entry])


def log_endings(results: Sequence[AttemptResult]) -> None:
    """Insert one log entry for each ended attempt, in the caller's transaction."""
    entries = []
    for result in results:
        task, outcome = result.task, result.outcome
        entry = _entry(task, task.pk, task.attempts, result.verdict.log, result.worker)
        entry.queued_at = task.queued_at or task.created_at
        entry.celery_id, entry.error_message = result.celery_id, outcome.error
        entry.traceback, entry.exception = outcome.traceback, outcome.exception
        entries.append(entry)
    _insert(entries)


def _entry(
    run: Run | Task, task_id: uuid.UUID, attempt: int, status: LogStatus, worker: str
) -> TaskExecutionLog:
    return TaskExecutionLog(
        task_id=task_id,
        tenant_id=run.tenant_id,
        attempt_number=attempt,
        status=status,
        node=run.node,
        ready_at=run.ready_at,
        queued_at=run.queued_at,
        started_at=run.started_at,
        completed_at=DatabaseNow(),
        worker=worker,
        run_id=run.run_id,
        celery_id=run.celery_id if isinstance(run, Run) else "",
    )


def _insert(rows: list[TaskExecutionLog]) -> None:
    TaskExecutionLog.objects.using(conf.settings().DATABASE).unguarded().bulk_create(rows)


# Opens and closes dead letters, in the transaction of the transition of their tasks.
#
# A FAILED task has exactly one open dead letter. ``open_task`` is unique, so a second one cannot
# be inserted.


def dead_letters() -> DeadLetterQuerySet:
    """Return all dead letters."""
    letters: DeadLetterQuerySet = DeadLetter.objects.using(tables.database()).unguarded()
    return letters


def open_dead_letters(results: Sequence[tuple[Task, Outcome, str]]) -> None:
    """Open the dead letter of each task that has failed, with its reason."""
    dead_letters().bulk_create(
        [
            DeadLetter(
                task_id=task.pk,
                open_task=task.pk,
                tenant_id=task.tenant_id,
                reason=reason,
                fingerprint=fingerprint(task.name, outcome.error_type, outcome.error),
                error_message=outcome.error,
                attempts=task.attempts,
                args=undecrypted(task, "args"),
                kwargs=undecrypted(task, "kwargs"),
                encryption_key=task.encryption_key or current_key_id(),
                created_at=DatabaseNow(),
            )
            for task, outcome, reason in results
        ]
    )


def close_dead_letters(
    letters: DeadLetterQuerySet, resolution: Resolution, *, by: str, reason: str
) -> int:
    """Close open dead letters; return how many."""
    return (
        letters.open()
        .order_by()
        .update(
            resolved_at=DatabaseNow(),
            resolution=resolution,
            resolved_by=by[:200],
            comment=reason[:500],
            open_task=None,
        )
    )


def close_replayed_letters(tasks: Sequence[uuid.UUID], *, by: str, reason: str) -> int:
    """Close the open dead letters of replayed tasks; return how many."""
    return close_dead_letters(
        dead_letters().filter(task_id__in=tasks), Resolution.REPLAYED, by=by, reason=reason
    )


# Sent in the transaction of a transition that ended tasks without an attempt, of which therefore no
# log entry exists. Arguments: ``task_ids`` and ``status``; tasks whose status is another one were
# not changed. An error of a receiver rolls the transition back.
ended_without_attempt = Signal()

# Transitions without a run whose callers insert a log entry.
LOGGED = frozenset({"force_complete"})
