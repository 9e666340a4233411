"""The runs in progress in this process: of the current thread, by message, and by lease."""

from __future__ import annotations

import json
import mmap
import os
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django_durable_tasks import conf
from django_durable_tasks.celery.execution.heartbeat import LeaseHeartbeat
from django_durable_tasks.rules.tasks.endings import Verdict
from django_durable_tasks.rules.tasks.runs import Run
from django_durable_tasks.rules.workflows.builder import AddedTasks
from django_durable_tasks.rules.workflows.followups import FollowUp, followups_of


class LiveRun:
    """A run in progress. Times are seconds of the monotonic clock."""

    def __init__(
        self, run: Run, *, lease: float, timeout: float | None, worker: str, eager: bool
    ) -> None:
        self.run, self.worker, self.eager = run, worker, eager
        self.lease, self.timeout = lease, timeout
        self.began = self.renewed = time.monotonic()
        self.cancel_requested = self.lost = False
        self.progress: dict[str, Any] | None = None
        self.recorded = False
        self.growth: AddedTasks | None = None
        self.verdict: Verdict | None = None
        self.args: list[Any] = []
        self.kwargs: dict[str, Any] = {}
        self.max_attempts: int | None = None
        """The limit that ``self.retry(max_retries=…)`` set."""
        self.requested_retry: BaseException | None = None
        """The exception of ``self.retry(throw=False)``, raised when the function returns."""

    @property
    def out_of_time(self) -> bool:
        """Whether the run exceeds its time limit, for pools in which Celery cannot interrupt it."""
        return self.timeout is not None and time.monotonic() - self.began > self.timeout

    @property
    def lease_may_be_over(self) -> bool:
        """Whether no renewal has succeeded for the lease minus one heartbeat interval.

        Another worker may have started the task since.
        """
        return time.monotonic() - self.renewed > self.lease - conf.settings().HEARTBEAT

    def followups(self, value: object) -> tuple[FollowUp, ...]:
        """Return the tasks to create with the success of this run: returned and added ones."""
        grown = () if self.growth is None or not len(self.growth) else (self.growth,)
        return (*followups_of(value), *grown)

    def new_progress(self) -> str | None:
        """Return the progress as JSON; None if the task has not reported any."""
        return None if self.progress is None else json.dumps(self.progress)


class _OfThread(threading.local):
    live: LiveRun | None = None


class LiveRuns:
    """The runs of one process. There is one object per process; a forked child clears it."""

    def __init__(self) -> None:
        self.leases = LeaseHeartbeat()
        self._by_celery_id: dict[str, LiveRun] = {}
        self._of_thread = _OfThread()
        self.share_last_start()

    def clear(self) -> None:
        """Remove the runs of the parent process; called in a forked child."""
        self.leases = LeaseHeartbeat()
        self._by_celery_id.clear()

    def current(self) -> LiveRun | None:
        """Return the run whose function this thread executes."""
        return self._of_thread.live

    @contextmanager
    def running(self, live: LiveRun) -> Iterator[None]:
        """Make this the run of the thread. `find` returns it until `forget` is called."""
        struct.pack_into("d", self._last_start, 0, time.monotonic())
        before, self._of_thread.live = self._of_thread.live, live
        self._by_celery_id[live.run.celery_id] = live
        try:
            yield
        finally:
            self._of_thread.live = before

    def find(self, celery_id: str) -> LiveRun | None:
        """Return the run that this message started in this process."""
        return self._by_celery_id.get(celery_id)

    def forget(self, celery_id: str) -> None:
        """Remove the run of a finished message."""
        self._by_celery_id.pop(celery_id, None)

    def share_last_start(self) -> None:
        """Share the time of the last start with the processes that are forked from now on."""
        self._last_start = mmap.mmap(-1, 8)

    def last_start(self) -> float | None:
        """Return when this process or a child last started a run; None before the first."""
        return float(struct.unpack_from("d", self._last_start, 0)[0]) or None


process_runs = LiveRuns()
os.register_at_fork(after_in_child=process_runs.clear)
