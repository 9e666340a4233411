"""Runs batches: starts due tasks together, calls their functions one after another, and records
their successes together.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from billiard.common import _should_have_exited
from billiard.einfo import ExceptionInfo
from celery import Task as CeleryTask
from celery import current_app, shared_task, signals, states
from celery._state import _task_stack
from celery.app.task import Context
from celery.exceptions import Ignore, Reject, WorkerShutdown, WorkerTerminate
from celery.exceptions import Retry as CeleryRetry
from celery.utils.serialization import get_pickleable_exception
from django.db import Error, close_old_connections

from django_durable_tasks import conf, registry
from django_durable_tasks.celery import gate, publisher, worker_node
from django_durable_tasks.celery.gate import STATE, CallState, outcome_of, state_of, text_of
from django_durable_tasks.celery.live_runs import LiveRun, process_runs
from django_durable_tasks.celery.prepared_messages import batch_token, queue_names_of
from django_durable_tasks.celery.publisher import CARRIER
from django_durable_tasks.exceptions import EndingNotRecorded
from django_durable_tasks.limits import config
from django_durable_tasks.states.machine import SUCCEEDED, EndingKind, Outcome
from django_durable_tasks.store import connections
from django_durable_tasks.store.connections import dedicated_connection
from django_durable_tasks.store.errors import reason_of
from django_durable_tasks.task_values import Run, RunLocation
from django_durable_tasks.tasks import batches
from django_durable_tasks.tasks.batches import Success
from django_durable_tasks.tasks.options import TaskOptions
from django_durable_tasks.texts import counted

# Celery's signals and hooks of the tasks of a batch.
#
# A batch is one message, so Celery sends its signals once. Receivers of the project and the hooks
# of the task's class are called for each task here, as if the task had a message of its own.


logger = logging.getLogger("django_durable_tasks.runs")
_NOT_OF_PROJECT = ("django_durable_tasks.", "celery.fixups.")
_SIGNALS = ("task_prerun", "task_postrun", "task_success", "task_failure", "task_retry")


class TaskEvents:
    """The receivers and hooks of one task."""

    def __init__(self, task: Any) -> None:
        self._task = task
        self._signals = {
            name: [
                receiver
                for receiver in getattr(signals, name)._live_receivers(task)
                if not str(getattr(receiver, "__module__", "")).startswith(_NOT_OF_PROJECT)
            ]
            for name in _SIGNALS
        }
        self._hooks = {
            name
            for name in ("on_success", "on_failure", "on_retry", "after_return")
            if getattr(type(task), name) is not getattr(CeleryTask, name)
        }
        self.has_any = bool(self._hooks or any(self._signals.values()))
        """Whether anything is called around the function."""
        # Whether something is called after a success of this task. It is recorded first then.
        self.follow_success = bool(
            self._signals["task_success"]
            or self._signals["task_postrun"]
            or self._hooks & {"on_success", "after_return"}
        )

    def before(self, live: LiveRun) -> None:
        """Call the receivers before the function, and the method of the project's loader."""
        if self._signals["task_prerun"]:
            self._send("task_prerun", **self._of(live))
        self._task.app.loader.on_task_init(live.run.celery_id, self._task)

    def succeeded(self, live: LiveRun, value: Any) -> None:
        """Call receivers and hooks after a success was recorded."""
        self._call("on_success", value, *self._row(live))
        self._send("task_success", result=value)
        self._after(live, states.SUCCESS, value)

    def failed(self, live: LiveRun, error: BaseException) -> None:
        """Call receivers and hooks after another ending was recorded.

        ``error`` is what the gate raised to Celery. Called while it is handled. An exception that
        is no Exception ends a message without hooks.
        """
        if isinstance(error, CeleryRetry):
            if self._follows("on_retry", "task_retry"):
                einfo = ExceptionInfo()
                self._call("on_retry", error.exc, *self._row(live), einfo)
                self._send("task_retry", request=self._task.request, reason=error, einfo=einfo)
            state: str | None = states.RETRY
        elif isinstance(error, Ignore | Reject):
            state = states.IGNORED if isinstance(error, Ignore) else states.REJECTED
        elif isinstance(error, Exception):
            self._send_failure(live, error)
            state = states.FAILURE
        else:
            state = None
        self._after(live, state, None if state is None else error)
        if state is None:
            self._send_failure(live, error)  # by the pool, after Celery's tracer

    def _send_failure(self, live: LiveRun, error: BaseException) -> None:
        if not self._follows("on_failure", "task_failure"):
            return
        einfo = ExceptionInfo()
        if isinstance(error, Exception):
            error = get_pickleable_exception(error)  # as Celery does
            self._call("on_failure", error, *self._row(live), einfo)
        self._send(
            "task_failure",
            task_id=live.run.celery_id,
            exception=error,
            args=live.args,
            kwargs=live.kwargs,
            traceback=error.__traceback__,
            einfo=einfo,
        )

    def _follows(self, hook: str, signal: str) -> bool:
        return hook in self._hooks or bool(self._signals[signal])

    def _after(self, live: LiveRun, state: str | None, value: Any) -> None:
        if state in (states.SUCCESS, states.FAILURE):
            self._call("after_return", state, value, *self._row(live), None)
        self._send("task_postrun", retval=value, state=state, **self._of(live))

    def _row(self, live: LiveRun) -> tuple[str, list[Any], dict[str, Any]]:
        return str(live.run.task_id), live.args, live.kwargs

    def _of(self, live: LiveRun) -> dict[str, Any]:
        return {
            "task_id": live.run.celery_id,
            "task": self._task,
            "args": live.args,
            "kwargs": live.kwargs,
        }

    def _send(self, name: str, **named: Any) -> None:
        for receiver in self._signals[name]:
            call = partial(receiver, signal=getattr(signals, name), sender=self._task, **named)
            self._guard(call, "The receiver %r of %s", receiver, name)

    def _call(self, hook: str, *args: Any) -> None:
        if hook in self._hooks:
            call = partial(getattr(self._task, hook), *args)
            self._guard(call, "%s of %s", hook, self._task.name)

    def _guard(self, call: Callable[[], Any], text: str, *values: object) -> None:
        try:
            call()
        except SystemExit:
            raise
        except BaseException:
            logger.exception(f"{text} raised an exception.", *values)  # noqa: G004 - no value


