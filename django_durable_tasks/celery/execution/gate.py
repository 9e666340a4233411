"""Executes the task of a message: start the run, call the function, record the ending.

The task class calls this instead of the user's function, because a signal receiver could not
refuse a message. A refused message is acknowledged and ignored. If its task still has to run, the
scheduler republishes it.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

from billiard.exceptions import SoftTimeLimitExceeded
from celery.exceptions import Ignore, MaxRetriesExceededError
from celery.exceptions import Retry as CeleryRetry
from django.db import Error, OperationalError, transaction

from django_durable_tasks import conf, ports, registry
from django_durable_tasks.celery.execution import (
    consumed_queue,
    deferred_success,
    endings,
    worker_node,
)
from django_durable_tasks.celery.execution.body_request import of_row
from django_durable_tasks.celery.execution.live_runs import LiveRun, process_runs
from django_durable_tasks.celery.execution.outcomes import outcome_of_result, picklable, text_of
from django_durable_tasks.celery.publishing.message_id import Envelope
from django_durable_tasks.engine.db.connections import dedicated_connection
from django_durable_tasks.engine.db.deadlocks import SERIALIZATION_FAILURE, code_of
from django_durable_tasks.engine.db.outages import reason_of
from django_durable_tasks.engine.dependencies import results
from django_durable_tasks.engine.tasks import attempts, endpoints, next_run
from django_durable_tasks.engine.tasks.attempts import Refusal, RunLocation
from django_durable_tasks.engine.tasks.dead_child_processes import new_run_id
from django_durable_tasks.engine.workflows.followups import succeed as record_success
from django_durable_tasks.exceptions import EndingNotRecorded, IsolationTooStrict
from django_durable_tasks.rules.states import Status
from django_durable_tasks.rules.tasks.endings import Outcome
from django_durable_tasks.rules.tasks.options import TaskOptions
from django_durable_tasks.rules.tasks.runs import Run
from django_durable_tasks.rules.workflows.followups import FollowUp, followups_of
from django_durable_tasks.rules.workflows.plan import REFERS

logger = logging.getLogger("django_durable_tasks.runs")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
_idle = threading.Event()
"""Never set: waiting for it is a pause."""


class Fenced(Exception):
    """The success was refused, so the transaction of an atomic task is rolled back."""


def run_message(task: Any, envelope: Envelope) -> Any:
    """Run the task of this message and return its value.

    Raises Ignore if the message is refused or the run was fenced, Retry or the exception of the
    task if it failed.
    """
    live = _open(task, envelope)
    body = atomic_body if task.durable_options.atomic else _plain_body
    try:
        if not live.eager:
            process_runs.leases.add(live)
        with process_runs.running(live):
            task.request.retries = live.run.failures
            try:
                with nullcontext() if ports.traces is None else ports.traces.attempt(live.run):
                    return body(task, live)
            except EndingNotRecorded:
                raise
            except BaseException as error:  # noqa: BLE001 - interrupts are endings too
                if deferred_success.of_process().holds(live):
                    # The function returned in time, and a limit interrupted what follows.
                    deferred_success.of_process().record()
                raise closed_by(task, live, error) from None
    finally:
        # A time limit can interrupt any instruction above. The run must leave the heartbeat anyway,
        # unless its success is deferred.
        if not deferred_success.of_process().holds(live):
            process_runs.leases.remove(live)


def _open(task: Any, envelope: Envelope) -> LiveRun:
    options: TaskOptions = task.durable_options
    lease = options.lease or conf.settings().LEASE
    eager = bool(task.request.is_eager)
    place = worker_node.place(lease, () if eager else consumed_queue.names_of(task.request))
    try:
        opened = _start(task, envelope, place, eager)
    except Error as error:
        logger.warning("Run %s was not started: %s", envelope.celery_id, reason_of(error))
        raise Ignore("The database is unavailable; the task is republished.") from None
    if isinstance(opened, Refusal):
        if opened is Refusal.MISROUTED:
            logger.error(
                "Message %s was consumed from queue %r, which is not the queue of its task. It was"
                " ignored and is republished to the queue of the task.",
                envelope.celery_id,
                place.queues[0],
                extra={"task_id": str(envelope.task_id), "queue": place.queues[0]},
            )
        logger.info(
            "Ignored message %s: %s",
            envelope.celery_id,
            opened,
            extra={"durable_refusal": str(opened)},
        )
        raise Ignore(f"The message was refused: {opened}.")
    timeout = opened.options.get("timeout", options.timeout)
    lease = opened.options.get("lease", lease)
    return LiveRun(opened, lease=lease, timeout=timeout, worker=place.worker, eager=eager)


def _start(task: Any, envelope: Envelope, place: RunLocation, eager: bool) -> Run | Refusal:
    """Start the run under one run id. After an error it is read back until its result is known.

    A dead connection and a lost reply to COMMIT look alike, so an UPDATE whose reply was lost may
    have been executed, or may still be executed. After HEARTBEAT seconds without an answer the
    error is raised: a run that was read back later could lose its lease before its first heartbeat.
    """
    row, celery_id, run_id = envelope.task_id, envelope.celery_id, new_run_id()
    start = partial(
        _open_run,
        task,
        row,
        envelope.epoch,
        place,
        celery_id,
        task.durable_options.unique_for,
        name=task.name,
        run_id=run_id,
    )
    deadline, pause, sent = time.monotonic() + conf.settings().HEARTBEAT, 0.0, False
    try:
        opened = _start_with_success(task, envelope, place, run_id)
    except Error:
        sent = True
        if time.monotonic() > deadline:
            raise
    else:
        if opened is not None:
            return opened
    while True:
        try:
            with nullcontext() if eager else dedicated_connection():
                again, sent = sent, True
                return _start_or_read_back(
                    start, partial(attempts.opened, row, run_id, place, celery_id), again
                )
        except Error:
            over = eager or not sent or time.monotonic() + pause > deadline
            if pause and over:
                raise
        _idle.wait(pause)
        pause = min(max(_FIRST_PAUSE, 2 * pause), _LONGEST_PAUSE)


def _start_with_success(
    task: Any, envelope: Envelope, place: RunLocation, run_id: uuid.UUID
) -> Run | Refusal | None:
    """Record the deferred success of this process, with the start of this run if possible. Return
    None if the run was not started. After an error it may have been.
    """
    deferred = deferred_success.of_process()
    if task.durable_options.unique_for is not None or _has_endpoint(task):
        deferred.record()
        return None

    def start(ended: Run, result: str | None) -> tuple[bool, Run | Refusal]:
        return next_run.succeed_and_open(
            ended,
            result,
            envelope.task_id,
            envelope.epoch,
            place,
            envelope.celery_id,
            name=task.name,
            run_id=run_id,
        )

    return deferred.record_with(start)


def _has_endpoint(task: Any) -> bool:
    known = registry.find(task.name)
    return known is not None and known.target.endpoint is not None


def _open_run(task: Any, row: uuid.UUID, epoch: int, *rest: Any, **more: Any) -> Run | Refusal:
    """Start the run unless the breaker of the task's endpoint is open."""
    if _has_endpoint(task) and endpoints.postpone(row, epoch):
        return Refusal.POSTPONED
    return attempts.open_run(row, epoch, *rest, **more)


