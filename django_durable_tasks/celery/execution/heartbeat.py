"""Renews the leases of the runs of this process.

The leases of all runs are renewed first, by a statement that contains nothing that a task function
supplied. What the functions have reported is written after it.

The thread runs in the process that executes the tasks. A process that is stuck or killed renews
nothing, so its leases expire. A run enters when it starts and leaves when its ending is recorded
or could not be recorded. In the second case its lease expires too.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

from django.db import DataError, Error, IntegrityError

from django_durable_tasks import conf
from django_durable_tasks.engine.db.connections import dedicated_connection
from django_durable_tasks.engine.tasks import attempts

if TYPE_CHECKING:
    from django_durable_tasks.celery.execution.live_runs import LiveRun

logger = logging.getLogger("django_durable_tasks.runs")
_RETRY_PAUSE = 1.0
"""Seconds between attempts for leases that were not renewed. The first attempt has no pause."""


class LeaseHeartbeat:
    """A thread that renews the leases of all runs of the process in one UPDATE.

    It does so every HEARTBEAT seconds of the monotonic clock. The thread starts with the first run.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[uuid.UUID, LiveRun] = {}
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def add(self, *lives: LiveRun) -> None:
        """Renew the leases of these runs from now on."""
        with self._lock:
            self._runs.update((live.run.run_id, live) for live in lives)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._renew_forever, name="durable-heartbeat", daemon=True
                )
                self._thread.start()

    def remove(self, *lives: LiveRun) -> None:
        """Stop renewing the leases of these runs. Idempotent."""
        with self._lock:
            for live in lives:
                self._runs.pop(live.run.run_id, None)

    def renews(self, live: LiveRun) -> bool:
        """Return whether the lease of this run is being renewed."""
        return live.run.run_id in self._runs

    def _renew_forever(self) -> None:
        next_at = time.monotonic()
        while True:
            next_at = max(next_at + conf.settings().HEARTBEAT, time.monotonic())
            if self._stop.wait(max(0.0, next_at - time.monotonic())):
                return
            behind = self._renew_or_log(None)
            pause = 0.0
            while behind and time.monotonic() < next_at + conf.settings().HEARTBEAT:
                if self._stop.wait(pause):
                    return
                behind, pause = self._renew_or_log(behind), _RETRY_PAUSE

    def _renew_or_log(self, behind: dict[uuid.UUID, LiveRun] | None) -> dict[uuid.UUID, LiveRun]:
        try:
            return self.renew(behind)
        except Exception:
            logger.exception(
                "The heartbeat of the runs of this process failed. If it keeps failing, the runs"
                " are marked LOST."
            )
            return {}

    def renew(self, behind: dict[uuid.UUID, LiveRun] | None = None) -> dict[uuid.UUID, LiveRun]:
        """Renew the leases of all runs, or of those in ``behind``, and then write their progress;
        return the ones not renewed.

        Runs that exceed their time limit are left out.
        """
        with self._lock:
            named = (
                self._runs
                if behind is None
                else {key: live for key, live in behind.items() if key in self._runs}
            )
            runs = {key: live for key, live in named.items() if not live.out_of_time}
        behind = self._renew(runs) if runs else {}
        self._write_progress([live for key, live in runs.items() if key not in behind])
        return behind

    def _renew(self, runs: dict[uuid.UUID, LiveRun]) -> dict[uuid.UUID, LiveRun]:
        """Renew these leases, except those of locked rows.

        Waiting for a locked row would delay the renewal of all other leases.
        """
        began = time.monotonic()
        beats = [
            (live.run.task_id, live.run.epoch, live.run.run_id, live.lease)
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
            elif key not in locked and self.renews(live):
                live.lost = True
                self.remove(live)
        return {key: live for key, live in runs.items() if key in locked}

    def _write_progress(self, lives: Sequence[LiveRun]) -> None:
        """Write what these runs have reported since the last heartbeat.

        If that fails, each report is written alone, for at most half of HEARTBEAT. One that the
        database refuses is not written again; any other is repeated at the next heartbeat.
        """
        reports = [
            (live, live.progress)
            for live in lives
            if live.progress is not None and live.progress is not live.written_progress
        ]
        until = time.monotonic() + conf.settings().HEARTBEAT / 2
        if not reports or self._wrote(reports) or len(reports) == 1:
            return
        for report in reports:
            if time.monotonic() < until:
                self._wrote([report])

    def _wrote(self, reports: Sequence[tuple[LiveRun, str]]) -> bool:
        """Write these reports together; return whether there was no error."""
        try:
            with dedicated_connection():
                written = attempts.write_progress(
                    [
                        (live.run.task_id, live.run.epoch, live.run.run_id, text)
                        for live, text in reports
                    ]
                )
        except Exception as error:  # noqa: BLE001 - it must not end the heartbeat
            ((live, text), *others) = reports
            if not others:
                refused = isinstance(error, DataError | IntegrityError)
                live.written_progress = text if refused else live.written_progress
                logger.warning(
                    "The progress of run %s was not written: %s",
                    live.run.celery_id,
                    type(error).__name__,
                    extra={"task_id": str(live.run.task_id)},
                )
            return False
        for live, text in reports:
            if live.run.run_id in written:
                live.written_progress = text
        return True