# The runs of one batch that were not called yet, and its successes that are not recorded yet.
#
# The thread of the batch calls the functions. One more thread of the process acts while a function
# runs: it records successes that are older than 50 ms, and returns the tasks behind a slow
# function, so that other processes can run them.


GROUP, GROUP_AGE = 100, 0.05
"""Successes are recorded together: at most this many, and after this many seconds."""
SLOW = 1.0
"""Seconds after which a function is slow: the tasks behind it are returned."""
_TICK = 0.05
_IDLE = 15.0
"""Seconds after which the thread looks for batches although it was not woken."""

RecordedSuccess = tuple[LiveRun, Success]


class BatchInProgress:
    """One batch of this process. Its methods are safe for both threads."""

    def __init__(self, runs: Sequence[LiveRun], worker: str) -> None:
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._uncalled, self._worker = deque(runs), worker
        self._done: list[RecordedSuccess] = []
        self._called_at = self._oldest_done = time.monotonic()

    def next_run(self) -> LiveRun | None:
        """Return the next run to call; None if there is none."""
        with self._lock:
            self._called_at = time.monotonic()
            return self._uncalled.popleft() if self._uncalled else None

    def add(self, live: LiveRun, success: Success) -> None:
        """Add a success; record it together with others."""
        with self._lock:
            if not self._done:
                self._oldest_done = time.monotonic()
            self._done.append((live, success))
            full = len(self._done) >= GROUP
        if full:
            self.record()

    def record(self) -> None:
        """Record the successes so far. A failed write is repeated for RESULT_WRITE_TIMEOUT.

        Raises EndingNotRecorded. The runs leave the heartbeat in any case.
        """
        with self._writing:
            with self._lock:
                done, self._done = self._done, []
            if done:
                _record(done, self._worker, time.monotonic() + done[0][0].write_timeout)

    def finish(self) -> None:
        """Record the successes, and return the tasks that were not called."""
        try:
            self.record()
        finally:
            self.return_uncalled()

    def return_uncalled(self) -> int:
        """Return the tasks that were not called to PENDING; return how many. If the database is
        unavailable, they are LOST when their leases expire.
        """
        with self._lock:
            uncalled, self._uncalled = list(self._uncalled), deque()
        if not uncalled:
            return 0
        try:
            with dedicated_connection():
                return batches.return_uncalled([live.run for live in uncalled], self._worker)
        except Error as error:
            logger.warning(
                "%s of a batch could not be returned (%s). A scheduler marks each LOST when its"
                " lease expires.",
                counted(len(uncalled), "task"),
                reason_of(error),
            )
            return 0
        finally:
            process_runs.leases.remove(*uncalled)

    def act_beside(self) -> None:
        """Do what is due while a function runs; called by the thread of the process."""
        now = time.monotonic()
        with self._lock:
            is_slow = bool(self._uncalled) and now - self._called_at > SLOW
            is_old = bool(self._done) and now - self._oldest_done > GROUP_AGE
        if is_old and self._writing.acquire(blocking=False):
            try:
                self._record_once()
            finally:
                self._writing.release()
        if is_slow:
            returned = self.return_uncalled()
            logger.info(
                "Returned %s behind a slow function of the batch.", counted(returned, "task")
            )

    def _record_once(self) -> None:
        """Record the successes with one try. If it fails, the thread of the batch tries again."""
        with self._lock:
            done, self._done = self._done, []
        try:
            accepted = _write(done, self._worker) if done else set()
        except Exception as error:  # noqa: BLE001 - the other thread records them or reports it
            logger.debug("Successes of a batch are recorded later: %s", type(error).__name__)
            with self._lock:
                self._done = done + self._done
            return
        if done:
            _finish(done, accepted)


