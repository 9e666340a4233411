"""Executes the task of a message: starts the run, calls the function, and records the ending."""

from __future__ import annotations

import logging
import pickle
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial, wraps
from typing import Any, TypeVar

from billiard.exceptions import SoftTimeLimitExceeded
from celery import Task as CeleryTask
from celery import exceptions as celery_exceptions
from celery.exceptions import Ignore, MaxRetriesExceededError
from celery.exceptions import Retry as CeleryRetry
from celery.utils.serialization import get_pickleable_exception
from django.db import (
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    InternalError,
    OperationalError,
    connections,
    transaction,
)

from django_durable_tasks import conf, ports, registry
from django_durable_tasks.celery import worker_node
from django_durable_tasks.celery.live_runs import LiveRun, followups_of, process_runs
from django_durable_tasks.celery.prepared_messages import (
    RUN_HEADER,
    Envelope,
    TakenRun,
    parse,
    queue_names_of,
)
from django_durable_tasks.celery.result import described
from django_durable_tasks.choices import TERMINAL, Status
from django_durable_tasks.conf import InvalidSetting
from django_durable_tasks.dependencies import resolve
from django_durable_tasks.dependencies.resolve import ResolveResult
from django_durable_tasks.dependencies.rules import MASKED, REFERS
from django_durable_tasks.exceptions import (
    BodyFailed,
    DurableTasksError,
    EncryptionError,
    EndingNotRecorded,
    InvalidOption,
    InvalidReference,
    IsolationTooStrict,
    ResultTooLarge,
    RunCancelled,
    RunInterrupted,
    UnserializableResult,
)
from django_durable_tasks.masking import ERROR_MAX_BYTES, masked_excerpt, shortened
from django_durable_tasks.states.machine import SUCCEEDED, EndingKind, Outcome, Verdict
from django_durable_tasks.store.clock import estimated_now
from django_durable_tasks.store.connections import (
    dedicated_connection,
    in_transaction,
    left_open,
    open_blocks,
    prepare_for_function,
    roll_back_left,
    savepoint_of_test,
)
from django_durable_tasks.store.errors import ABORTED, SERIALIZATION_FAILURE, code_of, reason_of
from django_durable_tasks.task_values import Run, RunLocation
from django_durable_tasks.tasks import attempts
from django_durable_tasks.tasks.arguments import encode_result
from django_durable_tasks.tasks.attempts import Refusal, claim_next, frees_capacity
from django_durable_tasks.tasks.options import Retry, TaskOptions
from django_durable_tasks.texts import counted
from django_durable_tasks.workflows import runs as workflow_runs
from django_durable_tasks.workflows.builder import FollowUp

# Makes ``self.request``, Celery's hooks and an overridden ``__call__`` show the task, not its
# message.
#
# Each attempt has a message with its own id and without arguments. Celery's events,
# acknowledgements and logs use the id of the message, so the request is changed only while the
# function runs.
#
# Celery calls ``Task.__call__`` for a message. The request records how far that call has come:
# received by this package, then in the function. So one method serves the message, the call of the
# function that the gate makes, and direct calls.


_PLACE_OF_ID = {"on_success": 1, "on_failure": 1, "on_retry": 1, "after_return": 2}
_BEFORE = "before_start"
_WRAPPED = "_durable_tasks_wrapped"
STATE = "durable_call_state"
"""The attribute of a request that holds its CallState."""


class CallState:
    """How far the call of the task of a request has come.

    ``run``: calls the function of a task of a batch, whose request has no message. Headers of a
    message become attributes of its request, so another value of the attribute STATE is ignored.
    """

    __slots__ = ("in_function", "received", "run")

    def __init__(self, run: Callable[[], Any] | None = None) -> None:
        self.run, self.received, self.in_function = run, False, False


def state_of(request: Any) -> CallState:
    """Return the state of this request, which is created if it has none."""
    state = getattr(request, STATE, None)
    if not isinstance(state, CallState):
        state = CallState()
        setattr(request, STATE, state)
    return state


