"""Creates the occurrences of recurring tasks at their fire times, on the leader."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial

from django_durable_tasks.conf import settings
from django_durable_tasks.scheduler.dispatch_loop import PublishWindows
from django_durable_tasks.scheduler.leader import Leader
from django_durable_tasks.scheduler.threads import PeriodicThread, Steps
from django_durable_tasks.schedules import trigger
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.store.connections import dedicated_connection

_TIME_LIMIT = 60.0
_RETRY_LOCKED_AFTER = 0.1
_STEP = "Firing recurring tasks"
_RECENT = timedelta(seconds=1)
"""While schedules are overdue by more than this, every second batch takes the schedules that became
due within this time. A backlog, for example after an outage, therefore does not delay the schedules
that become due now.
"""


class Triggering(PeriodicThread):
    """The thread that fires schedules; ``fired`` is called after each batch to dispatch it."""

    def __init__(
        self, leader: Leader, steps: Steps, windows: PublishWindows, fired: Callable[[], None]
    ) -> None:
        super().__init__("triggering", self.round)
        self._leader, self._steps, self._fired = leader, steps, fired
        self._windows = windows
        self._next_in = 0.0
        self._full = self._later_first = False

    def round(self) -> float:
        """Fire one batch of due schedules; return the seconds until the next round."""
        term = self._leader.term
        if not self._leader.leading() or term is None:
            return settings().POLL
        self._next_in = min(_RETRY_LOCKED_AFTER, settings().POLL)
        if self._steps.attempt(_STEP, partial(self._fire, term), _TIME_LIMIT):
            self._fired()
        return self._next_in

    def _fire(self, term: int) -> int:
        with dedicated_connection():
            head, now, asked = trigger.head(), database_now(), time.monotonic()
            number = 0
            if head is not None and head <= now:
                number = self._batch(term, now, head)
                head = trigger.head()
        wait = (
            settings().POLL
            if head is None
            else (head - now).total_seconds() - (time.monotonic() - asked)
        )
        # A due schedule that did not fire is locked by another transaction.
        self._next_in = min(
            settings().POLL,
            wait if number or wait > 0 else min(_RETRY_LOCKED_AFTER, settings().POLL),
        )
        return number

    def _batch(self, term: int, now: datetime, head: datetime) -> int:
        """Fire the oldest due schedules or, in turns with them while there is a backlog, later
        ones.

        Many schedules that are due at the same instant, such as new ones, therefore do not delay
        those that become due after it. Schedules with different times are fired in their order
        until they are overdue by more than _RECENT.
        """
        limit, recent = settings().BATCH_SIZE, now - _RECENT
        self._later_first = (self._full or head <= recent) and not self._later_first
        if self._later_first:
            after = max(head, recent)
            number = trigger.fire_due(now, limit, term, after=after, windows=self._windows)
            if number:
                return number
        number = trigger.fire_due(now, limit, term, windows=self._windows)
        self._full = number >= limit
        return number
