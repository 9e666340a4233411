"""One ending, ``close``, with two tellers: the class around the body first, Celery's signals
second.

The class sees every ending of its process. In the parent of a prefork pool (a lost child, the hard
limit, a revoke) the signals are the only teller. What nobody tells, the lease tells.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any

from billiard.exceptions import TimeLimitExceeded, WorkerLostError
from celery import signals
from django.db import Error

from django_durable_tasks import conf, ports
from django_durable_tasks.celery.execution import consumed_queue, heartbeat
from django_durable_tasks.celery.execution.heartbeat import LiveRun
from django_durable_tasks.celery.execution.outcomes import outcome_of, outcome_of_result, text_of
from django_durable_tasks.celery.execution.worker_node import place
from django_durable_tasks.celery.publishing.message_id import HEADER, Envelope, parse
from django_durable_tasks.celery.stored_exceptions import described
from django_durable_tasks.engine.db.connections import dedicated_connection
from django_durable_tasks.engine.dependencies import resolve
from django_durable_tasks.engine.dependencies.resolve import ResolveResult
from django_durable_tasks.engine.tasks import attempts, claim, operator_actions, recovery
from django_durable_tasks.engine.workflows.followups import succeed as record_success
from django_durable_tasks.exceptions import EndingNotRecorded
from django_durable_tasks.models import Task
from django_durable_tasks.rules.states import TERMINAL
from django_durable_tasks.rules.tasks.endings import Kind, Outcome, Verdict, judge
from django_durable_tasks.rules.tasks.options import TaskOptions
from django_durable_tasks.rules.workflows.followups import FollowUp

logger = logging.getLogger("django_durable_tasks.runs")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 5.0


def close(live: LiveRun, outcome: Outcome, followups: Sequence[FollowUp] = ()) -> Verdict | None:
    """Write the ending of a run, once; return where the row went, None when the run was fenced.

    A write that fails is tried again with growing pauses for RESULT_WRITE_TIMEOUT seconds while the
    heartbeat goes on. After that EndingNotRecorded is raised. Either way the run leaves the
    heartbeat.
    """
    if live.told:
        return live.verdict
    try:
        live.verdict = _persist(
            lambda: _write(live, outcome, followups), conf.settings().RESULT_WRITE_TIMEOUT
        )
        live.told = True
    finally:
        heartbeat.heart.remove(live)
    _report(live, outcome)
    tell_dependents(live)
    return live.verdict


def tell_dependents(live: LiveRun) -> None:
    """Release what waited for this run; what cannot be done here at once is done by the leader, who
    is woken.
    """
    run = live.run
    if live.verdict is None or live.verdict.status not in TERMINAL:
        return
    if not run.has_dependents and run.workflow_id is None:
        return
    try:
        with nullcontext() if live.eager else dedicated_connection():
            done = (
                resolve.resolve_endings_of(run.task_id) if run.has_dependents else ResolveResult()
            )
            # An ending that lets nobody go may be the last of its workflow, which the leader
            # counts.
            if done.left or (run.workflow_id is not None and not done.moved):
                ports.due.duties()
        ports.publish(done.messages)
    except Error as error:
        logger.warning(
            "Could not resolve the dependents of task %s; the leader resolves them: %s",
            live.run.task_id,
            text_of(error),
            extra={"task_id": str(live.run.task_id)},
        )
        with suppress(Error), nullcontext() if live.eager else dedicated_connection():
            ports.due.duties()


def note_success(live: LiveRun, outcome: Outcome) -> None:
    """Take in that the success was written elsewhere: in the transaction of an atomic body."""
    live.verdict, live.told = judge(outcome, attempts.spent(live.run)), True
    heartbeat.heart.remove(live)
    _report(live, outcome)
    tell_dependents(live)


def give_up(live: LiveRun) -> None:
    """Take in that the row has another owner: the log row FENCED says so, nothing else is
    written.
    """
    heartbeat.heart.remove(live)
    if not live.told:
        live.told = True
        fenced = Outcome(kind=Kind.SUCCEEDED, error="The success was refused.")
        _persist(lambda: _fence(live, fenced), conf.settings().RESULT_WRITE_TIMEOUT)
        _report(live, fenced)


def _fence(live: LiveRun, outcome: Outcome) -> None:
    with nullcontext() if live.eager else dedicated_connection():
        attempts.fence(live.run, live.worker, outcome.error)


def _write(live: LiveRun, outcome: Outcome, followups: Sequence[FollowUp]) -> Verdict | None:
    run = live.run
    with nullcontext() if live.eager else dedicated_connection():
        if outcome.kind is Kind.SUCCEEDED:
            accepted = record_success(run, outcome.result, live.worker, followups)
            verdict = judge(outcome, attempts.spent(run)) if accepted else None
        else:
            verdict = attempts.fail(run, outcome, live.worker)
        if verdict is None:
            attempts.fence(run, live.worker, outcome.error)
        return verdict


def _persist(write: Callable[[], Verdict | None], seconds: float) -> Verdict | None:
    deadline, pause = time.monotonic() + seconds, _FIRST_PAUSE
    while True:
        try:
            return write()
        except Error as error:
            if time.monotonic() + pause > deadline:
                logger.error(
                    "Could not record the result of a run for %g s (%s). It is marked LOST when its"
                    " lease expires.",
                    seconds,
                    text_of(error),
                )
                raise EndingNotRecorded(f"{text_of(error)} for {seconds:g} s.") from None
            _idle.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)


_idle = (
    threading.Event()
)  # never set: a pause that a test can shorten by time limits, not by patching


def _report(live: LiveRun, outcome: Outcome) -> None:
    run, verdict = live.run, live.verdict
    status = str(verdict.log) if verdict else "FENCED"
    details = {
        "task_name": run.name,
        "task_id": str(run.task_id),
        "attempt": run.attempt,
        "status": status,
        "duration": round(time.monotonic() - live.began, 6),
        "error": outcome.error,
    }
    level = logging.INFO if status in ("SUCCESS", "CANCELLED") else logging.WARNING
    logger.log(
        level,
        "%s id=%s attempt=%d status=%s duration=%.3f error=%r",
        *details.values(),
        extra={"durable": details},
    )


def outcome_for(live: LiveRun, error: BaseException, options: TaskOptions) -> Outcome:
    """Return how this exception ends this run, with the limit that its ``self.retry()`` set."""
    return replace(outcome_of(error, options), max_attempts=live.max_attempts)


# The second teller: Celery's signals --------------------------------------------------------------


def _untold(celery_id: object) -> LiveRun | None:
    live = heartbeat.find(celery_id) if isinstance(celery_id, str) else None
    return None if live is None or live.told else live


def _tell(live: LiveRun, outcome: Outcome) -> None:
    """Tell an ending that the class could not; one try, because the class has spent the time there
    was.
    """
    try:
        live.verdict = _write(live, outcome, ())
        live.told = True
    except Error as error:
        logger.error(
            "Could not record the result of run %s from the Celery signal either: %s",
            live.run.celery_id,
            text_of(error),
            extra={"task_id": str(live.run.task_id)},
        )


def on_success(sender: Any = None, result: Any = None, **_: Any) -> None:
    """The body returned."""
    live = _untold(sender.request.id) if _options(sender) is not None else None
    if live is not None:
        _tell(live, outcome_of_result(live.run.name, result))


def on_failure(sender: Any = None, task_id: str = "", exception: Any = None, **_: Any) -> None:
    """A body failed in this process, or a child of this parent ended without a word."""
    options = _options(sender)
    if options is None:
        return
    live = heartbeat.find(task_id)
    if live is not None:
        if not live.told and not isinstance(exception, EndingNotRecorded):
            _tell(live, outcome_for(live, exception, options))
    elif envelope := parse(task_id):
        _tell_of_child(envelope, _outcome_in_parent(exception, options))


def _options(sender: Any) -> TaskOptions | None:
    return getattr(sender, "durable_options", None)


def _outcome_in_parent(exception: BaseException, options: TaskOptions) -> Outcome:
    if isinstance(
        exception, (WorkerLostError, SystemExit)
    ):  # Celery 5.6 hands the exit of a child on as it is
        kind, error = Kind.CRASHED, text_of(exception)
        return Outcome(
            kind=kind, error=error, error_type="WorkerLostError", exception=described(exception)
        )
    outcome = outcome_of(exception, options)
    if isinstance(exception, TimeLimitExceeded):
        return replace(
            outcome, error=f"TimeLimitExceeded: the run was killed after {exception}", traceback=""
        )
    return outcome


def _tell_of_child(envelope: Envelope, outcome: Outcome) -> None:
    """End the run of a child; a child that told its own ending has moved the epoch, so this changes
    nothing.
    """
    here = place(conf.settings().LEASE)

    def write() -> bool:
        with dedicated_connection():
            return recovery.end_run_of_dead_child(
                envelope.task_id,
                envelope.epoch,
                here.node,
                outcome,
                here.worker,
                envelope.celery_id,
            )

    _briefly(write, envelope.celery_id)


def _briefly(write: Callable[[], Any], celery_id: str) -> None:
    """Two tries: the parent's loop must not wait for a database that is away; the lease tells
    later.
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