def _show_task(request: Any, live: LiveRun) -> dict[str, Any]:
    """Make the request show the task's id, its arguments and the headers of its call; return the
    attributes of its message.
    """
    task_id, headers = str(live.run.task_id), live.run.options.get("headers")
    before = {
        "id": request.id,
        "root_id": request.root_id,
        "args": request.args,
        "kwargs": request.kwargs,
    }
    request.update(id=task_id, root_id=task_id, args=live.args, kwargs=live.kwargs)
    request.headers = {**(request.headers or {}), **(headers or {})}
    request.headers.pop(RUN_HEADER, None)
    if headers:
        kind = type(request)
        request.update({name: value for name, value in headers.items() if not hasattr(kind, name)})
    return before


def wrap_hooks(owner: type) -> None:
    """Make the hooks that this class defines or inherits from a mixin receive the id and the
    arguments of the task.
    """
    for name in (_BEFORE, *_PLACE_OF_ID):
        hook = getattr(owner, name)
        if hook is getattr(CeleryTask, name) or getattr(hook, _WRAPPED, False):
            continue
        wrapped = _after_the_start(hook) if name == _BEFORE else _with_row(hook, _PLACE_OF_ID[name])
        setattr(wrapped, _WRAPPED, True)
        setattr(owner, name, wrapped)


def wrap_call(owner: Any, base: Any) -> None:
    """If this class defines ``__call__`` or inherits it from a mixin, call it around the function
    of an accepted message, with the arguments of the task, instead of around the message.
    """
    override = owner.__call__
    if override is base.__call__ or getattr(override, _WRAPPED, False):
        return

    @wraps(override)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        request = self.request
        if request.called_directly or state_of(request).received:
            return override(self, *args, **kwargs)
        return base.__call__(self, *args, **kwargs)

    setattr(call, _WRAPPED, True)
    owner.__call__ = call
    owner.around_function = staticmethod(override)


def _with_row(hook: Callable[..., Any], place: int) -> Callable[..., Any]:
    @wraps(hook)
    def call(self: Any, *args: Any) -> Any:
        live = (
            process_runs.find(args[place])
            if len(args) > place and isinstance(args[place], str)
            else None
        )
        if live is not None:
            args = (
                *args[:place],
                str(live.run.task_id),
                live.args,
                live.kwargs,
                *args[place + 3 :],
            )
        return hook(self, *args)

    return call


