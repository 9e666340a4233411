"""The success of a run that is recorded together with the next start of its process.

A child process of a prefork pool runs one task after another. Its successes and its starts are two
commits per task, and waiting for them takes longer than a short function. So a success waits until
the next message starts its run, and both are one transaction. If no message arrives within DELAY, a
thread records the success.

At most one success of a process is deferred, and it is recorded before the next function is called.
Until then the task is RUNNING and its lease is renewed.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import TypeVar

from celery import signals
from django.db import Error

from django_durable_tasks import conf, registry
from django_durable_tasks.celery.execution import endings, worker_node
from django_durable_tasks.celery.execution.batch_events import follow_success
from django_durable_tasks.celery.execution.live_runs import LiveRun, process_runs
from django_durable_tasks.celery.execution.outcomes import outcome_of
from django_durable_tasks.engine.db import direct
from django_durable_tasks.engine.db.connections import dedicated_connection
from django_durable_tasks.engine.tasks import attempts, next_run
from django_durable_tasks.exceptions import EndingNotRecorded
from django_durable_tasks.rules.tasks.endings import Outcome, decide
from django_durable_tasks.rules.tasks.runs import Run

T = TypeVar("T")
logger = logging.getLogger("django_durable_tasks.runs")
DELAY = 0.005
"""Seconds after which a success is recorded without a start."""
IDLE = 15.0
"""Seconds after which the thread looks for a success although it was not woken."""
_Held = tuple[LiveRun, Outcome]


class DeferredSuccess:
    """The success of the last run of this process, if it is not recorded yet.

    The thread of the tasks calls all methods. Another thread records what waits longer than DELAY.
    """

    def __init__(self) -> None:
        self._held: _Held | None = None
        self._writing = threading.RLock()
        self._wake, self._pause = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def holds(self, live: LiveRun) -> bool:
        """Return whether the success of this run is deferred."""
        return self._held is not None and self._held[0] is live

    def defer(self, live: LiveRun, outcome: Outcome) -> None:
        """Record this success with the next start, or after DELAY."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(
                target=self._act_forever, name="durable-successes", daemon=True
            )
            self._thread.start()
        self._held = live, outcome
        if not self._wake.is_set():
            self._wake.set()

    def record_with(self, start: Callable[[Run, str | None], tuple[bool, T]]) -> T | None:
        """Record the deferred success by ``start``, which returns whether it was accepted, and what
        it started. Return the latter, or None if no success is deferred.

        Raises the error of the database after the success was recorded alone. Then ``start`` may
        have been executed nevertheless.
        """
        with self._writing:
            if self._held is None:
                return None
            live, outcome = self._held
            try:
                with dedicated_connection():
                    accepted, started = start(live.run, outcome.result)
            except Error:
                self._record(live, outcome)
                raise
            self._finish(live, outcome, accepted=accepted)
            return started

    def record(self) -> None:
        """Record the deferred success now, if there is one."""
        with self._writing:
            if self._held is not None:
                self._record(*self._held)

    def _record(self, live: LiveRun, outcome: Outcome) -> None:
        """Record the success alone. A failed write is repeated for RESULT_WRITE_TIMEOUT.

        A time limit of the next message may interrupt this. Then the thread records the success.
        """
        try:
            live.verdict = endings.persist(
                lambda: endings.write_ending(live, outcome), conf.settings().RESULT_WRITE_TIMEOUT
            )
        except EndingNotRecorded:  # logged where the time was over
            self._forget(live)
            return
        live.recorded = True
        self._forget(live)
        endings.report(live, outcome)

    def _finish(self, live: LiveRun, outcome: Outcome, *, accepted: bool) -> None:
        try:
            if accepted:
                live.verdict, live.recorded = decide(outcome, attempts.spent(live.run)), True
                endings.report(live, outcome)
            else:
                endings.close_fenced(live)
        except EndingNotRecorded:
            pass  # logged where the time was over; only the log entry FENCED is missing
        finally:
            self._forget(live)

    def _forget(self, live: LiveRun) -> None:
        process_runs.leases.remove(live)
        process_runs.forget(live.run.celery_id)
        self._held = None

    def _act_forever(self) -> None:
        while True:
            self._wake.wait(IDLE)
            held = self._held
            self._pause.wait(DELAY)
            if held is None:
                self._wake.clear()
                if self._held is not None:  # deferred before the event was cleared
                    self._wake.set()
            elif self._held is held:
                self._record_late(held)

    def _record_late(self, held: _Held) -> None:
        with self._writing:
            if self._held is not held:
                return
            live, outcome = held
            try:
                self._record(live, outcome)
            except Exception as error:
                logger.exception("The success of run %s cannot be recorded.", live.run.celery_id)
                self._fail(live, error)

    def _fail(self, live: LiveRun, error: Exception) -> None:
        try:
            endings.close(live, outcome_of(error, registry.get(live.run.name).options))
        except Exception:
            logger.exception("Run %s is marked LOST when its lease expires.", live.run.celery_id)
        finally:
            self._forget(live)


class _OfProcess:
    deferred = DeferredSuccess()


def of_process() -> DeferredSuccess:
    """Return the deferred success of this process."""
    return _OfProcess.deferred


def _start_empty() -> None:
    _OfProcess.deferred = DeferredSuccess()


os.register_at_fork(after_in_child=_start_empty)


def may_wait(task: object, live: LiveRun) -> bool:
    """Return whether the success of this run may be recorded with the next start: in a prefork
    child, and if nothing is called after it or depends on it.
    """
    return (
        worker_node.in_pool_child()
        and not live.eager
        and next_run.may_wait(live.run)
        and not follow_success(task)
    )


def _on_pool_child(**_: object) -> None:
    if worker_node.in_pool_child():
        direct.use()


def _before_plain_task(sender: object = None, **_: object) -> None:
    """Record the success before a function is called that is not started by the gate."""
    if getattr(sender, "durable_options", None) is None:
        of_process().record()


def _on_child_exit(**_: object) -> None:
    of_process().record()


def connect() -> None:
    """Connect the receivers; called once by ``apps.ready()``, after those of ``worker_node``."""
    for signal, receiver in (
        (signals.worker_process_init, _on_pool_child),
        (signals.worker_process_shutdown, _on_child_exit),
        (signals.task_prerun, _before_plain_task),
    ):
        signal.connect(
            receiver, weak=False, dispatch_uid=f"django_durable_tasks.{receiver.__name__}"
        )
