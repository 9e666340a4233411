"""Celery's signals: record endings that the gate has not recorded, and messages that were
refused.

In the parent process of a prefork pool the signals are the only report of a lost child, a
hard time limit or a revocation. A child that recorded its own ending has incremented the
epoch, so a second report changes nothing.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from billiard.exceptions import TimeLimitExceeded, WorkerLostError
from celery import bootsteps, signals
from celery.exceptions import Ignore
from django.db import Error

from django_durable_tasks import conf, process_state
from django_durable_tasks.celery import batch_runs, gate, late_tasks
from django_durable_tasks.celery.event_loop import CancelCoroutines
from django_durable_tasks.celery.gate import outcome_of, outcome_of_result, state_of, text_of
from django_durable_tasks.celery.live_runs import LiveRun, process_runs
from django_durable_tasks.celery.prepared_messages import (
    HEADER,
    RUN_HEADER,
    Envelope,
    TakenRun,
    batch_token,
    parse,
    queue_names_of,
)
from django_durable_tasks.celery.result import described
from django_durable_tasks.celery.worker_node import in_pool_child, place
from django_durable_tasks.exceptions import EndingNotRecorded
from django_durable_tasks.models import Task
from django_durable_tasks.states.machine import EndingKind, Outcome
from django_durable_tasks.store.connections import dedicated_connection
from django_durable_tasks.tasks import attempts, batches, claim, operator_actions
from django_durable_tasks.tasks.options import TaskOptions
from django_durable_tasks.texts import counted

logger = logging.getLogger("django_durable_tasks.runs")
_REFUSED_PAUSE = 1.0
"""Seconds after which a task that this worker refused is due again, if another one may have it."""
_REFUSED_SPACING = 0.2
"""Seconds between two refused tasks of a name that become due again, so that a worker without the
task refuses at most about five messages of it per second.
"""
_LOG_EVERY = 60.0
"""Seconds between two log entries about refused tasks of a name."""


def on_success(sender: Any = None, result: Any = None, **_: Any) -> None:
    """Record the success of a body that returned."""
    live = _unrecorded(sender.request.id) if _options(sender) is not None else None
    if live is not None:
        _record(live, outcome_of_result(live, result))


def on_failure(sender: Any = None, task_id: str = "", exception: Any = None, **_: Any) -> None:
    """Record the failure of a body in this process, or the loss of a child process."""
    token = batch_token(task_id)
    if token is not None:
        if not isinstance(exception, BaseException):
            return
        here = place(conf.settings().LEASE)

        def write() -> int:
            """Mark the runs LOST that a child started from this message and did not end."""
            with dedicated_connection():
                return batches.end_runs_of_dead_child(
                    token, here.node, text_of(exception), here.worker
                )

        _try_twice(write, task_id)
        return
    options = _options(sender)
    if options is None:
        return
    live = process_runs.find(task_id)
    if live is not None:
        if _unrecorded(task_id) and not isinstance(exception, EndingNotRecorded):
            _record(live, gate.outcome_for(live, exception, options))
    elif (envelope := parse(task_id)) and sender.request.id != task_id:
        _record_in_parent(envelope, _outcome_in_parent(envelope, exception, options))


def on_retry(sender: Any = None, request: Any = None, reason: Any = None, **_: Any) -> None:
    """Record a retry that the body requested."""
    options = _options(sender)
    live = _unrecorded(getattr(request, "id", None))
    if options is not None and live is not None and isinstance(reason, BaseException):
        _record(live, gate.outcome_for(live, reason, options))


def on_revoked(
    request: Any = None, terminated: bool = False, expired: bool = False, **_: Any
) -> None:
    """Cancel the task of a revoked message; with ``terminate=True`` end its run."""
    envelope = parse(getattr(request, "id", None))
    if envelope is None or expired:
        return
    if terminated:
        error = "Revoked and terminated."
        outcome = Outcome(kind=EndingKind.REVOKED, error=error, error_type="Revoked")
        _record_in_parent(envelope, outcome)
        return
    if isinstance(getattr(request, RUN_HEADER, None), TakenRun):  # its function was not called
        _record_in_parent(envelope, Outcome(kind=EndingKind.REVOKED, error="Revoked."))
        return

    def write() -> None:
        with dedicated_connection():
            queued = Task.objects.using(conf.settings().DATABASE).queued()
            task = queued.filter(pk=envelope.task_id, epoch=envelope.epoch)
            operator_actions.cancel(task, reason="REVOKED")

    _try_twice(write, envelope.celery_id)


def on_unknown(message: Any = None, name: str = "", **_: Any) -> None:
    """Return a task to PENDING whose name this worker has not registered.

    Its code was removed, or a deployment is under way.
    """
    headers = getattr(message, "headers", None) or {}
    envelope = parse(headers.get(HEADER))
    if envelope is not None:
        delay = process_state.of(RefusedTasks).delay(name)
        _return_unknown(envelope, queue_names_of(headers), delay)


class RefusedTasks:
    """The tasks that this worker refused, because it has not registered their names."""

    def __init__(self) -> None:
        self._due_at: dict[str, float] = {}
        self._logged_at: dict[str, float] = {}
        self._unlogged = Counter[str]()

    def delay(self, name: str) -> float:
        """Count and log a refused task of this name; return the seconds until it is due again."""
        now, most = time.monotonic(), conf.unknown_task_delay()
        self._unlogged[name] += 1
        if now - self._logged_at.get(name, float("-inf")) >= _LOG_EVERY:
            logger.error(
                "This worker has no durable task named %r: %s returned to PENDING.",
                name,
                counted(self._unlogged.pop(name), "task was", "tasks were"),
            )
            self._logged_at[name] = now
        next_at = self._due_at.get(name, 0.0) + _REFUSED_SPACING
        self._due_at[name] = min(max(now + _REFUSED_PAUSE, next_at), now + most)
        return self._due_at[name] - now


class RefuseUnknown(bootsteps.StartStopStep):
    """A step of the consumer that handles messages of durable tasks without a function here.

    Celery logs a traceback for each of them and marks their results as failed.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, parent: Any) -> None:
        """Replace the handler before the event loop reads it, after each connection."""
        of_celery = type(parent).on_unknown_task

        def on_unknown_task(body: Any, message: Any, exc: Any) -> None:
            headers = getattr(message, "headers", None) or {}
            envelope, name = parse(headers.get(HEADER)), str(headers.get("task"))
            if envelope is None:
                of_celery(parent, body, message, exc)
                return
            if late_tasks.is_stored(envelope, name) and late_tasks.load(name):
                parent.update_strategies()
                message.reject_log_error(logger, parent.connection_errors, requeue=True)
                return
            message.reject_log_error(logger, parent.connection_errors)
            on_unknown(message=message, name=name)

        parent.on_unknown_task = on_unknown_task


