"""The loop: one round, then sleep as long as the round says. It ends when told, never because something is away."""

from __future__ import annotations

import logging
import os
import platform
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import partial
from queue import Empty, SimpleQueue

from django.db import Error

from django_durable_tasks.celery.worker import NodeBeat
from django_durable_tasks.conf import settings
from django_durable_tasks.lifecycle import nodes, recurrence
from django_durable_tasks.lifecycle.clock import database_now
from django_durable_tasks.lifecycle.connections import own
from django_durable_tasks.lifecycle.nodes import NodeReport, Vigil
from django_durable_tasks.models import NodeKind
from django_durable_tasks.nearby.shared import due_index
from django_durable_tasks.nearby.wakeups import Wakeups
from django_durable_tasks.rules.shards import SHARDS, shards_of
from django_durable_tasks.scheduler.dispatching import Dispatching
from django_durable_tasks.scheduler.duties import Rota
from django_durable_tasks.scheduler.leader import Leader

logger = logging.getLogger("django_durable_tasks.scheduler")
_RECUR_WITHIN = 60.0
_RECUR_EVERY = 0.1


class Scheduler:
    """One scheduler process: dispatches on every node, sweeps where it leads."""

    def __init__(self, name: str = "", *, shards: frozenset[int] | None = None) -> None:
        self.node = uuid.uuid4()
        self.name = name or f"scheduler@{platform.node()}:{os.getpid()}"
        self.leader = Leader(self.node, self._woken_by_duties)
        self.dispatching = Dispatching(self.node, due_index(), self._attempt)
        self.dispatching.shards = self._told_shards = shards
        self.wakeups = Wakeups(self._woken_by_rows, self._woken_by_duties)
        self._beat = NodeBeat(self.node, self.name, NodeKind.SCHEDULER, self._report)
        self._vigil, self._rota = Vigil(), Rota()
        self._look_at = self._recur_at = 0.0
        self._stopping, self._wake = False, SimpleQueue[None]()
        self._away, self._failing = False, set[str]()
        self._recurring_head: datetime | None = None

    def run(self) -> None:
        """Run until ``stop``; then resign and say goodbye."""
        self._beat.start()
        self.leader.start()
        self.wakeups.start()
        while not self._stopping:
            self._sleep(self.round())
        self.leader.stop()
        self.wakeups.stop()
        self._beat.leave()

    def run_once(self) -> int:
        """Dispatch what is due and, if the office is free, do every duty once; return how many rows were published."""
        self.leader.step()
        self._recur()
        sent = self.dispatching.poll()
        self._sweep()
        self.leader.resign()
        return sent

    def stop(self) -> None:
        """Ask the loop to end after the round in hand; safe in a signal handler, where an Event could deadlock."""
        self._stopping = True
        self._wake.put(None)

    def _sleep(self, seconds: float) -> None:
        with suppress(Empty):
            self._wake.get(timeout=seconds)
            while True:
                self._wake.get_nowait()

    def _woken_by_rows(self, at: datetime) -> None:
        self.dispatching.look_now()
        self._wake.put(None)

    def _woken_by_duties(self) -> None:
        self._rota.hurry()
        self._recur_at = 0.0
        self._wake.put(None)

    def round(self) -> float:
        """Do one round; return how long to sleep (seconds)."""
        try:
            delay = self._round()
        except Error as error:
            self._vigil.missed()
            if not self._away:
                logger.error("The database is away (%s); trying again.", type(error).__name__)
            self._away = True
            return settings().POLL
        if self._away:
            logger.warning("The database answers again.")
        self._away = False
        return delay

    def _round(self) -> float:
        self._look()
        if self._recur():
            self.dispatching.hurry()
        sent = self.dispatching.turn()
        if self._sweep():
            self.dispatching.hurry()
        return 0.0 if sent else self._rest()

    def _look(self) -> None:
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + settings().NODE_HEARTBEAT
        with own():
            nodes.beat(self.node, self._report())  # reads may go on where writes fail: that is no contact
            self._vigil.look(nodes.beats(), time.monotonic(), 3 * settings().NODE_HEARTBEAT)
            living = nodes.schedulers()
        living[self.node] = self._told_shards
        self.dispatching.serve(shards_of(self.node, living))

    def _report(self) -> NodeReport:
        hands = self.dispatching
        kept = self._told_shards is not None
        return NodeReport(
            shards=range(SHARDS) if hands.shards is None else hands.shards, keeps_to_shards=kept,
            scanned=hands.scanned_at, started=hands.sent_at, index_state=hands.index.state,
            wakeups_state=self.wakeups.told,
        )  # fmt: skip

    def _recur(self) -> int:
        """Give birth to the fire times that have come, where this scheduler leads; what is born is dispatched next."""
        term = self.leader.term
        if not self.leader.leading() or term is None:
            self._recurring_head, self._recur_at = None, 0.0
            return 0
        head = self._recurring_head
        if time.monotonic() < self._recur_at and (head is None or head > self.dispatching.now):
            return 0
        self._recur_at = time.monotonic() + min(_RECUR_EVERY, settings().POLL)
        return self._attempt("Firing recurring tasks", partial(self._fire, term), _RECUR_WITHIN)

    def _fire(self, term: int) -> int:
        with own():
            self._recurring_head, now = recurrence.head(), database_now()
            if self._recurring_head is None or self._recurring_head > now:
                return 0
            born = recurrence.fire_due(now, settings().BATCH_SIZE, term)
            self._recurring_head = recurrence.head()
        return born

    def _sweep(self) -> int:
        """Do the duties that are due; return how much they did, which may want dispatching at once."""
        due = self._rota.due() if self.leader.leading() else []
        return sum(
            self._attempt(f"The duty {duty.name}", partial(duty.act, self.dispatching.now, self._vigil), duty.within)
            for duty in due
        )

    def _attempt(self, what: str, act: Callable[[], int], within: float) -> int:
        """Do one thing; what fails is told once, is tried again in its turn, and holds nothing else up."""
        self.leader.watch(within)
        try:
            number = act()
        except Exception as error:
            if what not in self._failing:
                logger.exception("%s failed (%s); everything else goes on.", what, type(error).__name__)
            self._failing.add(what)
            return 0
        finally:
            self.leader.watch(None)
        if what in self._failing:
            self._failing.discard(what)
            logger.warning("%s works again.", what)
        return number

    def _rest(self) -> float:
        """Return how long to sleep: until the next row or fire time, the next poll or the next duty."""
        waits = [self.dispatching.rest(), settings().POLL]
        if self._recurring_head is not None:
            waits.append((self._recurring_head - self.dispatching.now).total_seconds())
        return max(0.0, min(waits))
