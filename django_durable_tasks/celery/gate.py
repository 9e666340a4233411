"""Gate, body, close. Only the task class can refuse a message (a signal receiver cannot), so the gate stands here.

A refused message is acknowledged and dropped: the row's own alarm is the retry.
"""

from __future__ import annotations

import logging
import uuid
from contextlib import nullcontext
from functools import partial
from typing import Any

from billiard.exceptions import SoftTimeLimitExceeded
from celery.exceptions import Ignore
from celery.exceptions import Retry as CeleryRetry
from django.db import Error, transaction

from django_durable_tasks import conf
from django_durable_tasks.celery import handlers, runs, worker
from django_durable_tasks.celery.envelope import Envelope
from django_durable_tasks.celery.failures import outcome_of, outcome_of_result, picklable, text_of
from django_durable_tasks.celery.runs import LiveRun
from django_durable_tasks.exceptions import EndingNotRecorded
from django_durable_tasks.lifecycle import attempts, references
from django_durable_tasks.lifecycle.attempts import Place, Refusal
from django_durable_tasks.lifecycle.connections import own
from django_durable_tasks.rules.followups import followups_of
from django_durable_tasks.rules.options import TaskOptions
from django_durable_tasks.rules.runs import Run
from django_durable_tasks.rules.states import Status
from django_durable_tasks.rules.workflows import REFERS

logger = logging.getLogger("django_durable_tasks.runs")


class _Fenced(Exception):
    """The success was refused: roll the body's writes back."""


def pass_through(task: Any, envelope: Envelope) -> Any:
    """Run the row that this message rings for; raises Ignore when it must not run, else what Celery should see."""
    live = _open(task, envelope)
    body = _atomic_body if task.durable_options.atomic else _plain_body
    try:
        if not live.eager:
            runs.heart.add(live)
        with runs.running(live):
            task.request.retries = live.run.failures
            try:
                return body(task, live)
            except EndingNotRecorded:
                raise
            except BaseException as error:  # noqa: BLE001 - every ending of a body is told, interrupts too
                raise _closed_by(task, live, error) from None
    finally:
        # A limit may strike at any instruction, also on the way to the ending: no run stays in the heartbeat then.
        runs.heart.remove(live)


def _open(task: Any, envelope: Envelope) -> LiveRun:
    options: TaskOptions = task.durable_options
    lease = options.lease or conf.settings().LEASE
    eager = bool(task.request.is_eager)
    place = worker.place(lease)
    try:
        opened = _start(task, envelope, place, eager)
    except Error as error:
        logger.warning("%s was not started, the database is away: %s", envelope.celery_id, type(error).__name__)
        raise Ignore("The database is away; the row's alarm rings again.") from None
    if isinstance(opened, Refusal):
        logger.info("Dropped the ring %s: %s", envelope.celery_id, opened, extra={"durable_refusal": str(opened)})
        raise Ignore(f"The gate refused it: {opened}.")
    timeout = opened.options.get("timeout", options.timeout)
    lease = opened.options.get("lease", lease)
    return LiveRun(opened, lease=lease, timeout=timeout, worker=place.worker, eager=eager)


def _start(task: Any, envelope: Envelope, place: Place, eager: bool) -> Run | Refusal:
    """Start under one run id, twice if need be: a dead connection and a lost reply to COMMIT look alike."""
    row, epoch, celery_id, run_id = envelope.task_id, envelope.epoch, envelope.celery_id, uuid.uuid4()
    start = partial(
        attempts.open_run, row, epoch, place, celery_id, task.durable_options.unique_for, name=task.name, run_id=run_id
    )
    try:
        with nullcontext() if eager else own():
            return start()
    except Error:
        with nullcontext() if eager else own():
            return attempts.opened(row, run_id, place, celery_id) or start()


def _plain_body(task: Any, live: LiveRun) -> Any:
    args, kwargs = _arguments(live)
    value = task.run(*args, **kwargs)
    followups = live.followups(value)
    outcome = outcome_of_result(task.name, value)
    try:
        verdict = handlers.close(live, outcome, followups)
    except SoftTimeLimitExceeded:
        # The body ended in time; the limit struck its ending, which may stand or not: it is told again.
        verdict = handlers.close(live, outcome, followups)
    if verdict is None:
        raise _Fenced
    return None if followups_of(value) else value


def _arguments(live: LiveRun) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a run, with results in the place of references to them."""
    run = live.run
    if REFERS not in run.options:
        return run.args, run.kwargs
    with nullcontext() if live.eager else own():
        return references.resolve(run.args, run.kwargs)


def _atomic_body(task: Any, live: LiveRun) -> Any:
    """Body and success in one transaction on the user's connection: a fenced success takes the body's writes back."""
    try:
        with transaction.atomic(using=conf.settings().DATABASE):
            args, kwargs = _arguments(live)
            value = task.run(*args, **kwargs)
            followups = live.followups(value)
            outcome = outcome_of_result(task.name, value)
            if not attempts.succeed(live.run, outcome.result, live.worker, followups):
                raise _Fenced
    except Exception as error:
        # The COMMIT may stand although its reply was lost or a hook after it failed: it is read back first.
        if isinstance(error, _Fenced) or not _stands(live):
            raise
        logger.warning("%s has succeeded, but after its COMMIT: %s", live.run.celery_id, text_of(error))
    handlers.note_success(live, outcome)
    return None if followups_of(value) else value


def _stands(live: LiveRun) -> bool:
    try:
        with nullcontext() if live.eager else own():
            return attempts.succeeded(live.run)
    except Error:
        return False


def _closed_by(task: Any, live: LiveRun, error: BaseException) -> Any:
    """Close the run that this exception ended; return what Celery should see."""
    if isinstance(error, _Fenced):
        handlers.give_up(live)
        return Ignore("Fenced: the row has another owner.")
    if not isinstance(error, Exception) and worker.in_pool_child():
        # sys.exit(), an interrupt, or a kill by the parent: this process ends, and the parent tells why.
        runs.heart.remove(live)
        return error
    verdict = handlers.close(live, outcome_of(error, task.durable_options))
    if not isinstance(error, Exception):
        return error
    if verdict is None or verdict.status == Status.CANCELLED:
        return Ignore("The run was cancelled, or the row has another owner.")
    if verdict.status == Status.PENDING:
        return CeleryRetry(exc=picklable(error))
    return picklable(error)
