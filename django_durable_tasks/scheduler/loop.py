"""The loop: one round, then sleep as long as the round says. It ends when told, never because something is away."""

from __future__ import annotations

import logging
import os
import platform
import time
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from queue import Empty, SimpleQueue

from django.db import Error

from django_durable_tasks.celery import dispatcher
from django_durable_tasks.celery.worker import NodeBeat
from django_durable_tasks.conf import settings
from django_durable_tasks.lifecycle import claims, limits, nodes, recurrence
from django_durable_tasks.lifecycle.clock import database_now
from django_durable_tasks.lifecycle.connections import own
from django_durable_tasks.lifecycle.nodes import Vigil
from django_durable_tasks.models import NodeKind
from django_durable_tasks.scheduler.duties import Rota
from django_durable_tasks.scheduler.leader import Leader

logger = logging.getLogger("django_durable_tasks.scheduler")
_SHORTEST_SLEEP = 0.005
_BUSY_SLEEP = 0.1
_BUSY_FOR = 5.0  # seconds: what follows from what just happened is not long in coming
_DISPATCH_WITHIN = 60.0
_RECUR_WITHIN = 60.0


class Pace:
    """How fast each queue moves: rows that left QUEUED between two looks, per second."""

    def __init__(self) -> None:
        self._at = time.monotonic()
        self._queued: Counter[str] = Counter()
        self._sent: Counter[str] = Counter()
        self._rate: dict[str, float] = {}

    def look(self, queued: Counter[str]) -> None:
        """Take in how many rows wait published now."""
        now = time.monotonic()
        elapsed = max(now - self._at, 0.001)
        for queue in self._queued | self._sent | queued:
            left = max(0, self._queued[queue] + self._sent[queue] - queued[queue])
            # Falls slowly, so that one look at an idle moment does not close the window.
            self._rate[queue] = max(left / elapsed, self._rate.get(queue, 0.0) * 0.9)
        self._at, self._queued, self._sent = now, Counter(queued), Counter()

    def sent(self, queue: str, number: int) -> None:
        """Take in that so many rows were published."""
        self._sent[queue] += number

    def rate(self, queue: str) -> float:
        """Return the starts per second of this queue."""
        return self._rate.get(queue, 0.0)


class Scheduler:
    """One scheduler process: dispatches on every node, sweeps where it leads."""

    def __init__(self, name: str = "") -> None:
        self.node = uuid.uuid4()
        self.name = name or f"scheduler@{platform.node()}:{os.getpid()}"
        self.leader = Leader(self.node)
        self._beat = NodeBeat(self.node, self.name, NodeKind.SCHEDULER)
        self._vigil, self._rota, self._pace = Vigil(), Rota(), Pace()
        self._look_at = self._busy_until = 0.0
        self._stopping, self._wake = False, SimpleQueue[None]()
        self._away, self._failing = False, set[str]()
        self._recurring_head: datetime | None = None
        self._now, self._read_at, self._heads = datetime.now(UTC), time.monotonic(), dict[str, datetime]()

    def run(self) -> None:
        """Run until ``stop``; then resign and say goodbye."""
        self._beat.start()
        self.leader.start()
        while not self._stopping:
            delay = self.round()
            with suppress(Empty):
                self._wake.get(timeout=delay)
        self.leader.stop()
        self._beat.leave()

    def run_once(self) -> int:
        """Dispatch what is due and, if the office is free, do every duty once; return how many rows were published."""
        self.leader.step()
        self._recur()
        sent = self._dispatch_all()
        self._sweep()
        self.leader.resign()
        return sent

    def stop(self) -> None:
        """Ask the loop to end after the round in hand; safe in a signal handler, where an Event could deadlock."""
        self._stopping = True
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
        born = self._recur()
        sent = self._dispatch_all()
        swept = self._sweep()
        if sent or born or swept:
            self._busy_until = time.monotonic() + _BUSY_FOR
            return _SHORTEST_SLEEP
        return self._until_next_head()

    def _look(self) -> None:
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + settings().NODE_HEARTBEAT
        with own():
            nodes.beat(self.node)  # reads may go on where writes fail: that is no contact
            self._vigil.look(nodes.beats(), time.monotonic(), 3 * settings().NODE_HEARTBEAT)

    def _recur(self) -> int:
        """Give birth to the fire times that have come, where this scheduler leads; what is born is dispatched next."""
        term = self.leader.term
        if not self.leader.leading() or term is None:
            self._recurring_head = None
            return 0
        return self._attempt("Firing recurring tasks", partial(self._fire, term), _RECUR_WITHIN)

    def _fire(self, term: int) -> int:
        with own():
            self._recurring_head, now = recurrence.head(), database_now()
            if self._recurring_head is None or self._recurring_head > now:
                return 0
            born = recurrence.fire_due(now, settings().BATCH_SIZE, term)
            self._recurring_head = recurrence.head()
        return born

    def _dispatch_all(self) -> int:
        with own():
            now, heads = database_now(), claims.heads()
            self._now, self._read_at, self._heads = now, time.monotonic(), heads
            due = [queue for queue, head in heads.items() if head <= now]
            picture = limits.picture() if due else None
        if picture is None:
            return 0
        self._pace.look(picture.queued)
        sent = 0
        for queue in due:
            room = min(picture.room(queue, self._pace.rate(queue)), settings().BATCH_SIZE)
            dispatch = partial(dispatcher.dispatch, queue, now, room, self.node)
            number = self._attempt(f"Dispatching queue {queue!r}", dispatch, _DISPATCH_WITHIN)
            self._pace.sent(queue, number)
            sent += number
        return sent

    def _sweep(self) -> int:
        """Do the duties that are due; return how much they did, which may want dispatching at once."""
        due = self._rota.due() if self.leader.leading() else []
        return sum(
            self._attempt(f"The duty {duty.name}", partial(duty.act, self._now, self._vigil), duty.within)
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

    def _until_next_head(self) -> float:
        now = self._now + timedelta(seconds=time.monotonic() - self._read_at)
        heads = [*self._heads.values(), *([self._recurring_head] if self._recurring_head else [])]
        future = [(head - now).total_seconds() for head in heads if head > self._now]
        longest = settings().POLL
        if time.monotonic() < self._busy_until:
            longest = min(longest, _BUSY_SLEEP)
        return max(_SHORTEST_SLEEP, min([longest, *future]))