def _start_or_read_back(
    start: Callable[[], Run | Refusal], read_back: Callable[[], Run | None], again: bool
) -> Run | Refusal:
    """Start the run; ``again`` if an earlier try may have started it."""
    if not again:
        return start()
    opened = read_back() or start()
    # If the first UPDATE is still in progress, the second one waits for it and then finds the
    # task RUNNING.
    return (read_back() or opened) if isinstance(opened, Refusal) else opened


def _plain_body(task: Any, live: LiveRun) -> Any:
    value = call_function(task, live)
    followups = live.followups(value)
    outcome = outcome_of_result(task.name, value)
    try:
        if not followups and deferred_success.may_wait(task, live):
            deferred_success.of_process().defer(live, outcome)
            return value
        verdict = endings.close(live, outcome, followups)
    except SoftTimeLimitExceeded:
        # The function returned in time. The limit interrupted the write of the ending, which may
        # have been committed, so it is repeated.
        if deferred_success.of_process().holds(live):
            return value
        verdict = endings.close(live, outcome, followups)
    if verdict is None:
        raise Fenced
    return None if followups_of(value) else value


def call_function(task: Any, live: LiveRun) -> Any:
    """Call the function. Raise the retry that ``self.retry(throw=False)`` requested."""
    live.args, live.kwargs = _arguments(live)
    with of_row(task.request, live):
        task.before_start(str(live.run.task_id), live.args, live.kwargs)
        value = task.run(*live.args, **live.kwargs)
    if live.requested_retry is not None:
        raise live.requested_retry
    return value


