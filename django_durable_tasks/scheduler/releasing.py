"""Releases tasks that wait for a limit, on a thread of its own.

Every scheduler does this, not only the leader. The dispatch thread claims the released tasks. If
two schedulers, or this thread and a claim, use the same capacity, the claim makes the tasks that
exceed it wait.

While tasks wait for concurrency limits only, this is a safety net that runs once per POLL: the
process of an ended run hands its capacity over (``tasks/attempts.py``).
"""

from __future__ import annotations

from collections.abc import Callable

from django.db import Error

from django_durable_tasks.conf import settings
from django_durable_tasks.limits import release, waitlist
from django_durable_tasks.scheduler.threads import PeriodicThread, Steps
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.store.connections import dedicated_connection

_STEP = "Releasing tasks that wait for a limit"
_TIME_LIMIT = 60.0
_AFTER_RELEASE = 0.02  # seconds: released tasks that are short free their capacity soon
_BUSY_INTERVAL = 0.1


class Releasing(PeriodicThread):
    """``busy`` returns whether tasks were dispatched in the last seconds, ``released`` is called
    after a batch to dispatch it.
    """

    def __init__(
        self, steps: Steps, busy: Callable[[], bool], released: Callable[[], None]
    ) -> None:
        super().__init__("releasing", self.round)
        self._steps, self._busy, self._released = steps, busy, released
        self._idle = True

    def tasks_dispatched(self) -> None:
        """Read the waitlists often from now on, because dispatched tasks free capacity when they
        end; safe to call from other threads.
        """
        if self._idle:
            self.wake()

    def round(self) -> float:
        """Release one batch; return the seconds until the next round."""
        number = self._steps.attempt(_STEP, self._release, _TIME_LIMIT)
        if number:
            self._released()
        self._idle = not number and not self._busy()
        if not number and release.has_more_pages():
            return min(_BUSY_INTERVAL, settings().POLL)
        if self._idle or (not number and release.wait_for_endings()):
            return settings().POLL
        if number >= settings().BATCH_SIZE:
            return 0.0
        return min(_AFTER_RELEASE if number else _BUSY_INTERVAL, settings().POLL)

    def _release(self) -> int:
        try:
            return self._release_batch()
        except Error:
            if _database_answers():
                raise
            return 0  # the dispatch thread logs the outage

    def _release_batch(self) -> int:
        with dedicated_connection():
            if not waitlist.scopes_after("", 1):  # the only statement while no task waits
                return 0
            return release.release_waiting(database_now(), settings().BATCH_SIZE)


def _database_answers() -> bool:
    try:
        with dedicated_connection():
            database_now()
    except Error:
        return False
    return True
