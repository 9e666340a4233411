"""Creates the occurrences of recurring tasks at their fire times, where this scheduler leads."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from django_durable_tasks.conf import settings
from django_durable_tasks.lifecycle import recurrence
from django_durable_tasks.lifecycle.clock import database_now
from django_durable_tasks.lifecycle.connections import own
from django_durable_tasks.scheduler.beside import Beside
from django_durable_tasks.scheduler.leader import Leader
from django_durable_tasks.scheduler.steps import Steps

_WITHIN = 60.0
_AGAIN = 0.1
_WHAT = "Firing recurring tasks"


class Triggering(Beside):
    """The thread that fires; ``fired`` is called after each batch, so that what it created is dispatched."""

    def __init__(self, leader: Leader, steps: Steps, fired: Callable[[], None]) -> None:
        super().__init__("triggering", self.round)
        self._leader, self._steps, self._fired = leader, steps, fired
        self._next_in = 0.0

    def round(self) -> float:
        """Fire what is due; return after how long (seconds) to look again."""
        term = self._leader.term
        if not self._leader.leading() or term is None:
            return settings().POLL
        self._next_in = min(_AGAIN, settings().POLL)
        if self._steps.attempt(_WHAT, partial(self._fire, term), _WITHIN):
            self._fired()
        return self._next_in

    def _fire(self, term: int) -> int:
        with own():
            head, now, asked = recurrence.head(), database_now(), time.monotonic()
            number = 0
            if head is not None and head <= now:
                number = recurrence.fire_due(now, settings().BATCH_SIZE, term)
                head = recurrence.head()
        wait = settings().POLL if head is None else (head - now).total_seconds() - (time.monotonic() - asked)
        # What is due and did not fire is locked by another transaction.
        self._next_in = min(settings().POLL, wait if number or wait > 0 else min(_AGAIN, settings().POLL))
        return number
