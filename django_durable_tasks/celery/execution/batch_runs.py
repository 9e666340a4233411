"""Runs batches: starts due tasks together, calls their functions one after another, and records
their successes together.

The Celery task ``run_batch`` receives the batch messages. A message contains a queue and a task
name; which tasks run is decided by the rows.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

from billiard.common import _should_have_exited
from celery import Task as CeleryTask
from celery import current_app, shared_task
from celery._state import _task_stack
from celery.app.task import Context
from celery.exceptions import WorkerShutdown, WorkerTerminate
from django.db import Error, close_old_connections

from django_durable_tasks import conf, ports
from django_durable_tasks.celery.execution import (
    batch_in_progress,
    consumed_queue,
    endings,
    gate,
    worker_node,
)
from django_durable_tasks.celery.execution.batch_events import TaskEvents
from django_durable_tasks.celery.execution.batch_in_progress import BatchInProgress, BatchThread
from django_durable_tasks.celery.execution.body_request import STATE, CallState, state_of
from django_durable_tasks.celery.execution.live_runs import LiveRun, process_runs
from django_durable_tasks.celery.execution.outcomes import text_of
from django_durable_tasks.celery.publishing import batch_publisher
from django_durable_tasks.celery.publishing.batch_publisher import CARRIER
from django_durable_tasks.celery.publishing.message_id import batch_token
from django_durable_tasks.engine.db.connections import dedicated_connection
from django_durable_tasks.engine.db.outages import reason_of
from django_durable_tasks.engine.limits import config
from django_durable_tasks.engine.tasks import batch_messages, batches
from django_durable_tasks.engine.tasks.attempts import RunLocation
from django_durable_tasks.engine.tasks.batches import Success
from django_durable_tasks.exceptions import EndingNotRecorded, RunCancelled
from django_durable_tasks.rules.tasks.endings import EndingKind, Outcome
from django_durable_tasks.rules.tasks.options import TaskOptions
from django_durable_tasks.rules.tasks.runs import Run

logger = logging.getLogger("django_durable_tasks.runs")
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
    place = worker_node.place(lease or conf.settings().LEASE, consumed_queue.names_of(request))
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
    UNKNOWN_TASK_DELAY, or after _REFUSED_PAUSE if another worker may have the task.
    """
    try:
        with dedicated_connection():
            delay = conf.settings().UNKNOWN_TASK_DELAY
            if not config.limits_in_force().lacks_worker(name, queue):
                delay = min(delay, _REFUSED_PAUSE)
            batch_messages.not_published([(queue, name)], delay)
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
                self._publish_next()
                is_published = True
            if not runs or not self._run_all(runs):
                return
            _sizes.ran(name, len(runs), time.monotonic() - self._taken_at)
            if len(runs) < size or time.monotonic() - began > DURATION:
                return

    def fail(self, error: BaseException) -> None:
        """Start due tasks, as many as a first batch has, and end each with this error."""
        for live in self._lives(self._take(_sizes.of(self._task.name, self._options.batch or 1))):
            with suppress(EndingNotRecorded):  # logged; the lease ends the run
                endings.close(live, endings.outcome_for(live, error, self._options))

    def _publish_next(self) -> None:
        """Publish the next message. An error of the database is logged and not raised, because the
        tasks of this batch have started, and a scheduler publishes the message then.
        """
        try:
            batch_publisher.publish({(self._queue, self._task.name): self._options.priority})
        except Error as error:
            logger.warning(
                "The next batch message of %s was not published (%s); a scheduler publishes it.",
                self._task.name,
                reason_of(error),
            )

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
                        batch_messages.received(self._queue, self._task.name, self._number)
                        self._is_received = True
                    before, run_ids = list(tried), batches.run_ids_of(self._token, size)
                    tried += run_ids
                    found = batches.taken(before, self._place) if before else []
                    if not found:
                        found = batches.take(self._queue, self._task.name, run_ids, self._place)
                    self._taken_at = time.monotonic()
                    return found
            except Error as error:
                if time.monotonic() + pause > deadline:
                    logger.warning("No batch was started: %s", reason_of(error))
                    return []
            _idle.wait(pause)
            pause = min(max(_FIRST_PAUSE, 2 * pause), _LONGEST_PAUSE)

    def _run_all(self, runs: Sequence[Run]) -> bool:
        """Call the functions of these runs; return False if endings could not be recorded.

        Those runs stay RUNNING until they are marked LOST. This message does not call them again.
        """
        lives = self._lives(runs)
        batch, thread = BatchInProgress(lives, self._place.worker), batch_in_progress.thread()
        try:
            process_runs.leases.add(*lives)
            self._call_all(batch, thread)
        except EndingNotRecorded:
            return False  # logged where the time was over
        finally:
            # A time limit can interrupt any instruction. The runs must leave the heartbeat anyway.
            process_runs.leases.remove(*lives)
            thread.remove(batch)
        return True

    def _lives(self, runs: Sequence[Run]) -> list[LiveRun]:
        return [
            LiveRun(
                run,
                lease=run.options.get("lease", self._place.lease),
                timeout=None,
                worker=self._place.worker,
                eager=False,
            )
            for run in runs
        ]

    def _call_all(self, batch: BatchInProgress, thread: BatchThread) -> None:
        _task_stack.push(self._task)
        try:
            thread.add(batch)
            while (live_run := batch.next_run()) is not None:
                self._call(batch, live_run)
        finally:
            _task_stack.pop()
            batch.finish()
        if self._exit is not None:
            raise self._exit

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
            endings.close_success(live)
        elif worker_node.in_pool_child():
            text = text_of(error)
            crash = Outcome(kind=EndingKind.CRASHED, error=text, error_type="WorkerLostError")
            endings.close(live, crash)
        else:
            gate.closed_by(self._task, live, error)
        self._events.failed(live, error)

    def _is_ended(self, live: LiveRun) -> bool:
        return live.recorded or self._collected is live

    def _run(self, batch: BatchInProgress, live: LiveRun) -> Any:
        """Return the value of the function after its success was recorded or collected; raise what
        the gate would raise to Celery after another ending.
        """
        try:
            with nullcontext() if ports.traces is None else ports.traces.attempt(live.run):
                return self._body(batch, live)
        except (EndingNotRecorded, SystemExit):
            raise
        except BaseException as error:
            ended = gate.closed_by(self._task, live, error)
            if ended is None:
                return live.value
            if ended is error:
                raise  # with its own cause
            raise ended from ended.__cause__

    def _body(self, batch: BatchInProgress, live: LiveRun) -> Any:
        if live.cancel_requested:
            raise RunCancelled
        if self._options.atomic:
            return gate.atomic_body(self._task, live)
        gate.call_function(self._task, live)
        return self._succeed(batch, live)

    def _succeed(self, batch: BatchInProgress, live: LiveRun) -> Any:
        outcome, followups = live.decided
        if not followups and not self._events.follow_success:
            wait = live.began - self._taken_at
            self._collected = live
            batch.add(live, Success(run=live.run, result=outcome.result, wait=wait))
            return live.value
        if endings.close_success(live) is None:
            raise gate.Fenced
        return live.value