def on_retry(sender: Any = None, request: Any = None, reason: Any = None, **_: Any) -> None:
    """The body asked for another try."""
    options = _options(sender)
    live = _untold(getattr(request, "id", None))
    if options is not None and live is not None and isinstance(reason, BaseException):
        _tell(live, outcome_for(live, reason, options))


def on_revoked(
    request: Any = None, terminated: bool = False, expired: bool = False, **_: Any
) -> None:
    """Somebody revoked a message: before its start, or with ``terminate=True`` while it ran."""
    envelope = parse(getattr(request, "id", None))
    if envelope is None or expired:
        return
    if terminated:
        _tell_of_child(
            envelope,
            Outcome(kind=Kind.REVOKED, error="Revoked and terminated.", error_type="Revoked"),
        )
        return

    def write() -> None:
        with dedicated_connection():
            this = (
                Task.objects.using(conf.settings().DATABASE)
                .queued()
                .filter(pk=envelope.task_id, epoch=envelope.epoch)
            )
            operator_actions.cancel(this, reason="REVOKED")

    _briefly(write, envelope.celery_id)


def on_unknown(message: Any = None, name: str = "", id: str = "", **_: Any) -> None:
    """This worker does not know the task: a deploy is under way, or its code is gone. The row
    waits.
    """
    headers = getattr(message, "headers", None) or {}
    envelope = parse(headers.get(HEADER))
    if envelope is None:
        return
    logger.error(
        "This worker has no durable task named %r; task %s was returned to PENDING.",
        name,
        envelope.task_id,
    )

    def write() -> None:
        with dedicated_connection():
            # A message that went astray says nothing about the workers of its task's queue.
            claim.hand_back_unknown(
                envelope.task_id, envelope.epoch, consumed_queue.names_of(headers)
            )

    _briefly(write, envelope.celery_id)


