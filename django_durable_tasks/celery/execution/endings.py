"""Records how a run ended: in the database first, then in the log, then for its dependents.

The gate calls `close` for each ending that the process of the run sees. Celery's signals record
the remaining endings (see `signal_handlers`). An ending that neither records is found when the
lease of the run expires.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import TypeVar

from django.db import Error

from django_durable_tasks import conf, ports
from django_durable_tasks.celery.execution.live_runs import LiveRun, process_runs
from django_durable_tasks.celery.execution.outcomes import outcome_of, text_of
from django_durable_tasks.engine.db.connections import dedicated_connection
from django_durable_tasks.engine.dependencies import resolve
from django_durable_tasks.engine.dependencies.resolve import ResolveResult
from django_durable_tasks.engine.tasks import attempts
from django_durable_tasks.engine.tasks.hand_over import claim_next, frees_capacity
from django_durable_tasks.engine.workflows.followups import succeed as record_success
from django_durable_tasks.exceptions import EndingNotRecorded
from django_durable_tasks.rules.states import TERMINAL
from django_durable_tasks.rules.tasks.endings import EndingKind, Outcome, Verdict, decide
from django_durable_tasks.rules.tasks.options import TaskOptions
from django_durable_tasks.rules.workflows.followups import FollowUp

T = TypeVar("T")
logger = logging.getLogger("django_durable_tasks.runs")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 5.0
_idle = threading.Event()
"""Never set: waiting for it is a pause."""


def close(live: LiveRun, outcome: Outcome, followups: Sequence[FollowUp] = ()) -> Verdict | None:
    """Write the ending of a run once; return its verdict, or None if the run was fenced.

    A failed write is repeated with growing pauses for RESULT_WRITE_TIMEOUT seconds while the
    heartbeat continues. Then EndingNotRecorded is raised. In both cases the run leaves the
    heartbeat.
    """
    if live.recorded:
        return live.verdict
    try:
        live.verdict = persist(
            lambda: write_ending(live, outcome, followups), conf.settings().RESULT_WRITE_TIMEOUT
        )
        live.recorded = True
    finally:
        process_runs.leases.remove(live)
    report(live, outcome)
    resolve_dependents(live)
    hand_over([live])
    return live.verdict


def close_committed(live: LiveRun, outcome: Outcome) -> None:
    """Finish a run whose success was committed in the transaction of its atomic body."""
    live.verdict, live.recorded = decide(outcome, attempts.spent(live.run)), True
    process_runs.leases.remove(live)
    report(live, outcome)
    resolve_dependents(live)
    hand_over([live])


def close_fenced(live: LiveRun) -> None:
    """Finish a run whose success was refused, because its task has another epoch.

    Only the status FENCED of its execution log is written.
    """
    process_runs.leases.remove(live)
    if not live.recorded:
        live.recorded = True
        fenced = Outcome(kind=EndingKind.SUCCEEDED, error="The success was refused.")
        persist(lambda: _fence(live, fenced), conf.settings().RESULT_WRITE_TIMEOUT)
        report(live, fenced)


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
        with nullcontext() if live.eager else dedicated_connection():
            done = (
                resolve.resolve_endings_of(run.task_id) if run.has_dependents else ResolveResult()
            )
            # An ending that releases no task may be the last of its workflow. The leader counts.
            if done.left or (run.workflow_id is not None and not done.moved):
                ports.due.leader_work()
        ports.publish(done.messages)
    except Error as error:
        logger.warning(
            "Could not resolve the dependents of task %s; the leader resolves them: %s",
            live.run.task_id,
            text_of(error),
            extra={"task_id": str(live.run.task_id)},
        )
        with suppress(Error), nullcontext() if live.eager else dedicated_connection():
            ports.due.leader_work()


def hand_over(ended: Sequence[LiveRun]) -> None:
    """Publish the next tasks that wait for the capacity that these runs have freed.

    Errors are logged and not raised, because the endings are recorded and the schedulers release
    what is not handed over. While the breaker of the broker is open, nothing is claimed.
    """
    runs = [live.run for live in ended if live.verdict is not None and not live.eager]
    if not runs or not ports.broker_open():
        return
    try:
        if not frees_capacity(runs):
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
    with nullcontext() if live.eager else dedicated_connection():
        if outcome.kind is EndingKind.SUCCEEDED:
            accepted = record_success(run, outcome.result, live.worker, followups)
            verdict = decide(outcome, attempts.spent(run)) if accepted else None
        else:
            verdict = attempts.fail(run, outcome, live.worker)
        if verdict is None:
            attempts.fence(run, live.worker, outcome.error)
        return verdict


def _fence(live: LiveRun, outcome: Outcome) -> None:
    with nullcontext() if live.eager else dedicated_connection():
        attempts.fence(live.run, live.worker, outcome.error)


def persist(write: Callable[[], T], seconds: float) -> T:
    """Return what ``write`` returns; repeat it with growing pauses for ``seconds`` if the database
    fails, then raise EndingNotRecorded.
    """
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