def on_worker_starting(sender: Any = None, **_: Any) -> None:
    """Add the steps to the consumers of this worker's application."""
    sender.app.steps["consumer"].update((RefuseUnknown, CancelCoroutines))


def on_rejected(message: Any = None, **_: Any) -> None:
    """Treat a message that the worker rejected like one of an unknown task."""
    headers = getattr(message, "headers", None) or {}
    if headers.get(HEADER):
        on_unknown(message=message, name=str(headers.get("task")))


def on_internal_error(
    sender: Any = None, task_id: str = "", request: Any = None, einfo: Any = None, **_: Any
) -> None:
    """Record a failure of Celery around the body, for example of the result backend."""
    live, options = _unrecorded(task_id), _options(sender)
    error = getattr(einfo, "exception", None)
    if live is not None and options is not None and isinstance(error, BaseException):
        _record(live, gate.outcome_for(live, error, options))


def on_postrun(
    sender: Any = None, task_id: str = "", retval: Any = None, state: str | None = None, **_: Any
) -> None:
    """Remove the run of a finished message from the process.

    A run that is still in the heartbeat was started by another delivery of the same message. This
    delivery was refused.
    """
    if sender is not None and not state_of(sender.request).received:
        # What was raised outside of Celery's own handling of errors is being handled here.
        error = retval if isinstance(retval, BaseException) else sys.exception()
        if isinstance(error, SystemExit) and in_pool_child():
            pass  # the parent ends the attempt
        elif (envelope := parse(task_id)) is not None:
            _end_unreceived(sender, envelope, state, retval, error)
        elif error is not None and batch_token(task_id) is not None:
            batch_runs.fail_batch(sender.request, error)
    live = process_runs.find(task_id)
    if live is None or not process_runs.leases.renews(live):
        process_runs.forget(task_id)


