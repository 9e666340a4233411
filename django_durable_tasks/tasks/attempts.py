"""Starts and ends the attempts of tasks, and hands the capacity of an ended run over."""

from __future__ import annotations

import logging
import random
import uuid
from collections.abc import Callable, Sequence
from datetime import timedelta
from enum import StrEnum
from functools import partial
from typing import Any

from django_durable_tasks import conf, registry
from django_durable_tasks.choices import TERMINAL, LogStatus, Status
from django_durable_tasks.encryption import decrypted, stored_value
from django_durable_tasks.limits import admission, config, overlap, release, waitlist
from django_durable_tasks.limits.config import LimitConfig
from django_durable_tasks.limits.waitlist import WaitingTask
from django_durable_tasks.models import Task, TaskExecutionLog
from django_durable_tasks.models.tasks import TaskQuerySet
from django_durable_tasks.ports import TaskMessage
from django_durable_tasks.states import attempt_log, claims, endings
from django_durable_tasks.states import runs as run_transitions
from django_durable_tasks.states.claims import ClaimedTask
from django_durable_tasks.states.inserts import place as storage_place
from django_durable_tasks.states.machine import Budgets, EndingKind, Outcome, Verdict, decide
from django_durable_tasks.store import tables
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.store.errors import Isolation, retry_on_deadlock
from django_durable_tasks.task_values import Run, RunLocation
from django_durable_tasks.tasks.claim import count_misrouted, in_publishing_order
from django_durable_tasks.tasks.enqueue import DELAY_MAX
from django_durable_tasks.tasks.options import RetryPolicy

# Starts and ends the attempts of tasks, with their log entries and dead letters.
#
# Workers, and the maintenance jobs that end lost runs, call these functions.


logger = logging.getLogger("django_durable_tasks.runs")


class Refusal(StrEnum):
    """Why a message did not start a run."""

    MISSING = "MISSING"
    STALE = "STALE"
    TERMINAL = "TERMINAL"
    EXPIRED = "EXPIRED"
    PAUSED = "PAUSED"
    DUPLICATE = "DUPLICATE"
    MISROUTED = "MISROUTED"
    POSTPONED = "POSTPONED"


def open_run(
    task_id: uuid.UUID,
    epoch: int,
    place: RunLocation,
    celery_id: str,
    unique_for: float | None,
    *,
    name: str | None = None,
    run_id: uuid.UUID | None = None,
) -> Run | Refusal:
    """Start the task of a message, or return why the message is refused.

    ``epoch`` is the epoch in the message. ``unique_for``: a task whose unique key succeeded within
    this many seconds is skipped as a duplicate. ``name``: only a task of this name. ``run_id``: the
    token of the run, for a caller that may have to call ``opened`` with it.
    """
    if unique_for is not None:
        refused = _refused_as_duplicate(task_id, epoch, unique_for, place, celery_id)
        if refused is not None:
            return refused
    row = run_transitions.start(task_id, epoch, run_id or uuid.uuid4(), place, name)
    if isinstance(row, Run):
        return row._replace(celery_id=celery_id)
    # Nothing was started. The row shows why, and what follows from it.
    if row is None:
        return Refusal.MISSING
    if row.status != Status.QUEUED or row.epoch != epoch:
        return Refusal.TERMINAL if row.status in TERMINAL else Refusal.STALE
    this = tables.tasks().filter(pk=task_id, epoch=epoch)
    if row.has_expired:
        endings.expire(this, 1)
        return Refusal.EXPIRED
    if place.queues and row.queue not in place.queues:
        count_misrouted(row.queue, place.queues[0])
        return Refusal.MISROUTED
    if row.is_paused:
        claims.return_to_pending(this, 0)
        return Refusal.PAUSED
    return Refusal.STALE


def arguments_of(run: Run) -> tuple[list[Any], dict[str, Any]]:
    """Return the decrypted arguments of a run. Raises EncryptionError."""

    def plain(column: str, value: Any) -> Any:
        if stored_value(value) is None:
            return value  # without the description of the place, which takes longer than the check
        return decrypted(value, storage_place(run.tenant_id, column, run.task_id))

    return plain("args", run.args), plain("kwargs", run.kwargs)


def opened(task_id: uuid.UUID, run_id: uuid.UUID, celery_id: str) -> Run | None:
    """Return the run that was started with this token, or None if there is none.

    Called if the reply of the database to ``open_run`` was lost.
    """
    started = claims.started_runs(tables.tasks().running().filter(pk=task_id, run_id=run_id))
    return started[0]._replace(celery_id=celery_id) if started else None