def _write(done: Sequence[RecordedSuccess], worker: str) -> set[uuid.UUID]:
    """Record these successes with one try; return the run ids of those accepted."""
    with dedicated_connection():
        return batches.succeed([success for _, success in done], worker)


def _record(done: Sequence[RecordedSuccess], worker: str, until: float) -> None:
    """Record these successes, and repeat failed writes until this time of the monotonic clock.

    If they cannot be recorded together, each half is recorded alone, so that a result that the
    database refuses, or a statement that is too large for it, does not affect the others.
    """
    if len(done) == 1:
        _record_alone(*done[0], until)
        return
    try:
        accepted = _write(done, worker)
    except Exception as error:  # noqa: BLE001 - whatever failed, the functions have ended
        logger.debug("Successes of a batch are recorded in halves: %s", type(error).__name__)
        half = len(done) // 2
        try:
            _record(done[:half], worker, until)
        finally:
            _record(done[half:], worker, until)
        return
    _finish(done, accepted)


def _record_alone(live: LiveRun, success: Success, until: float) -> None:
    try:
        accepted = gate.persist(
            lambda: _write([(live, success)], live.worker),
            live,
            partial(gate.is_refused, live),
            seconds=max(0.0, until - time.monotonic()),
        )
    except EndingNotRecorded:
        process_runs.leases.remove(live)
        raise
    except Exception as error:
        logger.exception("The success of run %s cannot be recorded.", live.run.celery_id)
        live.success = None
        gate.close(live, outcome_of(error, registry.get(live.run.name).options))
        return
    _finish([(live, success)], accepted)


def _finish(done: Sequence[RecordedSuccess], accepted: set[uuid.UUID]) -> None:
    ended = [live for live, _ in done]
    process_runs.leases.remove(*ended)
    outcome = Outcome(kind=EndingKind.SUCCEEDED)
    succeeded = [live for live in ended if live.run.run_id in accepted and not live.recorded]
    for live in succeeded:
        live.verdict, live.recorded = SUCCEEDED, True
    gate.after_endings(succeeded, outcome)
    for live in ended:
        if live.run.run_id not in accepted:
            gate.close_fenced(live)


