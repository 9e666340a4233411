"""Runs the coroutines of task functions on one event loop of the process.

The thread that executes the task of a message waits for its coroutine. Meanwhile it runs what the
coroutine passes to ``sync_to_async``, such as queries of the ORM. So these use the connections,
transactions and thread-locals of the run, as with asgiref's ``async_to_sync``.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from contextvars import ContextVar
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from asgiref.sync import ThreadSensitiveContext
from billiard.exceptions import SoftTimeLimitExceeded
from celery import bootsteps
from celery._state import _task_stack
from celery.concurrency.thread import TaskPool
from celery.local import Proxy

from django_durable_tasks.celery import worker_node
from django_durable_tasks.celery.live_runs import LiveRun
from django_durable_tasks.exceptions import (
    BodyFailed,
    InvalidOption,
    RunCancelled,
    RunInterrupted,
    RunOutOfTime,
)
from django_durable_tasks.store import connections

logger = logging.getLogger("django_durable_tasks.runs")
_IDLE = 0.1
"""Seconds after a query until the connections of a waiting thread are closed, if CONN_MAX_AGE does
not keep them. Long enough for a coroutine that executes one query after another.
"""
_LONGEST = 60.0
"""Seconds of one wait for a coroutine, however long it takes."""


class _Current(NamedTuple):
    task: Any
    request: Any


_current: ContextVar[_Current | None] = ContextVar("durable_tasks_coroutine", default=None)


def request_of(task: Any) -> Any:
    """Return the request of the coroutine of this task that is executed here, or None.

    Celery keeps requests by thread, and the coroutines of an event loop share its thread.
    """
    current = _current.get()
    return current.request if current is not None and current.task is task else None


def _current_task() -> Any:
    current = _current.get()
    return None if current is None else current.task


class _Call(Executor):
    """A coroutine on the event loop, and the thread that waits for it and runs its functions."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], live: LiveRun | None) -> None:
        self._coroutine, self._live = coroutine, live
        self._context = contextvars.copy_context()
        self._work = SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]()
        self._is_over = False
        self._task: asyncio.Task[None] | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self._has_returned = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._reasons: list[BaseException] = []
        """Why the coroutine was cancelled, the last reason at the end."""

    # In the thread of the run.

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run this function in the thread that waits for the coroutine."""
        future = Future[Any]()
        self._work.put((future, partial(fn, *args, **kwargs)))
        return future

    def result(self) -> Any:
        """Return the value of the coroutine, or raise its exception.

        An exception that is raised in this thread meanwhile, such as that of a time limit, cancels
        the coroutine. It is raised when the coroutine has ended, unless that has handled its
        cancellation.
        """
        keeps_connections = self._live is not None and self._live.eager
        interrupt: BaseException | None = None
        _loop.call(self.start)
        pause = 0.0
        while not self._is_over:
            try:
                self._run_next(pause)
                pause = _IDLE
            except Empty:
                if not keeps_connections:
                    connections.close_unused()
                pause = _LONGEST
            except BaseException as raised:  # noqa: BLE001 - raised below
                interrupt = raised
                self.interrupt(raised)
        error, self._error = self._error, None
        try:
            if isinstance(error, asyncio.CancelledError):
                if not self._reasons:
                    text = "The coroutine raised CancelledError without having been cancelled."
                    raise BodyFailed(text) from error
                raise self._reasons[-1] from error
            if error is not None:
                raise error
            is_late = interrupt is not None and interrupt not in self._reasons
            if interrupt is not None and is_late and not isinstance(interrupt, Exception):
                raise interrupt  # the process has to exit
            return self._value
        finally:
            del error, interrupt
            self._reasons = []

    def _run_next(self, pause: float) -> None:
        """Run the next function; return when there is none any more. Raises Empty after the pause
        in seconds.
        """
        item = self._work.get(pause > 0, pause or None)
        if item is None:
            return
        future, function = item
        if not future.set_running_or_notify_cancel():
            return
        try:
            value = function()
        except BaseException as error:  # noqa: BLE001 - the coroutine receives it
            future.set_exception(error)
        else:
            future.set_result(value)

    def interrupt(self, reason: BaseException) -> None:
        """Cancel the coroutine, once for each class of reasons; safe in every thread."""
        _loop.call(partial(self._cancel, reason))

    # In the thread of the event loop.

    def start(self) -> None:
        """Begin the coroutine, and its time limits."""
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._run(), context=self._context)
        self._task.add_done_callback(self._end)
        _loop.calls.add(self)
        live = self._live
        if live is None:
            return
        for seconds, reason in _limits_of(live):
            remaining = max(0.0, live.began + seconds - time.monotonic())
            self._timers.append(loop.call_later(remaining, self._cancel, reason))
        if live.cancel_requested:
            self._cancel(RunCancelled())

    async def _run(self) -> None:
        try:
            async with ThreadSensitiveContext(executor=self):
                self._value = await self._coroutine
                self._has_returned = True
        except BaseException as error:  # noqa: BLE001 - raised in the thread of the run
            # SystemExit would also end the event loop. An error after the return changes nothing.
            if not self._has_returned:
                self._error = error

    def _cancel(self, reason: BaseException) -> None:
        if self._task is None or self._task.done():
            return
        if not any(type(reason) is type(earlier) for earlier in self._reasons):
            self._reasons.append(reason)
            self._task.cancel(str(reason) or type(reason).__name__)

    def _end(self, task: asyncio.Task[None]) -> None:
        _loop.calls.discard(self)
        for timer in self._timers:
            timer.cancel()
        if task.cancelled():  # before its first step
            self._coroutine.close()
            self._error = asyncio.CancelledError()
        self._is_over = True
        self._work.put(None)


def _limits_of(live: LiveRun) -> list[tuple[float, Exception]]:
    """Return the time limits that this process has to enforce, in seconds, each with its error. The
    parent of a prefork child enforces those of the child.
    """
    limits = list[tuple[float, Exception]]()
    if not worker_node.in_pool_child():
        soft, hard = live.soft_timeout, live.timeout
        if soft is not None:
            limits.append((soft, SoftTimeLimitExceeded(soft)))
        if hard is not None:
            text = f"The run was cancelled at its time limit of {hard:g} s."
            limits.append((hard, RunOutOfTime(text)))
    return limits


class _EventLoop:
    """The event loop of this process. Its thread starts with the first coroutine."""

    def __init__(self) -> None:
        self._of_parents: list[asyncio.AbstractEventLoop | None] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self.clear()

    def clear(self) -> None:
        """Forget the event loop of the parent process; called in a forked child."""
        # A reference is kept, because both processes share its selector.
        self._of_parents.append(self._loop)
        self._lock, self._loop = threading.Lock(), None
        self.calls = set[_Call]()
        """The coroutines in progress. Only the thread of the loop reads and changes it."""
        self.is_stopping = False

    def call(self, function: Callable[[], object]) -> None:
        """Call the function in the thread of the event loop, in the order of these calls."""
        loop = self._loop
        if loop is None:
            with self._lock:
                loop = self._loop
                if loop is None:
                    loop = asyncio.new_event_loop()
                    threading.Thread(
                        target=self._run, args=(loop,), name="durable-coroutines", daemon=True
                    ).start()
                    self._loop = loop
        loop.call_soon_threadsafe(function)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        _task_stack.push(Proxy(_current_task))
        while True:
            try:
                loop.run_forever()
            except BaseException:
                # For example SystemExit in a task that a coroutine had created.
                logger.exception("The event loop of this process was interrupted; it continues.")

    def is_current(self) -> bool:
        """Return whether this is the thread of the event loop."""
        return self._loop is not None and asyncio._get_running_loop() is self._loop

    def stop(self) -> None:
        """Cancel all coroutines, also those that begin later; safe in a signal handler."""
        self.is_stopping = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop_all)

    def _stop_all(self) -> None:
        for call in list(self.calls):
            call.interrupt(RunInterrupted("The worker is shutting down."))


_loop = _EventLoop()
os.register_at_fork(after_in_child=_loop.clear)


def is_current() -> bool:
    """Return whether this is the thread of the event loop."""
    return _loop.is_current()


def _is_patched() -> bool:
    gevent, eventlet = (sys.modules.get(name) for name in ("gevent.monkey", "eventlet.patcher"))
    return bool(
        (gevent is not None and gevent.is_module_patched("threading"))
        or (eventlet is not None and eventlet.is_monkey_patched("thread"))
    )


def wait_for(
    coroutine: Coroutine[Any, Any, Any], task: Any, request: Any, live: LiveRun | None
) -> Any:
    """Run the coroutine on the event loop of this process; return its value or raise its exception.

    ``live``, the run of this thread, interrupts the coroutine. Raises InvalidOption in a pool of
    greenlets, and RuntimeError in the thread of the event loop.
    """
    problem: BaseException | None = None
    if _is_patched():
        problem = InvalidOption(
            f"{task.name} is async, and this worker has a pool of greenlets: run it on a worker"
            " with --pool threads or prefork."
        )
    elif _loop.is_current():
        problem = RuntimeError(
            f"{task.name} was called by the event loop that has to run it: await its .adelay()."
        )
    elif _loop.is_stopping:
        problem = RunInterrupted("The worker is shutting down.")
    if problem is not None:
        coroutine.close()
        raise problem
    before = None if live is None else live.interrupt
    token = _current.set(_Current(task, request))
    try:
        call = _Call(coroutine, live)
        if live is not None:
            live.interrupt = call.interrupt
        return call.result()
    finally:
        if live is not None:
            live.interrupt = before
        _current.reset(token)


# Lets a cold shutdown of a worker with the pool ``threads`` cancel its coroutines.
#
# Celery terminates active messages, which this pool cannot do: the shutdown ended with
# NotImplementedError. Functions that are no coroutines run to their end, as they did then.


class CancelCoroutines(bootsteps.StartStopStep):
    """A step of the consumer that cancels coroutines instead of terminating messages."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def include_if(self, parent: Any) -> bool:
        """Return whether the tasks run in threads of this process."""
        return isinstance(parent.pool, TaskPool)

    def start(self, parent: Any) -> None:
        """Replace the method that the signal handler of the worker calls."""
        parent.cancel_active_requests = _loop.stop