def _refused_as_duplicate(
    task_id: uuid.UUID, epoch: int, unique_for: float, place: RunLocation, celery_id: str
) -> Refusal | None:
    """Skip a task whose unique key has succeeded recently; return None if it may start."""
    this = tables.tasks().filter(pk=task_id, status=Status.QUEUED, epoch=epoch)
    row = this.first()
    if row is None:
        return Refusal.STALE
    if row.unique_key is None or (place.queues and row.queue not in place.queues):
        return None
    recent = tables.tasks().filter(
        tenant_id=row.tenant_id,
        unique_key=row.unique_key,
        status=Status.SUCCESS,
        completed_at__gt=database_now() - timedelta(seconds=unique_for),
    )
    if not recent.exists():
        return None
    with tables.atomic():
        if endings.skip(this, "DUPLICATE"):
            result = attempt_log.AttemptResult(
                task=row,
                verdict=Verdict(transition="skip", status=Status.SKIPPED, log=LogStatus.DUPLICATE),
                outcome=Outcome(kind=EndingKind.IGNORED),
                worker=place.worker,
                celery_id=celery_id,
            )
            attempt_log.log_endings([result])
    return Refusal.DUPLICATE


@retry_on_deadlock
def succeed(run: Run, result: str | None, worker: str) -> bool:
    """Record the success with its log row; return False if the run was fenced.

    If the reply to the COMMIT was lost and the call is repeated, the success is found in the log. A
    success with follow-ups is recorded by ``workflows.runs.succeed``.
    """
    return run_transitions.succeed(run, result, worker) or succeeded(run)


def succeeded(run: Run) -> bool:
    """Return whether the log contains the success of this run."""
    return _is_logged(run, LogStatus.SUCCESS)


def succeeded_of(runs: Sequence[Run]) -> set[uuid.UUID]:
    """Return the run ids of those of these runs whose success is in the log."""
    entries = TaskExecutionLog.objects.using(tables.database()).filter(
        task_id__in=[run.task_id for run in runs],
        run_id__in=[run.run_id for run in runs],
        status=LogStatus.SUCCESS,
    )
    return {run_id for run_id in entries.values_list("run_id", flat=True) if run_id is not None}


def _is_logged(run: Run, *statuses: LogStatus) -> bool:
    """Return whether the log contains an ending of this run, found by its ``run_id``."""
    return (
        TaskExecutionLog.objects.using(tables.database())
        .filter(task_id=run.task_id, run_id=run.run_id, status__in=statuses)
        .exists()
    )


def fence(run: Run, worker: str, error: str = "") -> None:
    """Record that the ending of this run was refused, because it does not own the task anymore."""
    if tables.tasks().filter(pk=run.task_id).exists() and not succeeded(run):
        attempt_log.log_refused(run, LogStatus.FENCED, worker, error)


def fail(run: Run, outcome: Outcome, worker: str) -> Verdict | None:
    """Record a failure, a requested retry or a rejection by the task function; return the verdict.

    Returns None if the run was fenced.
    """
    queryset = tables.tasks().filter(pk=run.task_id, epoch=run.epoch, run_id=run.run_id)
    verdicts = end_runs(queryset, lambda _task: outcome, worker=worker, celery_id=run.celery_id)
    if run.task_id in verdicts:
        return verdicts[run.task_id]
    return (
        decide(outcome, spent(run))
        if _is_logged(run, LogStatus.RETRY, LogStatus.FAILED, LogStatus.CANCELLED)
        else None
    )


def spent(run: Run) -> Budgets:
    """Return the budgets of a run at its start, without reading the task."""
    return Budgets(
        failures=run.failures,
        max_attempts=run.max_attempts,
        crashes=0,
        max_crashes=1,
        on_orphan="",
        cancel_requested=False,
    )


_isolation = Isolation[uuid.UUID]("the run of task")


def end_runs(
    queryset: TaskQuerySet,
    outcome_of: Callable[[Task], Outcome],
    *,
    limit: int | None = None,
    worker: str = "",
    celery_id: str = "",
) -> dict[uuid.UUID, Verdict]:
    """End the RUNNING tasks of the queryset; return the verdicts by task id.

    Status, budgets, log entries and dead letters are written in one transaction. With ``limit``
    (maintenance jobs) a task that cannot be ended is postponed, and the others are ended.
    """
    end = partial(_end_runs, outcome_of=outcome_of, worker=worker, celery_id=celery_id)
    if limit is None:
        return end(queryset, None)
    postponed = _isolation.postponed()
    tasks = queryset.exclude(pk__in=postponed) if postponed else queryset
    done = _isolation.batch(
        lambda: end(tasks, limit),
        lambda: list(tasks.filter(status=Status.RUNNING).values_list("pk", flat=True)[:limit]),
        lambda task_id: end(queryset.filter(pk=task_id), 1),
    )
    return {task_id: verdict for verdicts in done for task_id, verdict in verdicts.items()}


