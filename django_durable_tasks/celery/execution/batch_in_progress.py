"""The runs of one batch that were not called yet, and its successes that are not recorded yet.

The thread of the batch calls the functions. One more thread of the process acts while a function
runs: it records successes that are older than 50 ms, and returns the tasks behind a slow function,
so that other processes can run them.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections import deque
from collections.abc import Sequence
from functools import partial

from django.db import Error

from django_durable_tasks import registry
from django_durable_tasks.celery.execution import endings
from django_durable_tasks.celery.execution.live_runs import LiveRun, process_runs
from django_durable_tasks.celery.execution.outcomes import outcome_of
from django_durable_tasks.engine.db.connections import dedicated_connection
from django_durable_tasks.engine.db.outages import reason_of
from django_durable_tasks.engine.tasks import attempts, batches
from django_durable_tasks.engine.tasks.batches import Success
from django_durable_tasks.exceptions import EndingNotRecorded
from django_durable_tasks.rules.tasks.endings import EndingKind, Outcome, decide

logger = logging.getLogger("django_durable_tasks.runs")
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
                "%d tasks of a batch could not be returned (%s). They are marked LOST when their"
                " leases expire.",
                len(uncalled),
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
            logger.info("Returned %d tasks behind a slow function of their batch.", returned)

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
        accepted = endings.persist(
            lambda: _write([(live, success)], live.worker),
            live,
            partial(endings.is_refused, live),
            seconds=max(0.0, until - time.monotonic()),
        )
    except EndingNotRecorded:
        process_runs.leases.remove(live)
        raise
    except Exception as error:
        logger.exception("The success of run %s cannot be recorded.", live.run.celery_id)
        live.success = None
        endings.close(live, outcome_of(error, registry.get(live.run.name).options))
        return
    _finish([(live, success)], accepted)


def _finish(done: Sequence[RecordedSuccess], accepted: set[uuid.UUID]) -> None:
    ended = [live for live, _ in done]
    process_runs.leases.remove(*ended)
    # One verdict for all: that of a success depends neither on the result nor on the budgets.
    outcome = Outcome(kind=EndingKind.SUCCEEDED)
    succeeded = [live for live in ended if live.run.run_id in accepted and not live.recorded]
    for live in succeeded:
        live.verdict, live.recorded = decide(outcome, attempts.spent(live.run)), True
    endings.after_endings(succeeded, outcome)
    for live in ended:
        if live.run.run_id not in accepted:
            endings.close_fenced(live)


class BatchThread:
    """The thread of this process that acts on its batches while their functions run."""

    def __init__(self) -> None:
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


class _OfProcess:
    thread = BatchThread()


def thread() -> BatchThread:
    """Return the thread of this process."""
    return _OfProcess.thread


def _forget() -> None:
    _OfProcess.thread = BatchThread()


os.register_at_fork(after_in_child=_forget)