class BatchThread:
    """The thread of this process that acts on its batches while their functions run."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget the thread and the batches of the parent process; called in a forked child."""
        self._lock, self._wake = threading.Lock(), threading.Event()
        self._pause = threading.Event()  # never set: waiting for it is a pause
        self._batches: set[BatchInProgress] = set()
        self._thread: threading.Thread | None = None

    def add(self, batch: BatchInProgress) -> None:
        """Act on this batch from now on."""
        with self._lock:
            self._batches.add(batch)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._act_forever, name="durable-batches", daemon=True
                )
                self._thread.start()
        self._wake.set()

    def remove(self, batch: BatchInProgress) -> None:
        """Do not act on this batch any more."""
        with self._lock:
            self._batches.discard(batch)
            if not self._batches:
                self._wake.clear()

    def _act_forever(self) -> None:
        while True:
            self._wake.wait(_IDLE)
            self._pause.wait(_TICK)
            with self._lock:
                current = list(self._batches)
            for batch in current:
                try:
                    batch.act_beside()
                except Exception:
                    logger.exception("The thread of batches failed; their own threads continue.")


batch_thread = BatchThread()
"""The thread of this process."""
os.register_at_fork(after_in_child=batch_thread.clear)


# The Celery task ``run_batch`` receives the batch messages. A message contains a queue and a task
# name; which tasks run is decided by the rows.


DURATION = 0.2
"""Seconds that a message should take: its batches have as many tasks as fit."""
_FIRST_SIZE = 10
_REFUSED_PAUSE = 1.0
"""Seconds until the next batch message after one that a worker without the task received."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
_COPIED = ("hostname", "delivery_info", "origin", "logfile", "loglevel", "is_eager", "utc")
"""The attributes of the message's request that the requests of its tasks have too."""
_idle = threading.Event()
"""Never set: waiting for it is a pause."""


class BatchSizes:
    """How many tasks of each name fit into DURATION, by the last batches of this process."""

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}

    def of(self, name: str, most: int) -> int:
        """Return the size of the next batch, at most ``most``."""
        return min(self._sizes.get(name, _FIRST_SIZE), most)

    def ran(self, name: str, number: int, seconds: float) -> None:
        """Record that a batch of ``number`` tasks took this long. The size at most doubles."""
        fitting = int(number * DURATION / max(seconds, 0.001))
        self._sizes[name] = max(1, min(fitting, 2 * max(number, self._sizes.get(name, 1))))


_sizes = BatchSizes()


# The base class is Celery's own, so that a ``Task`` of the project's app does not wrap the batch.
@shared_task(
    name=CARRIER,
    base=CeleryTask,
    bind=True,
    ignore_result=True,
    acks_late=False,
    reject_on_worker_lost=False,
)
def run_batch(self: Any, queue: str, name: str, number: int) -> None:
    """Run due tasks of this name in this queue for about DURATION seconds. ``number`` is that of
    the batch message.
    """
    state_of(self.request).received = True
    message = _message(self.request, queue, name, number)
    if message is not None:
        message.run()


def fail_batch(request: Any, error: BaseException) -> None:
    """End an attempt of the first due tasks of a batch message that ended before `run_batch` was
    called, as by the project's loader. Without an attempt they would wait for ever.
    """
    message = _message(request, *request.args, **request.kwargs)
    if message is not None:
        message.fail(error)


def _message(request: Any, queue: str, name: str, number: int) -> _Message | None:
    """Return the message, or log why this worker ignores it."""
    task, token = current_app.tasks.get(name), batch_token(request.id)
    options: TaskOptions | None = getattr(task, "durable_options", None)
    lease = None if options is None else options.lease
    place = worker_node.place(lease or conf.settings().LEASE, queue_names_of(request))
    if place.queues and queue not in place.queues:
        logger.error(
            "Ignored batch message %s: it is for queue %r, but was consumed from queue %r.",
            request.id,
            queue,
            place.queues[0],
        )
        return None
    if task is None or options is None or token is None:
        logger.error(
            "Ignored batch message %.60r: this worker has no durable task named %.200r.",
            request.id,
            name,
        )
        _publish_later(queue, name)
        return None
    return _Message(task, queue, number, token, place, request)


def _publish_later(queue: str, name: str) -> None:
    """Record that this worker does not know the task. The next message is published after
    ``conf.unknown_task_delay``, or after _REFUSED_PAUSE if another worker may have the task.
    """
    try:
        with dedicated_connection():
            delay = conf.unknown_task_delay()
            if not config.limits_in_force().lacks_worker(name, queue):
                delay = min(delay, _REFUSED_PAUSE)
            batches.message_not_published([(queue, name)], delay)
    except Error as error:
        logger.warning("The batch message was not recorded: %s", reason_of(error))


