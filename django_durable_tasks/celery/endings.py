"""Records how a run ended: in the database first, then in the log, then for its dependents."""

from __future__ import annotations

import logging
import pickle
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from billiard.exceptions import SoftTimeLimitExceeded
from celery import exceptions as celery_exceptions
from celery.utils.serialization import get_pickleable_exception
from django.db import DataError, Error, IntegrityError, connections

from django_durable_tasks import conf, ports
from django_durable_tasks.celery.live_runs import LiveRun, followups_of, process_runs
from django_durable_tasks.celery.result import described
from django_durable_tasks.choices import TERMINAL
from django_durable_tasks.conf import InvalidSetting
from django_durable_tasks.dependencies import resolve
from django_durable_tasks.dependencies.resolve import ResolveResult
from django_durable_tasks.exceptions import (
    BodyFailed,
    DurableTasksError,
    EncryptionError,
    EndingNotRecorded,
    InvalidOption,
    InvalidReference,
    ResultTooLarge,
    RunInterrupted,
    UnserializableResult,
)
from django_durable_tasks.masking import ERROR_MAX_BYTES, masked_excerpt, shortened
from django_durable_tasks.states.machine import EndingKind, Outcome, Verdict, decide
from django_durable_tasks.store.clock import estimated_now
from django_durable_tasks.store.connections import dedicated_connection, in_transaction
from django_durable_tasks.tasks import attempts
from django_durable_tasks.tasks.arguments import encode_result
from django_durable_tasks.tasks.attempts import claim_next, frees_capacity
from django_durable_tasks.tasks.options import Retry, TaskOptions
from django_durable_tasks.texts import counted
from django_durable_tasks.workflows import runs as workflow_runs
from django_durable_tasks.workflows.builder import FollowUp

# Converts the exception of a task to an outcome to be stored and to an exception that Celery can
# send.


_WAIT_FOR_KEY = 60.0
"""Seconds until a run whose arguments cannot be decrypted is tried again."""


def text_of(error: BaseException) -> str:
    """Return type and message on one line, masked and accepted by every database."""
    try:
        message = str(error)
    except Exception as unprintable:  # noqa: BLE001 - an exception's own __str__ may raise anything
        message = f"<no text: its __str__ raised {type(unprintable).__name__}>"
    settings = conf.settings()
    masked = masked_excerpt(message, settings.SECRET_NAMES, ERROR_MAX_BYTES)
    line = f"{type(error).__name__}: {masked}" if message else type(error).__name__
    return shortened(line, ERROR_MAX_BYTES)


def outcome_of_result(live: LiveRun, value: object) -> Outcome:
    """Return the success of a run with this result; raises UnserializableResult or
    ResultTooLarge.
    """
    max_bytes, max_depth = live.result_limits
    result = (
        None
        if followups_of(value)
        else encode_result(live.run.name, value, max_bytes=max_bytes, max_depth=max_depth)
    )
    return Outcome(kind=EndingKind.SUCCEEDED, result=result)


def outcome_of(error: BaseException, options: TaskOptions) -> Outcome:
    """Return the outcome of a run that ended with this exception."""
    kind, retryable, delay, cause = _kind_of(error, options)
    try:
        is_fault = not isinstance(error, RunInterrupted)
        lines = "".join(traceback.format_exception(error)) if is_fault else ""
    except Exception:  # noqa: BLE001 - formatting calls the exception's own code
        lines = text_of(error)
    return Outcome(
        kind=kind,
        error=text_of(cause),
        error_type=type(cause).__name__,
        traceback=masked_excerpt(lines, conf.settings().SECRET_NAMES, ERROR_MAX_BYTES),
        retryable=retryable,
        delay=delay,
        queue=error.queue if isinstance(error, Retry) else None,
        exception=described(cause),
    )


def _kind_of(
    error: BaseException, options: TaskOptions
) -> tuple[EndingKind, bool, float | None, BaseException]:
    match error:
        case Retry():
            return EndingKind.RETRY_ASKED, True, error.after, error
        case celery_exceptions.Retry():
            cause = error.exc if isinstance(error.exc, BaseException) else error
            return EndingKind.RETRY_ASKED, True, _wait(error.when), cause
        case RunInterrupted():
            return EndingKind.POSTPONED, True, 0.0, error
        case EncryptionError():
            return EndingKind.POSTPONED, True, _WAIT_FOR_KEY, error
        case celery_exceptions.Ignore():
            return EndingKind.IGNORED, False, None, error
        case celery_exceptions.Reject():
            return EndingKind.REJECTED, bool(error.requeue), None, error
        case (
            celery_exceptions.MaxRetriesExceededError()
            | UnserializableResult()
            | ResultTooLarge()
            | InvalidReference()
            | InvalidOption()
        ):
            return EndingKind.FAILED, False, None, error
    return EndingKind.FAILED, options.retryable(error), None, error