def _arguments(live: LiveRun) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a run, with references replaced by the results of upstreams."""
    run = live.run
    args, kwargs = results.arguments_of(run)
    if REFERS not in run.options:
        return args, kwargs
    with nullcontext() if live.eager else dedicated_connection():
        return results.resolve(args, kwargs, run.tenant_id)


def atomic_body(task: Any, live: LiveRun) -> Any:
    """Call the function and record its success in one transaction on the project's connection.

    If the success is refused, the writes of the function are rolled back.
    """
    try:
        with transaction.atomic(using=conf.settings().DATABASE):
            value = call_function(task, live)
            followups = live.followups(value)
            outcome = outcome_of_result(task.name, value)
            if not _succeed_within(live, outcome, followups):
                raise Fenced
    except Exception as error:
        # The COMMIT may have succeeded although its reply was lost or an on_commit hook failed.
        if isinstance(error, Fenced) or not _is_committed(live):
            raise
        logger.warning(
            "Run %s succeeded and was committed, but an error followed: %s",
            live.run.celery_id,
            text_of(error),
        )
    endings.close_committed(live, outcome)
    return None if followups_of(value) else value


def _succeed_within(live: LiveRun, outcome: Outcome, followups: Sequence[FollowUp]) -> bool:
    try:
        return record_success(live.run, outcome.result, live.worker, followups)
    except OperationalError as error:
        if code_of(error) != SERIALIZATION_FAILURE:
            raise
        raise IsolationTooStrict(
            f"The success of the atomic task {live.run.name} was refused ({text_of(error)}): its"
            " row was changed, for example by a heartbeat, after the transaction began. Use READ"
            " COMMITTED (durable_tasks.E017)."
        ) from error


def _is_committed(live: LiveRun) -> bool:
    try:
        with nullcontext() if live.eager else dedicated_connection():
            return attempts.succeeded(live.run)
    except Error:
        return False


def closed_by(task: Any, live: LiveRun, error: BaseException) -> Any:
    """Record the ending of a run by this exception; return the exception to raise to Celery."""
    if isinstance(error, Fenced):
        endings.close_fenced(live)
        return Ignore("Fenced: the task has another epoch.")
    if not isinstance(error, Exception) and worker_node.in_pool_child():
        # sys.exit(), an interrupt, or a kill by the parent process, which records the reason.
        process_runs.leases.remove(live)
        return error
    if live.requested_retry is not None and isinstance(error, Exception):
        error = live.requested_retry
    verdict = endings.close(live, endings.outcome_for(live, error, task.durable_options))
    if not isinstance(error, Exception):
        return error
    if verdict is None or verdict.status == Status.CANCELLED:
        return Ignore("The run was cancelled, or the task has another epoch.")
    retry = error if isinstance(error, CeleryRetry) else None
    cause = retry.exc if retry is not None and isinstance(retry.exc, BaseException) else error
    if verdict.status == Status.PENDING:
        return CeleryRetry(exc=picklable(cause), when=retry.when if retry is not None else None)
    if isinstance(cause, CeleryRetry):
        return MaxRetriesExceededError(
            f"Can't retry {task.name}[{live.run.task_id}]: {verdict.reason}."
        )
    return picklable(cause)