def _after_the_start(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Ignore Celery's call of ``before_start`` for a message, which may be refused. The gate calls
    it for a run.
    """

    @wraps(hook)
    def call(self: Any, task_id: str, args: Any, kwargs: Any) -> Any:
        return None if parse(task_id) else hook(self, task_id, args, kwargs)

    return call


# The task class calls this instead of the user's function, because a signal receiver could not
# refuse a message. A refused message is acknowledged and ignored. If its task still has to run,
# the scheduler republishes it.


logger = logging.getLogger("django_durable_tasks.runs")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
# Seconds after which a process reads whether a taken run still owns its task. Shorter than the time
# after which the parent process returns it.
_LATE = 1.0
# Seconds until a function is called that an error of the database prevented. No attempt is charged.
_WAIT_FOR_DATABASE = 5.0
_idle = threading.Event()
"""Never set: waiting for it is a pause."""


class Fenced(Exception):
    """The success was refused, so the transaction of an atomic task is rolled back."""


class TransactionLost(Exception):
    """The transaction of an atomic task was lost after its function had returned."""


def run_message(task: Any, envelope: Envelope) -> Any:
    """Run the task of this message and return its value.

    Raises Ignore if the message is refused or the run was fenced, Retry or the exception of the
    task if it failed.
    """
    live = open_run(task, envelope)
    body = atomic_body if task.durable_options.atomic else _plain_body
    try:
        if not live.eager:
            process_runs.leases.add(live)
        with process_runs.running(live):
            task.request.retries = live.run.failures
            return run_body(body, task, live)
    except EndingNotRecorded:
        if live.success is None or live.eager:
            raise
        # The function returned, so hooks such as ``on_failure`` must not be called.
        raise Ignore("The success was not recorded; the lease ends the run.") from None
    finally:
        # A time limit can interrupt any instruction above. The run must leave the heartbeat anyway.
        process_runs.leases.remove(live)


def run_body(
    body: Callable[[Any, LiveRun], Any],
    task: Any,
    live: LiveRun,
    *,
    not_closed: tuple[type[BaseException], ...] = (EndingNotRecorded,),
) -> Any:
    """Return what ``body`` returns, or the value of the function if an error followed its success.
    Record any other ending, and raise what Celery has to see. Exceptions of the types in
    ``not_closed`` are raised as they are.
    """
    try:
        with nullcontext() if ports.traces is None else ports.traces.attempt(live.run):
            return body(task, live)
    except not_closed:
        raise
    except BaseException as error:
        ended = closed_by(task, live, error)
        if ended is None:
            return live.value
        if ended is error:
            raise  # with its own cause
        raise ended from ended.__cause__


def open_run(task: Any, envelope: Envelope) -> LiveRun:
    """Start the run of this message, unless the worker started it when it took the task; raises
    Ignore if it is refused.
    """
    options: TaskOptions = task.durable_options
    lease = options.lease or conf.settings().LEASE
    taken = getattr(task.request, RUN_HEADER, None)
    if isinstance(taken, TakenRun):
        # The run began when the parent process took the task; its function begins only now.
        waited = timedelta(seconds=max(0.0, time.monotonic() - taken.at))
        run = taken.run._replace(started_at=taken.run.started_at + waited)
        live = _live(run, options, lease, worker_node.place(lease).worker, eager=False)
        live.cancel_requested = _is_cancelled(taken, lease)
        return live
    eager = bool(task.request.is_eager)
    place = worker_node.place(lease, () if eager else queue_names_of(task.request))
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
    return _live(opened, options, lease, place.worker, eager=eager)


def _is_cancelled(taken: TakenRun, lease: float) -> bool:
    """Return whether the cancellation of a taken run was requested before this process received it.

    Read only if it received the run late. Raises Ignore if the task was returned meanwhile, as of a
    process that was stopped.
    """
    run = taken.run
    if time.monotonic() - taken.at < _LATE:
        return False
    try:
        with dedicated_connection():
            beat = (run.task_id, run.epoch, run.run_id, lease)
            renewed = attempts.heartbeat([beat])
            owned = bool(renewed or attempts.still_owned([beat]))
    except Error as error:
        logger.warning("Run %s was not begun: %s", run.celery_id, reason_of(error))
        raise Ignore("The database is unavailable; the lease ends the run.") from None
    if not owned:
        logger.info("Ignored run %s, whose task was returned.", run.celery_id)
        raise Ignore("The task was returned before this process received it.")
    return renewed.get(run.run_id, False)


def _live(run: Run, options: TaskOptions, lease: float, worker: str, *, eager: bool) -> LiveRun:
    of_call = run.options
    return LiveRun(
        run,
        lease=of_call.get("lease", lease),
        timeout=of_call.get("timeout", options.timeout),
        soft_timeout=of_call.get("soft_timeout", options.soft_timeout),
        worker=worker,
        eager=eager,
    )


def _start(task: Any, envelope: Envelope, place: RunLocation, eager: bool) -> Run | Refusal:
    """Start the run under one run id. After an error it is read back until its result is known.

    A dead connection and a lost reply to COMMIT look alike, so an UPDATE whose reply was lost may
    have been executed, or may still be executed. After HEARTBEAT seconds without an answer the
    error is raised: a run that was read back later could lose its lease before its first heartbeat.
    """
    row, celery_id, run_id = envelope.task_id, envelope.celery_id, uuid.uuid4()
    registered = registry.find(task.name)
    read_back = partial(attempts.opened, row, run_id, celery_id)

    def start() -> Run | Refusal:
        postpone = None if registered is None else registered.target.postpone
        if postpone and postpone(row, envelope.epoch):  # the breaker of its endpoint is open
            return Refusal.POSTPONED
        return attempts.open_run(
            row,
            envelope.epoch,
            place,
            celery_id,
            task.durable_options.unique_for,
            name=task.name,
            run_id=run_id,
        )

    deadline, pause, sent = time.monotonic() + conf.settings().HEARTBEAT, 0.0, False
    while True:
        try:
            with nullcontext() if eager else dedicated_connection():
                if not sent:
                    sent = True
                    return start()
                opened = read_back() or start()
                # If the first UPDATE is still in progress, the second one waits for it and then
                # finds the task RUNNING.
                return (read_back() or opened) if isinstance(opened, Refusal) else opened
        except Error:
            over = eager or not sent or time.monotonic() + pause > deadline
            if pause and over:
                raise
        _idle.wait(pause)
        pause = min(max(_FIRST_PAUSE, 2 * pause), _LONGEST_PAUSE)


def _plain_body(task: Any, live: LiveRun) -> Any:
    call_function(task, live)
    if close_success(live) is None:
        raise Fenced
    return live.value


def returned(live: LiveRun, value: Any) -> None:
    """Decide the success of a run whose function returned this value.

    From here on no error makes the run a failure, unless the value itself cannot be stored. Raises
    UnserializableResult or ResultTooLarge.
    """
    try:
        live.succeed(value, outcome_of_result(live, value))
    except (SoftTimeLimitExceeded, UnserializableResult):
        # The function returned in time. An interrupt of the encoder, which calls code of the
        # project, looks like a value that cannot be encoded.
        live.succeed(value, outcome_of_result(live, value))
    process_runs.share_returned(live)


def call_function(task: Any, live: LiveRun, before: Mapping[str, int] | None = None) -> None:
    """Call the function, and decide the success of the run when it returns.

    ``before``: what ``connections.prepare_for_function()`` returned, if no code of the project ran
    since, or only functions called by this one.

    Raises the retry that ``self.retry(throw=False)`` requested, and RunCancelled instead of a call
    if the cancellation was requested before.
    """
    if live.cancel_requested:
        raise RunCancelled
    args, kwargs = attempts.arguments_of(live.run)
    if REFERS in live.run.options:
        with nullcontext() if live.eager else dedicated_connection():
            args, kwargs = resolve.resolve_references(
                args,
                kwargs,
                live.run.tenant_id,
                hides_secrets=live.run.options[REFERS] == MASKED,
            )
    registered = registry.find(live.run.name)
    if registered is not None and registered.types is not None:
        args, kwargs = registered.types.from_json(live.run.name, args, kwargs)
    live.args, live.kwargs = args, kwargs
    atomic, alias = task.durable_options.atomic, conf.settings().DATABASE
    if before is None:
        is_prepared = live.eager or atomic
        before = open_blocks() if is_prepared else prepare_for_function()
    request, values = task.request, list[Any]()
    live.called = True

    def decide(value: Any) -> None:
        if live.position is not None:
            live.position.finish()
        open_blocks = _roll_back_left(task.name, before)
        if atomic and alias in open_blocks:
            raise left_open(task.name)
        if live.requested_retry is not None:
            raise live.requested_retry
        returned(live, value)

    try:
        of_message = _show_task(request, live)
        try:
            task.before_start(request.id, live.args, live.kwargs)
            with savepoint_of_test() if live.eager else nullcontext():
                live.blocks_before = open_blocks() if live.eager else before
                values.append(task.call_function(request, live.args, live.kwargs))
        finally:
            request.update(of_message)
        decide(values[0])
    except BaseException as error:
        if live.position is not None:
            live.position.abandon(error)
        if not values:
            _roll_back_left(task.name, before)
            raise
        if not isinstance(error, SoftTimeLimitExceeded):
            raise
        decide(values[0])  # the function returned in time


def _roll_back_left(name: str, before: Mapping[str, int]) -> list[str]:
    """Roll back what the function left open. An error of that changes nothing about how the
    function ended; the next task of the process tries it again.
    """
    try:
        return roll_back_left(name, before)
    except Exception:  # noqa: BLE001 - logged
        text = "Transactions that %s may have left were not rolled back."
        log(logging.ERROR, text, name, exc_info=True)
        return []


def atomic_body(task: Any, live: LiveRun) -> Any:
    """Call the function and record its success in one transaction on the project's connection.

    If the success is refused, the writes of the function are rolled back. If the transaction is
    lost after the function returned, the run is LOST: the function is called again, and the loss is
    charged to ``max_crashes``, because a transaction may exceed a limit of the database each time.
    """
    before = open_blocks() if live.eager else prepare_for_function()
    try:
        with transaction.atomic(using=conf.settings().DATABASE):
            call_function(task, live)
            if not _succeed_within(live):
                raise Fenced
        if _roll_back_left(task.name, before):
            raise left_open(task.name)
    except BaseException as error:
        if isinstance(error, Fenced) or live.success is None:
            raise
        # Django does not roll back after every error of a COMMIT. The row would stay locked.
        _roll_back_left(task.name, before)

        def is_committed() -> bool:
            with connection_of(live):
                return attempts.succeeded(live.run)

        # The COMMIT may have succeeded although its reply was lost or an on_commit hook failed.
        if not persist(is_committed, live):
            live.success = None
            if _is_fault_of_function(live, error):
                raise
            raise TransactionLost from error
        log_error_after_ending(live, error)
        if not isinstance(error, Exception):
            close_committed(live)
            raise
    close_committed(live)
    return live.value


def _succeed_within(live: LiveRun) -> bool:
    outcome, followups = live.decided
    try:
        return repeated(lambda: record_success(live, outcome, followups))
    except OperationalError as error:
        if code_of(error) != SERIALIZATION_FAILURE:
            raise
        raise IsolationTooStrict(
            f"The success of the atomic task {live.run.name} was refused ({text_of(error)}): its"
            " row was changed, for example by a heartbeat, after the transaction began. Use READ"
            " COMMITTED (durable_tasks.E017)."
        ) from error


def _is_fault_of_function(live: LiveRun, error: BaseException) -> bool:
    """Return whether an error after the return of an atomic function is its own: it has broken or
    closed its transaction, or violated a constraint that is checked at the COMMIT.
    """
    return (
        is_refused(live, error)
        or isinstance(error, IntegrityError | transaction.TransactionManagementError)
        or (isinstance(error, InternalError) and code_of(error) == ABORTED)
    )


def closed_by(task: Any, live: LiveRun, error: BaseException) -> Any:
    """Record the ending of a run by this exception; return the exception to raise to Celery, or
    None if the run succeeded.
    """
    if isinstance(error, Fenced):
        close_fenced(live)
        return Ignore("Fenced: the task has another epoch.")
    if isinstance(error, TransactionLost):
        return _lost(live, error.__cause__ or error)
    if isinstance(error, SystemExit) and worker_node.in_pool_child():
        # sys.exit(), or a kill by the parent process, which records the reason.
        process_runs.leases.remove(live)
        return error
    if live.success is not None:
        return _close_returned(task, live, error)
    if live.requested_retry is not None and isinstance(error, Exception):
        error = live.requested_retry
    outcome = outcome_for(live, error, task.durable_options)
    if not live.called and isinstance(error, OperationalError | InterfaceError):
        # Its arguments could not be read, or its transaction not be opened.
        outcome = replace(outcome, kind=EndingKind.POSTPONED, delay=_WAIT_FOR_DATABASE)
    verdict = close(live, outcome)
    if not isinstance(error, Exception | RunInterrupted):
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
    return raisable(cause)


def _close_returned(task: Any, live: LiveRun, error: BaseException) -> Any:
    """Record the success of a run that was interrupted after its function had returned."""
    if not live.recorded:
        if task.durable_options.atomic:  # interrupted before the state of its COMMIT was known
            return _lost(live, error)
        try:
            close_success(live)
        except EndingNotRecorded:
            raise
        except Exception as refused:  # noqa: BLE001 - the value that the function returned
            return closed_by(task, live, refused)
    if not isinstance(error, Exception):
        return error
    if not live.has_succeeded:
        return Ignore("Fenced: the task has another epoch.")
    log_error_after_ending(live, error)
    return None


def _lost(live: LiveRun, error: BaseException) -> Any:
    close_lost(live, error)
    if not isinstance(error, Exception):
        return error
    return Ignore("The transaction of the function was lost; the function is called again.")


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


# Records how a run ended: in the database first, then in the log, then for its dependents.
#
# `close` is called for each ending that the process of the run sees. Celery's signals record the
# remaining endings (see `signal_handlers`). An ending that neither records is found when the lease
# of the run expires.


T = TypeVar("T")
_FIRST_WRITE_PAUSE, _LONGEST_WRITE_PAUSE = 0.05, 5.0
# Tries after which a value is regarded as the cause of an error, and not a circumstance such as two
# transactions that insert the same key.
_REFUSALS = 3


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
    live.verdict = SUCCEEDED
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
            verdict = SUCCEEDED if accepted else None
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
    deadline, pause, refusals = time.monotonic() + seconds, _FIRST_WRITE_PAUSE, 0
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
        pause = min(2 * pause, _LONGEST_WRITE_PAUSE)


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