def _wait(when: object) -> float | None:
    if isinstance(when, datetime):
        aware = when if when.tzinfo else when.replace(tzinfo=UTC)
        return max(0.0, (aware - estimated_now()) / timedelta(seconds=1))
    return max(0.0, float(when)) if isinstance(when, int | float) else None


def picklable(error: BaseException) -> BaseException:
    """Return the exception if it can be pickled and unpickled, else a BodyFailed with its text."""
    return error if _survives(error) else BodyFailed(text_of(error))


def raisable(error: BaseException) -> BaseException:
    """Return the exception to raise to Celery: the own one of the function, so that wrappers of
    other packages report its class and frames. Celery replaces it afterwards if it cannot be
    pickled.

    A BodyFailed with the exception as its cause is returned if Celery could not do that, and for a
    MemoryError, which Celery raises again in the parent process, which would end the worker.
    """
    if not isinstance(error, MemoryError) and (_survives(error) or _is_replaced(error)):
        return error
    failed = BodyFailed(text_of(error))
    failed.__cause__ = error
    return failed


def _is_replaced(error: BaseException) -> bool:
    """Return whether Celery replaces the exception by one that can be pickled."""
    try:
        return _survives(get_pickleable_exception(error))
    except Exception:  # noqa: BLE001 - it calls the exception's own code
        return False


def _survives(error: BaseException) -> bool:
    if isinstance(error, MemoryError):
        return False
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - our own object, just dumped
    except Exception:  # noqa: BLE001 - pickling calls the exception's own code
        return False
    return True


# The gate calls `close` for each ending that the process of the run sees. Celery's signals record
# the remaining endings (see `signal_handlers`). An ending that neither records is found when the
# lease of the run expires.


T = TypeVar("T")
logger = logging.getLogger("django_durable_tasks.runs")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 5.0
# Tries after which a value is regarded as the cause of an error, and not a circumstance such as two
# transactions that insert the same key.
_REFUSALS = 3
_idle = threading.Event()
"""Never set: waiting for it is a pause."""


def close_success(live: LiveRun) -> Verdict | None:
    """Write the success that the function of this run returned, as ``close`` does."""
    return close(live, *live.decided)


def close(live: LiveRun, outcome: Outcome, followups: Sequence[FollowUp] = ()) -> Verdict | None:
    """Write the ending of a run once; return its verdict, or None if the run was fenced.

    A write that fails for any reason is repeated with growing pauses for RESULT_WRITE_TIMEOUT
    seconds while the heartbeat continues. Then EndingNotRecorded is raised, and the run leaves the
    heartbeat, so that its lease ends it as LOST. If what the function returned cannot be stored,
    the error is raised, and the caller closes the run with it. Nothing that follows a recorded
    ending raises an exception.
    """
    if live.recorded:
        return live.verdict
    try:
        try:
            live.verdict = persist(
                lambda: write_ending(live, outcome, followups), live, partial(is_refused, live)
            )
        except (DataError, DurableTasksError) as error:
            if outcome.kind is EndingKind.SUCCEEDED or isinstance(error, EndingNotRecorded):
                raise
            # The values that the function supplied were refused: the failure without them.
            outcome = Outcome(
                kind=outcome.kind,
                error=f"The error of this attempt could not be stored: {text_of(error)}",
                retryable=outcome.retryable,
                delay=outcome.delay,
            )
            live.verdict = persist(lambda: write_ending(live, outcome), live)
    except EndingNotRecorded:
        process_runs.leases.remove(live)
        raise
    except Exception:
        live.success = None  # refused: the caller closes the run as a failure
        raise
    _conclude(live, outcome)
    return live.verdict


def close_committed(live: LiveRun) -> None:
    """Finish a run whose success was committed in the transaction of its atomic body."""
    live.verdict = decide(live.decided.outcome, attempts.spent(live.run))
    _conclude(live, live.decided.outcome)


def close_lost(live: LiveRun, error: BaseException) -> None:
    """End a run as LOST: the transaction of an atomic task was lost after its function had
    returned.
    """
    live.success = None
    text = f"The transaction was lost after the function had returned. {safe_text_of(error)}"
    close(live, Outcome(kind=EndingKind.CRASHED, error=text, error_type="TransactionLost"))


