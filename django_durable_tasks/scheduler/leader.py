"""A leader died: how the next one is elected, and why nothing breaks in between.

1. All schedulers of a region compete for one row, ``SchedulerLease``. The three guarded UPDATEs on
   it are in ``cluster/nodes.py``: take an expired lease, renew the own one, release it.
   The holder is a random id per process. ``term`` grows by one with each new leader.
2. The leader renews the lease four times in LEADER_LEASE, on a thread and connection of its own
   with short timeouts, so that a slow job does not cost the leadership.
3. If the leader dies or loses the database, the lease expires after LEADER_LEASE seconds by the
   database's clock. Followers try to take it four times per renewal interval; one UPDATE succeeds.
   A leader that stops normally releases the lease, so that the next one does not have to wait.
4. A process that was suspended must not believe that it is still the leader. It therefore trusts
   its lease for nine tenths of the duration, by its own monotonic clock, counted from before the
   renewal was sent. It also resigns if one of its jobs exceeds its time limit.
5. ``on_lead`` wakes the threads of the new leader: they run all maintenance jobs
   (``jobs.py``) and fire overdue schedules by their misfire policy
   (``loop.Triggering``). Claims of the dead process are republished by
   ``reap_dead_nodes.py``. Until then every other scheduler continues to dispatch.
6. If two processes believe that they are the leader, they repeat work. No task is duplicated,
   because every write is guarded by status and epoch, and every fire time by a unique key.

After two involuntary losses within a minute the lease is extended to 15 seconds: the machine is too
slow for a short one.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable

from django.db import Error

from django_durable_tasks.cluster import nodes
from django_durable_tasks.conf import settings
from django_durable_tasks.scheduler.threads import log_failure
from django_durable_tasks.signals import leadership_changed
from django_durable_tasks.store.connections import LEADER, dedicated_connection, on_sqlite

logger = logging.getLogger("django_durable_tasks.scheduler")
_MARGIN = 0.1
"""Part of the lease in which the leader no longer trusts it."""
# Seconds: the lease and its renewal interval after two losses within the window.
_EXTENDED, _LOSS_WINDOW = (15.0, 3.0), 60.0


def terms() -> tuple[float, float]:
    """Return how long a lease lasts and how often it is renewed (seconds)."""
    default_lease, renew = (20.0, 5.0) if on_sqlite() else (4.0, 1.0)
    lease = settings().LEADER_LEASE or default_lease
    # A longer lease is renewed as often as the default one, a shorter one in time for two losses.
    return lease, min(renew, lease / 4)


class Leader(threading.Thread):
    """Takes, renews and releases the leader's lease; ``leading()`` returns whether it is valid.

    ``on_lead`` is called on this thread when this process becomes the leader.
    """

    def __init__(self, holder: uuid.UUID, on_lead: Callable[[], None] = lambda: None) -> None:
        super().__init__(name="durable-leader", daemon=True)
        self.holder, self._on_lead = holder, on_lead
        self.term: int | None = None
        self._lease, self._renew = terms()
        self._trusted_until = 0.0
        self._steps_until: dict[int, float] = {}
        self._lost_at = float("-inf")
        self._stop_asked = threading.Event()
        self._failing = False

    def leading(self) -> bool:
        """Return whether this process is the leader now."""
        return self.term is not None and time.monotonic() < self._trusted_until

    def watch(self, seconds: float | None) -> None:
        """Set the time limit of the step that the calling thread starts; None: it has ended."""
        if seconds is None:
            self._steps_until.pop(threading.get_ident(), None)
        else:
            self._steps_until[threading.get_ident()] = time.monotonic() + seconds

    def run(self) -> None:
        """Take or renew the lease until ``stop``, then release it; no exception ends the thread."""
        while not self._stop_asked.is_set():
            try:
                self.step()
            except BaseException as error:  # noqa: BLE001 - a receiver may call sys.exit(), which ends a thread silently
                log_failure(error, "A step of the leader failed; the next one follows.")
            # Followers try four times as often, so that a released lease is taken quickly.
            self._stop_asked.wait(self._renew if self.term is not None else self._renew / 4)
        self.resign()

    def stop(self) -> None:
        """Release the lease and end the thread; returns when the lease is free."""
        self._stop_asked.set()
        self.join(timeout=5)

    def step(self) -> None:
        """Take or renew the lease once; does not raise if the database is unavailable."""
        if self.term is not None and self._stuck():
            logger.error(
                "A job exceeded its time limit; this scheduler gives up leadership, term %d.",
                self.term,
            )
            self.resign()
            return
        began, before = time.monotonic(), self.term
        held: bool | None = False
        try:
            with dedicated_connection(LEADER):
                if self.term is not None:
                    held = nodes.renew_lease(self.holder, self.term, self._lease)
                elif not self._stuck():
                    self.term = nodes.take_lease(self.holder, self._lease)
                    held = self.term is not None
                if self.term is not None and before is None:
                    logger.info("This scheduler is now the leader, term %d.", self.term)
                    leadership_changed.send_robust(type(self), leading=True, term=self.term)
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
            self._lost()

    def _stuck(self) -> bool:
        # A copy, because other threads change the dict meanwhile.
        return time.monotonic() > min(list(self._steps_until.values()), default=float("inf"))

    def _lost(self) -> None:
        term, self.term = self.term, None
        logger.warning("This scheduler lost leadership, term %s.", term)
        leadership_changed.send_robust(type(self), leading=False, term=term)
        now, before = time.monotonic(), self._lost_at
        self._lost_at = now
        if now - before < _LOSS_WINDOW and self._lease < _EXTENDED[0]:
            self._lease, self._renew = _EXTENDED
            logger.warning(
                "Leadership was lost twice within a minute; the leader's lease is now %g s.",
                self._lease,
            )

    def resign(self) -> None:
        """Release the lease, so that another scheduler can take it before it expires."""
        term, self.term = self.term, None
        if term is None:
            return
        try:
            with dedicated_connection(LEADER):
                nodes.resign_lease(self.holder, term)
        except Exception as error:  # noqa: BLE001 - the lease expires by itself
            logger.warning(
                "Could not release the leader's lease; it expires by itself: %s",
                type(error).__name__,
            )
        leadership_changed.send_robust(type(self), leading=False, term=term)