@retry_on_deadlock
def _end_runs(
    queryset: TaskQuerySet,
    limit: int | None,
    *,
    outcome_of: Callable[[Task], Outcome],
    worker: str,
    celery_id: str,
) -> dict[uuid.UUID, Verdict]:
    with tables.atomic():
        rows = run_transitions.locked_runs(queryset, limit)
        results = []
        for row in rows:
            outcome = outcome_of(row)
            budgets = Budgets(
                failures=row.failures,
                max_attempts=row.max_attempts,
                crashes=row.crashes,
                max_crashes=row.max_crashes,
                on_orphan=row.on_orphan,
                cancel_requested=row.cancel_requested_at is not None,
                in_batch=row.in_batch,
            )
            verdict = decide(outcome, budgets)
            delay = outcome.delay
            if verdict.log == LogStatus.RETRY:
                delay = _backoff(row) if delay is None else delay
                delay = max(0.0, delay) if delay <= DELAY_MAX else DELAY_MAX  # also for NaN
            results.append(
                attempt_log.AttemptResult(
                    task=row,
                    verdict=verdict,
                    outcome=outcome,
                    worker=worker,
                    celery_id=celery_id or f"{row.pk}.{row.epoch - 1}.{row.publish_count}",
                    delay=delay or 0.0,
                )
            )
        if results:
            run_transitions.end(results)
            attempt_log.log_endings(results)
            failed = [result for result in results if result.verdict.status == Status.FAILED]
            if failed:
                attempt_log.open_dead_letters(
                    [(result.task, result.outcome, result.verdict.reason) for result in failed]
                )
    return {result.task.pk: result.verdict for result in results}


@retry_on_deadlock
def end_run_of_dead_child(
    task_id: uuid.UUID, epoch: int, place: RunLocation, outcome: Outcome, celery_id: str
) -> bool:
    """End the run that a child process of this node started from the message of this epoch; its
    parent process calls it.

    If the child terminated before it started the task, the attempt is started and ended here.
    Otherwise a task whose message ends each child would be published indefinitely. Returns False
    if the child has recorded the result, or the message is refused.
    """
    started = tables.tasks().filter(pk=task_id, epoch=epoch + 1, node=place.node)
    if end_runs(started, lambda _: outcome, worker=place.worker, celery_id=celery_id):
        return True
    with tables.atomic():
        run = open_run(task_id, epoch, place, celery_id, None)
        return isinstance(run, Run) and fail(run, outcome, place.worker) is not None


def _backoff(row: Task) -> float:
    task = registry.find(row.name)
    retry = task.options.retry if task else RetryPolicy()
    try:
        if not callable(retry.backoff):
            return retry.delay(row.failures + 1, random.random())
        # In a savepoint, so that a failed query of the callable does not abort the transaction.
        with tables.atomic():
            return retry.delay(row.failures + 1, random.random())
    except (Exception, SystemExit):
        logger.exception(
            "The backoff callable of %s raised an exception; the default delay is used.", row.name
        )
        return RetryPolicy().delay(row.failures + 1, random.random())


# What a worker writes and reads while a run lasts. Celery's side imports this module, and not the
# transitions.
heartbeat, still_owned = run_transitions.heartbeat, run_transitions.still_owned
read_position, write_position = run_transitions.read_position, run_transitions.write_position
write_progress = run_transitions.write_progress


# Hands the capacity of an ended run to the next tasks that wait for it.
#
# Called by the process of the run after its ending is committed, so that the next task does not
# wait for a scheduler's poll. The claim takes the lock of limits, counts the usage and enforces
# every limit, so several processes may hand over at once. If the process dies, the release of the
# schedulers finds the capacity.


_MOST = 10
"""The maximum number of tasks that one ending claims. More than one, because capacity that another
process did not hand over is found too.
"""


def frees_capacity(ended: Sequence[Run]) -> bool:
    """Return whether a limit applies to any of these runs, whose capacity their end frees.

    Executes no statement, except that the limits are read once a second.
    """
    limit_config = config.limits_without_connection()
    # Cheap for a batch: its runs have few names.
    return limit_config.may_bind({(run.name, run.queue) for run in ended}) and bool(
        _freed(limit_config, ended)
    )


def _freed(limit_config: LimitConfig, ended: Sequence[Run]) -> set[str]:
    return {
        scope
        for run in ended
        for scope in limit_config.freed(run.name, run.queue, run.tenant_id, run.limit_key)
    }


def claim_next(ended: Sequence[Run], node: uuid.UUID) -> list[TaskMessage]:
    """Claim the next tasks that wait for the limits of these ended runs; return their messages.

    If no task waits, it is one index probe.
    """
    limit_config = config.limits_in_force()
    waiting = waitlist.heads(sorted(_freed(limit_config, ended)))
    if not waiting:
        return []
    claimed = _claim(limit_config, waiting, max(_MOST, len(ended)), node)
    return claims.messages_for(overlap.admitted(claimed))


@retry_on_deadlock
def _claim(
    limit_config: LimitConfig, waiting: Sequence[WaitingTask], limit: int, node: uuid.UUID
) -> list[ClaimedTask]:
    with tables.atomic():
        gate = admission.LimitAdmission(limit_config)
        usage, now = gate.count_usage()
        admitted = list[ClaimedTask]()
        # The waitlists were read without the lock. If others have claimed from them meanwhile, they
        # are read again.
        for reread in (False, True):
            ids = release.select_next(waiting, now, limit, usage, reread=reread)
            wait = conf.settings().REPUBLISH_AFTER
            claimed = claims.claim_these(ids, node, wait, waiting=True) if ids else []
            fit = gate.admit_claimed(in_publishing_order(claimed, now), in_turn=True)
            admitted += fit
            if len(claimed) == len(ids):
                break
            for task in fit:
                usage.add(task)
        gate.close()
    return admitted
