"""Records how a run ended: in the database first, then in the log, then for its dependents.

The gate calls `close` for each ending that the process of the run sees. Celery's signals record
the remaining endings (see `signal_handlers`). An ending that neither records is found when the
lease of the run expires.
"""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from billiard.exceptions import SoftTimeLimitExceeded
from django.db import DataError, Error, IntegrityError, connections

from django_durable_tasks import conf, ports
from django_durable_tasks.celery.execution.live_runs import LiveRun, process_runs
from django_durable_tasks.celery.execution.outcomes import outcome_of, text_of
from django_durable_tasks.conf import InvalidSetting
from django_durable_tasks.engine.db.connections import dedicated_connection, in_transaction
from django_durable_tasks.engine.dependencies import resolve
from django_durable_tasks.engine.dependencies.resolve import ResolveResult
from django_durable_tasks.engine.tasks import attempts
from django_durable_tasks.engine.tasks.hand_over import claim_next, frees_capacity
from django_durable_tasks.engine.workflows.followups import succeed as record_success
from django_durable_tasks.exceptions import DurableTasksError, EncryptionError, EndingNotRecorded
from django_durable_tasks.rules.states import TERMINAL
from django_durable_tasks.rules.tasks.endings import EndingKind, Outcome, Verdict, decide
from django_durable_tasks.rules.tasks.options import TaskOptions
from django_durable_tasks.rules.workflows.followups import FollowUp

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
            outcome = _without_texts(outcome, error)
            live.verdict = persist(lambda: write_ending(live, outcome), live)
    except EndingNotRecorded:
        process_runs.leases.remove(live)
        raise
    except Exception:
        live.success = None  # refused: the caller closes the run as a failure
        raise
    _conclude(live, outcome)
    return live.verdict


def _without_texts(outcome: Outcome, error: Exception) -> Outcome:
    """Return a failure without the values that the function supplied, which were refused."""
    return Outcome(
        kind=outcome.kind,
        error=f"The error of this attempt could not be stored: {text_of(error)}",
        retryable=outcome.retryable,
        delay=outcome.delay,
    )


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
        persist(lambda: _fence(live, fenced), live)
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
            "The capacity of %d runs was not handed over; a scheduler releases it.",
            len(runs),
            exc_info=True,
            extra={"task_id": str(runs[0].task_id)},
        )


def outcome_for(live: LiveRun, error: BaseException, options: TaskOptions) -> Outcome:
    """Return how this exception ends this run, with the limit that its ``self.retry()`` set."""
    return replace(outcome_of(error, options), max_attempts=live.max_attempts)


def write_ending(
    live: LiveRun, outcome: Outcome, followups: Sequence[FollowUp] = ()
) -> Verdict | None:
    """Write the ending in one transaction, without repetition. Return None if the run was fenced.

    Raises the errors of the database.
    """
    run = live.run
    with connection_of(live):
        if outcome.kind is EndingKind.SUCCEEDED:
            accepted = record_success(run, outcome.result, live.worker, followups)
            verdict = decide(outcome, attempts.spent(run)) if accepted else None
        else:
            verdict = attempts.fail(run, outcome, live.worker)
        if verdict is None:
            attempts.fence(run, live.worker, outcome.error)
        return verdict


def _fence(live: LiveRun, outcome: Outcome) -> None:
    with connection_of(live):
        attempts.fence(live.run, live.worker, outcome.error)


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
    if connection.errors_occurred:
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


def _never(_: Exception) -> bool:
    return False


def persist(
    write: Callable[[], T],
    live: LiveRun,
    refused: Callable[[Exception], bool] = _never,
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
    level = logging.INFO if status in ("SUCCESS", "CANCELLED") else logging.WARNING
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