def close_fenced(live: LiveRun) -> None:
    """Finish a run whose success was refused, because its task has another epoch.

    Only the status FENCED of its execution log is written.
    """
    process_runs.leases.remove(live)
    if not live.recorded:
        live.recorded = True
        fenced = Outcome(kind=EndingKind.SUCCEEDED, error="The success was refused.")

        def write() -> None:
            with connection_of(live):
                attempts.fence(live.run, live.worker, fenced.error)

        persist(write, live)
        after_endings([live], fenced)


def _conclude(live: LiveRun, outcome: Outcome) -> None:
    live.recorded = True
    process_runs.leases.remove(live)
    after_endings([live], outcome)


def after_endings(ended: Sequence[LiveRun], outcome: Outcome) -> None:
    """Do what follows recorded endings: log them, release dependents, hand over capacity.

    Nothing is raised. Schedulers do what is not done here.
    """
    for live in ended:
        for step in (partial(report, live, outcome), partial(resolve_dependents, live)):
            try:
                step()
            except Exception as error:  # noqa: BLE001 - a time limit, a filter of the log, a port
                log_error_after_ending(live, error)
    hand_over(ended)


def safe_text_of(error: BaseException) -> str:
    """Return ``text_of`` an error, or its type if the settings cannot be read."""
    try:
        return text_of(error)
    except Exception:  # noqa: BLE001 - a text must not change how a run ends
        return type(error).__name__


def log_error_after_ending(live: LiveRun, error: BaseException) -> None:
    """Log an error that does not change the ending of this run."""
    log(
        logging.WARNING,
        "The ending of run %s is recorded; an error followed: %s",
        live.run.celery_id,
        safe_text_of(error),
        exc_info=error,
        extra={"task_id": str(live.run.task_id)},
    )


def log(level: int, text: str, *values: object, **details: Any) -> None:
    """Log without raising what a filter of the project raises. It is printed, as ``logging`` does
    with the errors of handlers.
    """
    try:
        logger.log(level, text, *values, **details)
    except Exception:  # noqa: BLE001 - a log line must not change how a run ends
        traceback.print_exc()


def resolve_dependents(live: LiveRun) -> None:
    """Release the tasks that depend on the task of this run.

    The leader is woken for dependents that this process cannot resolve, and for the counters of
    the workflow.
    """
    run = live.run
    if live.verdict is None or live.verdict.status not in TERMINAL:
        return
    if not run.has_dependents and run.workflow_id is None:
        return
    try:
        with connection_of(live):
            done = (
                resolve.resolve_endings_of(run.task_id) if run.has_dependents else ResolveResult()
            )
            # An ending that releases no task may be the last of its workflow. The leader counts.
            if done.left or (run.workflow_id is not None and not done.moved):
                ports.due.leader_work()
        ports.publish(done.messages)
    except Exception as error:  # noqa: BLE001 - the ending is recorded
        logger.warning(
            "Could not resolve the dependents of task %s; the leader resolves them: %s",
            live.run.task_id,
            text_of(error),
            extra={"task_id": str(live.run.task_id)},
        )
        with connection_of(live):
            ports.due.leader_work()


def hand_over(ended: Sequence[LiveRun]) -> None:
    """Publish the next tasks that wait for the capacity that these runs have freed.

    Errors are logged and not raised, because the endings are recorded and the schedulers release
    what is not handed over. While the breaker of the broker is open, nothing is claimed.
    """
    runs = [live.run for live in ended if live.verdict is not None and not live.eager]
    if not runs:
        return
    try:
        if not ports.broker_open() or not frees_capacity(runs):
            return
        with dedicated_connection():
            messages = claim_next(runs, runs[0].node)
        if messages:
            ports.publish(messages)
    except Exception:
        logger.warning(
            "The capacity of %s was not handed over; a scheduler releases it.",
            counted(len(runs), "run"),
            exc_info=True,
            extra={"task_id": str(runs[0].task_id)},
        )


def outcome_for(live: LiveRun, error: BaseException, options: TaskOptions) -> Outcome:
    """Return how this exception ends this run, with the limit that its ``self.retry()`` set."""
    outcome = outcome_of(error, options)
    retryable = outcome.retryable and not live.gives_up
    return replace(outcome, max_attempts=live.max_attempts, retryable=retryable)