class _Message:
    """One batch message."""

    def __init__(
        self,
        task: Any,
        queue: str,
        number: int,
        token: bytes,
        place: RunLocation,
        request: Any,
    ) -> None:
        self._task, self._queue, self._number, self._place = task, queue, number, place
        self._options: TaskOptions = task.durable_options
        self._token, self._events = token, TaskEvents(task)
        self._request = {name: value for name, value in vars(request).items() if name in _COPIED}
        self._is_received, self._taken_at = False, 0.0
        self._before: Mapping[str, int] | None = None
        """The open blocks before the functions, if no other code of the project runs between."""
        self._collected: LiveRun | None = None
        """The last run whose success the batch records together with others."""
        self._exit: SystemExit | None = None
        """Raised by a function; the process exits after the batch."""

    def run(self) -> None:
        """Run batches until no task is due or DURATION is over.

        If more tasks may be due than the first batch contains, the next message is published before
        its functions are called, so that another process can start them.
        """
        name, began, is_published = self._task.name, time.monotonic(), False
        while True:
            # Tasks from before a deployment that removed the option run one by one.
            size = _sizes.of(name, self._options.batch or 1)
            runs = self._take(size)
            if len(runs) == size and not is_published:
                try:
                    publisher.publish_batches({(self._queue, name): self._options.priority})
                except Error as error:  # not raised, because the tasks of this batch have started
                    logger.warning(
                        "The next batch message of %s was not published (%s); a scheduler"
                        " publishes it.",
                        name,
                        reason_of(error),
                    )
                is_published = True
            if not runs or not self._call_all(runs):
                return
            _sizes.ran(name, len(runs), time.monotonic() - self._taken_at)
            if len(runs) < size or time.monotonic() - began > DURATION:
                return

    def fail(self, error: BaseException) -> None:
        """Start due tasks, as many as a first batch has, and end each with this error."""
        for live in self._lives(self._take(_sizes.of(self._task.name, self._options.batch or 1))):
            with suppress(EndingNotRecorded):  # logged; the lease ends the run
                gate.close(live, gate.outcome_for(live, error, self._options))

    def _take(self, size: int) -> list[Run]:
        """Start due tasks. After an error the runs are read back, because the statement may have
        been executed although its reply was lost. Gives up after HEARTBEAT seconds.
        """
        deadline, pause, tried = (
            time.monotonic() + conf.settings().HEARTBEAT,
            0.0,
            list[uuid.UUID](),
        )
        while True:
            try:
                with dedicated_connection():
                    if not self._is_received:
                        batches.message_received(self._queue, self._task.name, self._number)
                        self._is_received = True
                    before, run_ids = list(tried), batches.run_ids_of(self._token, size)
                    tried += run_ids
                    runs = batches.taken(before, self._place) if before else []
                    if not runs:
                        runs = batches.take(self._queue, self._task.name, run_ids, self._place)
                    self._taken_at = time.monotonic()
                    return runs
            except Error as error:
                if time.monotonic() + pause > deadline:
                    logger.warning("No batch was started: %s", reason_of(error))
                    return []
            _idle.wait(pause)
            pause = min(max(_FIRST_PAUSE, 2 * pause), _LONGEST_PAUSE)

    def _call_all(self, runs: Sequence[Run]) -> bool:
        """Call the functions of these runs; return False if endings could not be recorded.

        Those runs stay RUNNING until they are marked LOST. This message does not call them again.
        """
        lives = self._lives(runs)
        batch = BatchInProgress(lives, self._place.worker)
        try:
            process_runs.leases.add(*lives)
            _task_stack.push(self._task)
            if not self._events.has_any:
                self._before = connections.prepare_for_function()
            try:
                batch_thread.add(batch)
                while (live_run := batch.next_run()) is not None:
                    self._call(batch, live_run)
            finally:
                _task_stack.pop()
                batch.finish()
            if self._exit is not None:
                raise self._exit
        except EndingNotRecorded:
            return False  # logged where the time was over
        finally:
            # A time limit can interrupt any instruction. The runs must leave the heartbeat anyway.
            process_runs.leases.remove(*lives)
            batch_thread.remove(batch)
        return True

    def _lives(self, runs: Sequence[Run]) -> list[LiveRun]:
        lease, worker = self._place.lease, self._place.worker
        return [
            LiveRun(
                run, lease=run.options.get("lease", lease), timeout=None, worker=worker, eager=False
            )
            for run in runs
        ]

    def _call(self, batch: BatchInProgress, live: LiveRun) -> None:
        """Run one task as Celery runs that of a message: receivers, the class with what is wrapped
        around it, the gate, hooks. No exception of one of them reaches the other tasks.
        """
        if live.lost or live.lease_may_be_over:
            process_runs.leases.remove(live)  # another process may have started the task
            return
        live.began = time.monotonic()
        celery_id = live.run.celery_id
        # As push_request() does, which also copies the request of the message around this one.
        self._task.request_stack.push(
            Context(
                self._request,
                id=celery_id,
                root_id=celery_id,
                correlation_id=celery_id,
                retries=live.run.failures,
                called_directly=False,
                headers={},  # if they are None, Celery searches all attributes for custom headers
                **{STATE: CallState(partial(self._run, batch, live))},
            )
        )
        try:
            with process_runs.running(live, in_batch=True):
                self._call_and_follow(batch, live)
        except EndingNotRecorded:
            raise
        except SystemExit as error:
            self._leave(live, error)
        except BaseException:
            logger.exception("The receivers and hooks of run %s failed.", celery_id)
        finally:
            self._task.pop_request()
            process_runs.forget(celery_id)
            with suppress(Error):
                close_old_connections()  # as Celery does after each message

    def _call_and_follow(self, batch: BatchInProgress, live: LiveRun) -> None:
        try:
            self._events.before(live)
            value = self._task()
            if not self._is_ended(live):  # a wrapper returned without calling the gate
                gate.returned(live, value)
                value = self._succeed(batch, live)
        except (EndingNotRecorded, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - interrupts are endings too
            ended = error if self._is_ended(live) else gate.closed_by(self._task, live, error)
            if ended is not None:
                self._follow_failure(live, ended)
                return
            value = live.value
        if self._events.follow_success:
            self._events.succeeded(live, value)

    def _follow_failure(self, live: LiveRun, ended: BaseException) -> None:
        try:
            raise ended
        except SystemExit:
            raise
        except BaseException as handled:  # noqa: BLE001 - receivers use the one being handled
            self._events.failed(live, handled)

    def _leave(self, live: LiveRun, error: SystemExit) -> None:
        """End a run that called ``sys.exit()``, and exit after the other tasks of the batch.

        A process that has to terminate exits at once. Its parent ends the run.
        """
        if _should_have_exited[0] or isinstance(error, WorkerShutdown | WorkerTerminate):
            raise error
        if worker_node.in_pool_child():
            self._exit = error
        if self._is_ended(live):
            return
        if live.success is not None and not self._options.atomic:
            gate.close_success(live)
        elif worker_node.in_pool_child():
            text = text_of(error)
            crash = Outcome(kind=EndingKind.CRASHED, error=text, error_type="WorkerLostError")
            gate.close(live, crash)
        else:
            gate.closed_by(self._task, live, error)
        self._events.failed(live, error)

    def _is_ended(self, live: LiveRun) -> bool:
        return live.recorded or self._collected is live

    def _run(self, batch: BatchInProgress, live: LiveRun) -> Any:
        """Return the value of the function after its success was recorded or collected; raise what
        the gate would raise to Celery after another ending.
        """

        def body(task: Any, live: LiveRun) -> Any:
            if self._options.atomic:
                return gate.atomic_body(task, live)
            gate.call_function(task, live, self._before)
            return self._succeed(batch, live)

        return gate.run_body(body, self._task, live, not_closed=(EndingNotRecorded, SystemExit))

    def _succeed(self, batch: BatchInProgress, live: LiveRun) -> Any:
        outcome, followups = live.decided
        if not followups and not self._events.follow_success:
            wait = live.began - self._taken_at
            self._collected = live
            batch.add(live, Success(run=live.run, result=outcome.result, wait=wait))
            return live.value
        if gate.close_success(live) is None:
            raise gate.Fenced
        return live.value