def _end_unreceived(
    task: Any, envelope: Envelope, state: str | None, value: Any, error: BaseException | None
) -> None:
    """Start and end the attempt of a message that ended before the gate received it.

    What stands around the gate raised or returned: a receiver, the project's loader, a wrapper of
    another package. Without an attempt the task would be published again for ever.
    """
    if _options(task) is None:
        logger.error("This worker's task %r is not durable; it got a durable message.", task.name)
        _return_unknown(envelope, queue_names_of(task.request))
        return
    try:
        live = gate.open_run(task, envelope)
    except Ignore:
        return  # a duplicate, for example; or the database is away, and the task is republished
    logger.error(
        "Message %s ended with %s before its task %s was started. That counts as an attempt.",
        envelope.celery_id,
        state or type(error).__name__,
        task.name,
        extra={"task_id": str(envelope.task_id)},
    )
    process_runs.leases.add(live)
    try:
        if error is None:
            try:
                gate.returned(live, value)
                gate.close_success(live)
            except EndingNotRecorded:
                raise
            except Exception as refused:  # noqa: BLE001 - the value that was returned
                error = refused
        if error is not None:
            gate.close(live, gate.outcome_for(live, error, task.durable_options))
    except EndingNotRecorded:
        return  # logged where the time was over; the lease ends the run
    finally:
        process_runs.leases.remove(live)


def _return_unknown(
    envelope: Envelope, queues: tuple[str, ...], delay: float | None = None
) -> None:
    def write() -> None:
        with dedicated_connection():
            # The message may come from another queue, whose workers do not run this task.
            claim.return_unknown_task(envelope.task_id, envelope.epoch, queues, delay)

    _try_twice(write, envelope.celery_id)


def _options(sender: Any) -> TaskOptions | None:
    return getattr(sender, "durable_options", None)


def _unrecorded(celery_id: object) -> LiveRun | None:
    live = process_runs.find(celery_id) if isinstance(celery_id, str) else None
    return None if live is None or live.recorded else live


def _record(live: LiveRun, outcome: Outcome) -> None:
    """Write an ending that `gate.close` could not write; once, because its time is over.

    The success of a function that returned takes precedence over an error that followed.
    """
    try:
        live.verdict = gate.write_ending(live, *(live.success or (outcome, ())))
        live.recorded = True
    except Exception as error:  # noqa: BLE001 - the lease ends the run
        logger.error(
            "Could not record the result of run %s from the Celery signal either: %s",
            live.run.celery_id,
            text_of(error),
            extra={"task_id": str(live.run.task_id)},
        )


def _outcome_in_parent(
    envelope: Envelope, exception: BaseException, options: TaskOptions
) -> Outcome:
    # Celery 5.6 reports the exit of a child as SystemExit.
    if isinstance(exception, (WorkerLostError, SystemExit)):
        return Outcome(
            kind=EndingKind.CRASHED,
            error=text_of(exception),
            error_type="WorkerLostError",
            exception=described(exception),
        )
    outcome = outcome_of(exception, options)
    if not isinstance(exception, TimeLimitExceeded):
        return outcome
    if process_runs.has_returned(envelope.task_id, envelope.epoch + 1):
        # No failure of the function, which returned in time.
        error = f"The success was not recorded within the time limit of {exception}"
        return replace(outcome, kind=EndingKind.CRASHED, error=error, traceback="")
    error = f"TimeLimitExceeded: the run was killed after {exception}"
    return replace(outcome, error=error, traceback="")


def _record_in_parent(envelope: Envelope, outcome: Outcome) -> None:
    """End the run of a child process, unless the child has recorded its own ending. If the child
    has not started it, start it first, so that the attempt counts.
    """
    here = place(conf.settings().LEASE)

    def write() -> bool:
        with dedicated_connection():
            return attempts.end_run_of_dead_child(
                envelope.task_id, envelope.epoch, here, outcome, envelope.celery_id
            )

    _try_twice(write, envelope.celery_id)


def _try_twice(write: Callable[[], Any], celery_id: str) -> None:
    """Write at most twice.

    The event loop of the parent must not wait for an unavailable database. An ending that is not
    written here is found when the lease expires.
    """
    for last in (False, True):
        try:
            write()
        except Error as error:
            if last:
                logger.error(
                    "The parent process could not record the result of run %s: %s",
                    celery_id,
                    text_of(error),
                )
        else:
            return


_SIGNALS = {
    signals.worker_init: on_worker_starting,
    signals.task_success: on_success,
    signals.task_failure: on_failure,
    signals.task_retry: on_retry,
    signals.task_revoked: on_revoked,
    signals.task_unknown: on_unknown,
    signals.task_rejected: on_rejected,
    signals.task_internal_error: on_internal_error,
    signals.task_postrun: on_postrun,
}


def connect() -> None:
    """Connect the receivers; called once by ``apps.ready()``."""
    for signal, receiver in _SIGNALS.items():
        signal.connect(
            receiver, weak=False, dispatch_uid=f"django_durable_tasks.{receiver.__name__}"
        )