def on_rejected(message: Any = None, exc: Any = None, **_: Any) -> None:
    """The worker refused the message as such: the row waits like one of an unknown task."""
    headers = getattr(message, "headers", None) or {}
    if headers.get(HEADER):
        on_unknown(message=message, name=str(headers.get("task")), id=str(headers.get("id")))


def on_internal_error(
    sender: Any = None, task_id: str = "", request: Any = None, einfo: Any = None, **_: Any
) -> None:
    """Celery itself failed around the body, for example because the result backend is away."""
    live, options = _untold(task_id), _options(sender)
    error = getattr(einfo, "exception", None)
    if live is not None and options is not None and isinstance(error, BaseException):
        _tell(live, outcome_for(live, error, options))


def on_postrun(task_id: str = "", **_: Any) -> None:
    """The message is finished: forget its run. A run that nobody could close has left the heartbeat
    by now.

    One that is still in it was started by a twin of this message, which was refused.
    """
    live = heartbeat.find(task_id)
    if live is None or not heartbeat.heart.holds(live):
        heartbeat.forget(task_id)


_SIGNALS = {
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
    """Connect the second teller; called once by ``apps.ready()``."""
    for signal, receiver in _SIGNALS.items():
        signal.connect(
            receiver, weak=False, dispatch_uid=f"django_durable_tasks.{receiver.__name__}"
        )