def write_ending(
    live: LiveRun, outcome: Outcome, followups: Sequence[FollowUp] = ()
) -> Verdict | None:
    """Write the ending in one transaction, without repetition. Return None if the run was fenced.

    Raises the errors of the database.
    """
    run = live.run
    with connection_of(live):
        if outcome.kind is EndingKind.SUCCEEDED:
            accepted = record_success(live, outcome, followups)
            verdict = decide(outcome, attempts.spent(run)) if accepted else None
        else:
            verdict = attempts.fail(run, outcome, live.worker)
        if verdict is None:
            attempts.fence(run, live.worker, outcome.error)
        return verdict


def record_success(live: LiveRun, outcome: Outcome, followups: Sequence[FollowUp]) -> bool:
    """Record a success with its follow-up tasks; return False if the run was fenced."""
    if followups:
        return workflow_runs.succeed(live.run, outcome.result, live.worker, followups)
    return attempts.succeed(live.run, outcome.result, live.worker)


@contextmanager
def connection_of(live: LiveRun) -> Iterator[None]:
    """Use a dedicated connection, or for an eager run that of the caller, which is opened again if
    it was lost outside of a transaction.
    """
    if not live.eager:
        with dedicated_connection():
            yield
        return
    connection = connections[conf.settings().DATABASE]
    if connection.errors_occurred and not connection.in_atomic_block:
        connection.close_if_unusable_or_obsolete()
    yield


def is_refused(live: LiveRun, error: BaseException) -> bool:
    """Return whether this error of a write is caused by what the function returned or raised, and
    not by the database, a setting or an interrupt.
    """
    if isinstance(error, DataError):
        return True
    if isinstance(error, EncryptionError | InvalidSetting | SoftTimeLimitExceeded):
        return False
    if isinstance(error, DurableTasksError):
        return True
    # Follow-ups have keys and references, and call functions of the project.
    has_followups = live.success is not None and bool(live.success.followups)
    return has_followups and (isinstance(error, IntegrityError) or not isinstance(error, Error))


def persist(
    write: Callable[[], T],
    live: LiveRun,
    refused: Callable[[Exception], bool] = lambda error: False,
    *,
    seconds: float | None = None,
) -> T:
    """Return what ``write`` returns. If it raises anything, repeat it with growing pauses for
    ``seconds`` (RESULT_WRITE_TIMEOUT if None), then raise EndingNotRecorded.

    An error that is ``refused`` is raised when it occurs for the _REFUSALS-th time. An eager run
    may be in a transaction of the caller, which only the caller can repeat.
    """
    seconds = live.write_timeout if seconds is None else seconds
    deadline, pause, refusals = time.monotonic() + seconds, _FIRST_PAUSE, 0
    while True:
        try:
            return write()
        except Exception as error:
            refusals += refused(error)
            if refusals == _REFUSALS:
                raise
            over = time.monotonic() + pause > deadline
            if over or (live.eager and in_transaction()):
                log(
                    logging.ERROR,
                    "Could not record the result of a run for %g s (%s). It is marked LOST when its"
                    " lease expires.",
                    seconds,
                    safe_text_of(error),
                )
                raise EndingNotRecorded(f"{safe_text_of(error)} for {seconds:g} s.") from None
        _idle.wait(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def repeated(write: Callable[[], T]) -> T:
    """Return what ``write`` returns. Repeat it at once if it raises an error that is neither of the
    database nor of this package: one of a setting, of a reader or of the project's functions.
    """
    for _ in range(_REFUSALS - 1):
        try:
            return write()
        except (Error, DurableTasksError):
            raise
        except Exception as error:  # noqa: BLE001 - raised by the last call if it remains
            text = "Recording a success failed and is repeated: %s"
            log(logging.WARNING, text, safe_text_of(error))
    return write()


def report(live: LiveRun, outcome: Outcome) -> None:
    """Log how a run ended."""
    run, verdict = live.run, live.verdict
    status = str(verdict.log) if verdict else "FENCED"
    is_expected = (
        status in ("SUCCESS", "CANCELLED") or outcome.error_type == RunInterrupted.__name__
    )
    level = logging.INFO if is_expected else logging.WARNING
    if not logger.isEnabledFor(level):
        return
    details = {
        "task_name": run.name,
        "task_id": str(run.task_id),
        "attempt": run.attempt,
        "status": status,
        "duration": round(time.monotonic() - live.began, 6),
        "error": outcome.error,
    }
    logger.log(
        level,
        "%s id=%s attempt=%d status=%s duration=%.3f error=%r",
        *details.values(),
        extra={"durable": details},
    )
