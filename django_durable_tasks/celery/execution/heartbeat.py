"""The runs of this process, and the one thread that keeps their leases.

A run enters when it starts and leaves when it is closed or given up, whatever happened: what has
left is ended by its lease. The thread lives in the process that runs bodies, so a stuck child is
judged by its own silence.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import struct
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import Error

from django_durable_tasks import conf
from django_durable_tasks.engine.db.connections import dedicated_connection
from django_durable_tasks.engine.tasks import attempts
from django_durable_tasks.rules.tasks.endings import Verdict
from django_durable_tasks.rules.tasks.runs import Run
from django_durable_tasks.rules.workflows.builder import Growth
from django_durable_tasks.rules.workflows.followups import FollowUp, followups_of

logger = logging.getLogger("django_durable_tasks.runs")
_RETRY_PAUSE = 1.0
"""Seconds between attempts for runs whose leases were not renewed; the first attempt
comes at once.
"""


class LiveRun:
    """A run in progress, as its own process sees it."""

    def __init__(
        self, run: Run, *, lease: float, timeout: float | None, worker: str, eager: bool
    ) -> None:
        self.run, self.lease, self.timeout, self.worker, self.eager = (
            run,
            lease,
            timeout,
            worker,
            eager,
        )
        self.began = self.renewed = time.monotonic()
        self.cancel_requested = self.lost = False
        self.progress: dict[str, Any] | None = None
        self.told = False
        self.growth: Growth | None = None
        self.verdict: Verdict | None = None
        self.args: list[Any] = []
        self.kwargs: dict[str, Any] = {}
        # What self.retry() left: the limit that it set, and the wish of throw=False.
        self.max_attempts: int | None = None
        self.wish: BaseException | None = None

    @property
    def out_of_time(self) -> bool:
        """Whether the run is over its time limit (for pools in which Celery cannot interrupt a
        body).
        """
        return self.timeout is not None and time.monotonic() - self.began > self.timeout

    @property
    def silent_too_long(self) -> bool:
        """Whether others may have taken over: no renewal for a lease less one heartbeat, by our own
        clock.
        """
        return time.monotonic() - self.renewed > self.lease - conf.settings().HEARTBEAT

    def followups(self, value: object) -> tuple[FollowUp, ...]:
        """Return what this run wants created with its success: what the body returned, and what it
        added.
        """
        grown = () if self.growth is None or not len(self.growth) else (self.growth,)
        return (*followups_of(value), *grown)

    def news(self) -> str | None:
        """Return the progress as JSON, None when there is nothing new."""
        return None if self.progress is None else json.dumps(self.progress)


class Heart:
    """One thread, one UPDATE for all runs of the process, every HEARTBEAT seconds by the monotonic
    clock.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[uuid.UUID, LiveRun] = {}
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def add(self, live: LiveRun) -> None:
        """Keep the lease of this run from now on."""
        with self._lock:
            self._runs[live.run.run_id] = live
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._beat_on, name="durable-heartbeat", daemon=True
                )
                self._thread.start()

    def remove(self, live: LiveRun) -> None:
        """Keep the lease of this run no longer; idempotent."""
        with self._lock:
            self._runs.pop(live.run.run_id, None)

    def holds(self, live: LiveRun) -> bool:
        """Return whether the lease of this run is kept."""
        return live.run.run_id in self._runs

    def _beat_on(self) -> None:
        beat_at = time.monotonic()
        while True:
            beat_at = max(beat_at + conf.settings().HEARTBEAT, time.monotonic())
            if self._stop.wait(max(0.0, beat_at - time.monotonic())):
                return
            behind = self._beat_or_log(None)
            pause = 0.0
            while behind and time.monotonic() < beat_at + conf.settings().HEARTBEAT:
                if self._stop.wait(pause):
                    return
                behind, pause = self._beat_or_log(behind), _RETRY_PAUSE

    def _beat_or_log(self, behind: dict[uuid.UUID, LiveRun] | None) -> dict[uuid.UUID, LiveRun]:
        try:
            return self.beat(behind)
        except Exception:
            logger.exception(
                "The heartbeat of the runs of this process failed. If it keeps failing, the runs"
                " are marked LOST."
            )
            return {}

    def beat(self, behind: dict[uuid.UUID, LiveRun] | None = None) -> dict[uuid.UUID, LiveRun]:
        """Renew the leases of all runs, or of these, that are within their time limit; return those
        not renewed.
        """
        with self._lock:
            named = (
                self._runs
                if behind is None
                else {key: live for key, live in behind.items() if key in self._runs}
            )
            runs = {key: live for key, live in named.items() if not live.out_of_time}
        return self._renew(runs) if runs else {}

    def _renew(self, runs: dict[uuid.UUID, LiveRun]) -> dict[uuid.UUID, LiveRun]:
        """Renew these leases without waiting for a locked row, which would delay those of all
        others.
        """
        began = time.monotonic()
        beats = [
            (live.run.task_id, live.run.epoch, live.run.run_id, live.lease, live.news())
            for live in runs.values()
        ]
        try:
            with dedicated_connection():
                renewed = attempts.heartbeat(beats)
                left = [beat for beat in beats if beat[2] not in renewed]
                locked = attempts.still_owned(left) if left else set()
        except Error as error:
            logger.warning(
                "Could not renew the leases of %d runs: %s", len(runs), type(error).__name__
            )
            return runs
        if locked:
            logger.info(
                "Could not renew the leases of %d runs because their rows are locked. Retrying.",
                len(locked),
            )
        for key, live in runs.items():
            if key in renewed:
                live.renewed, live.cancel_requested = began, renewed[key]
            elif key not in locked and self.holds(live):
                live.lost = True
                self.remove(live)
        return {key: live for key, live in runs.items() if key in locked}


heart = Heart()


class Starts:
    """When a run last started, in a piece of memory that a worker's parent shares with its
    children.
    """

    def __init__(self) -> None:
        self.share()

    def share(self) -> None:
        """Begin anew with memory that processes forked from now on share."""
        self._memory = mmap.mmap(-1, 8)

    def note(self) -> None:
        """Note that a run starts now; one write of eight bytes, without a lock."""
        struct.pack_into("d", self._memory, 0, time.monotonic())

    def last(self) -> float | None:
        """Return when a run last started, by the monotonic clock of this host; None before the
        first.
        """
        return float(struct.unpack_from("d", self._memory, 0)[0]) or None


starts = Starts()


class _Current(threading.local):
    live: LiveRun | None = None


_current = _Current()
_by_celery_id: dict[str, LiveRun] = {}


def current() -> LiveRun | None:
    """Return the run whose body this thread runs."""
    return _current.live


@contextmanager
def running(live: LiveRun) -> Iterator[None]:
    """Make this the run of the thread, and find it by its Celery id until its message is
    finished.
    """
    starts.note()
    before, _current.live = _current.live, live
    _by_celery_id[live.run.celery_id] = live
    try:
        yield
    finally:
        _current.live = before


def find(celery_id: str) -> LiveRun | None:
    """Return the run of this process that this message started."""
    return _by_celery_id.get(celery_id)


def forget(celery_id: str) -> None:
    """Forget a run whose message is finished."""
    _by_celery_id.pop(celery_id, None)


def _new_process() -> None:
    global heart
    heart = Heart()
    _by_celery_id.clear()


os.register_at_fork(after_in_child=_new_process)
