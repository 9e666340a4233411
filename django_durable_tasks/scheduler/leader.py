"""Who sweeps: one scheduler at a time, by a lease row on the database's clock.

A reign is (holder, term): the holder is a random boot id, the term only grows. The lease is renewed on a thread and a
connection of its own, with short time limits, so that a slow duty never costs the office and a stuck one does. The
leader trusts its lease a little less long than it lasts, counted by its own monotonic clock from before the renewing
request left: a process that slept wakes up deposed. Doubt means stepping down. Nothing needs a leader to be safe: two
at once waste work and double nothing, because every write is guarded by status and epoch.

After two involuntary losses within a minute the lease widens to 15 seconds: the machine is too slow for a short one.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable

from django.db import Error

from django_durable_tasks.conf import settings
from django_durable_tasks.lifecycle import leadership
from django_durable_tasks.lifecycle.connections import LEADER, on_sqlite, own
from django_durable_tasks.scheduler.beside import log_failure
from django_durable_tasks.signals import leadership_changed

logger = logging.getLogger("django_durable_tasks.scheduler")
_MARGIN = 0.1
_WIDE = (15.0, 3.0)
_LOSSES, _WITHIN = 2, 60.0


def terms() -> tuple[float, float]:
    """Return how long a lease lasts and how often it is renewed (seconds)."""
    on_file = on_sqlite()
    return settings().LEADER_LEASE or (20.0 if on_file else 4.0), settings().LEADER_RENEW or (5.0 if on_file else 1.0)


class Leader(threading.Thread):
    """Campaigns, renews and resigns; ``leading()`` is true only while this process may trust its lease.

    ``on_lead`` is called on this thread once the office is taken, so that a loop that sleeps begins its duties at once.
    """

    def __init__(self, holder: uuid.UUID, on_lead: Callable[[], None] = lambda: None) -> None:
        super().__init__(name="durable-leader", daemon=True)
        self.holder, self._on_lead = holder, on_lead
        self.term: int | None = None
        self._lease, self._renew = terms()
        self._trusted_until = 0.0
        self._steps_until: dict[int, float] = {}
        self._losses: deque[float] = deque(maxlen=_LOSSES)
        self._stop_asked = threading.Event()
        self._failing = False

    def leading(self) -> bool:
        """Return whether this process may act as the leader at this instant."""
        return self.term is not None and time.monotonic() < self._trusted_until

    def watch(self, seconds: float | None) -> None:
        """Begin a step of the calling thread that should take less than ``seconds``; with None, end it."""
        if seconds is None:
            self._steps_until.pop(threading.get_ident(), None)
        else:
            self._steps_until[threading.get_ident()] = time.monotonic() + seconds

    def run(self) -> None:
        """Campaign and renew until told to stop, then resign; no exception ends this thread."""
        while not self._stop_asked.is_set():
            try:
                self.step()
            except BaseException as error:  # noqa: BLE001 - a receiver may call sys.exit(), which ends a thread silently
                log_failure(error, "A step of the leader failed; the next one follows.")
            # A follower looks four times as often, so that a resigned office is taken within a quarter of a renewal.
            self._stop_asked.wait(self._renew if self.term is not None else self._renew / 4)
        self.resign()

    def stop(self) -> None:
        """Resign and end; returns when the office is free."""
        self._stop_asked.set()
        self.join(timeout=5)

    def step(self) -> None:
        """Take one step: campaign, or renew; never raises for a database that is away."""
        if self.term is not None and self._stuck():
            logger.error("A job exceeded its time limit; this scheduler gives up leadership, term %d.", self.term)
            self.resign()
            return
        began, before = time.monotonic(), self.term
        try:
            with own(LEADER):
                held = self._hold()
            self._failing = False
        except Exception as error:
            held, unexpected = None, not isinstance(error, Error)
            if unexpected and not self._failing:
                logger.exception("Could not acquire or renew the leader's lease. Retrying.")
            self._failing = unexpected
        if held:
            self._trusted_until = began + self._lease * (1 - _MARGIN)
            if before is None:
                self._on_lead()
        elif self.term is not None and (held is False or time.monotonic() >= self._trusted_until):
            self._lose()

    def _stuck(self) -> bool:
        # A copy, made in one step of the interpreter: other threads begin and end their steps meanwhile.
        return time.monotonic() > min(list(self._steps_until.values()), default=float("inf"))

    def _hold(self) -> bool:
        if self.term is not None:
            return leadership.renew(self.holder, self.term, self._lease)
        if self._stuck():
            return False
        term = leadership.take(self.holder, self._lease)
        if term is None:
            return False
        self.term = term
        logger.info("This scheduler is now the leader, term %d.", term)
        leadership_changed.send_robust(type(self), leading=True, term=term)
        return True

    def _lose(self) -> None:
        term, self.term = self.term, None
        logger.warning("This scheduler lost leadership, term %s.", term)
        leadership_changed.send_robust(type(self), leading=False, term=term)
        now = time.monotonic()
        if len(self._losses) == _LOSSES - 1 and now - self._losses[0] < _WITHIN and self._lease < _WIDE[0]:
            self._lease, self._renew = _WIDE
            logger.warning("Leadership was lost twice within a minute; the leader's lease is now %g s.", self._lease)
        self._losses.append(now)
        while len(self._losses) > _LOSSES - 1:
            self._losses.popleft()

    def resign(self) -> None:
        """Give the office up at once, so that another scheduler takes it without waiting for the lease."""
        term, self.term = self.term, None
        if term is None:
            return
        try:
            with own(LEADER):
                leadership.resign(self.holder, term)
        except Exception as error:  # noqa: BLE001 - the lease ends by itself, and this thread goes on
            logger.warning("Could not release the leader's lease; it expires by itself: %s", type(error).__name__)
        leadership_changed.send_robust(type(self), leading=False, term=term)
