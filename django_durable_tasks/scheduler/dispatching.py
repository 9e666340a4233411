"""What one scheduler publishes, and when: rows that are due by a poll, rows that come at their very instant.

A poll asks each queue for its first row, publishes what is due within the window of published rows, and looks ahead:
rows that will be due within LOOKAHEAD seconds go into an index in memory. At its instant a row is claimed by its id, so
that nothing stands between the instant and the ring but one statement. The index is a convenience: what it lacks, or
lost, the next poll finds; what it holds wrongly, the claim refuses.
"""

from __future__ import annotations

import random
import time
import uuid
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial

from django_durable_tasks.celery import dispatcher
from django_durable_tasks.conf import settings
from django_durable_tasks.lifecycle import claims, letting_go, limits, reckoning
from django_durable_tasks.lifecycle.connections import own
from django_durable_tasks.lifecycle.heads import heads
from django_durable_tasks.lifecycle.limits import Picture
from django_durable_tasks.nearby.due_index import Due, DueIndex
from django_durable_tasks.rules.shards import SHARDS, UNSERVED_AFTER

Attempt = Callable[[str, Callable[[], int], float], int]
_WITHIN = 60.0
_BUSY_POLL = 0.1
_FULL_PAUSE = 0.02  # seconds: a window that has just been filled lasts longer than that
_BUSY_FOR = 5.0  # seconds: what follows from what just happened is not long in coming
_SHORTEST = 0.005
_BREATH_A_ROW, _LONGEST_BREATH = 0.002, 0.015
"""After a claim by ids the next one waits as long as it took, or so long for each of its rows (seconds): where many
rows come, many go together, and what a claim costs is shared."""
_URGENT = 9
"""Rows of this priority go though the window is full."""
_CLOSEST = timedelta(microseconds=300)
"""Our reckoning of the database's clock may be ahead of it by so much: a claim must not come early and miss."""


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

    def sent_since(self, queue: str) -> int:
        """Return how many rows were published since the last look."""
        return self._sent[queue]

    def rate(self, queue: str) -> float:
        """Return the starts per second of this queue."""
        return self._rate.get(queue, 0.0)


class Dispatching:
    """The hands of a scheduler that publish; ``shards`` None: it is alone, and serves everything."""

    def __init__(self, node: uuid.UUID, index: DueIndex, attempt: Attempt) -> None:
        self.node, self.index = node, index
        self.shards: frozenset[int] | None = None
        self.scanned_at: float | None = None
        self.sent_at: float | None = None
        self._attempt = attempt
        self._pace, self._picture = Pace(), Picture()
        self._clock: reckoning.Look | None = None
        self._heads: dict[str, datetime] = {}
        self._poll_at = self._busy_until = self._breathe_until = 0.0
        self._popped_nothing = self._asked = False

    @property
    def now(self) -> datetime:
        """Return the instant of the database's clock, as it was read at the last poll and has gone on since."""
        if self._clock is None:
            return datetime.now(UTC)
        return self._clock.said + timedelta(seconds=time.monotonic() - (self._clock.asked + self._clock.heard) / 2)

    def serve(self, shards: frozenset[int]) -> None:
        """Serve these shards from now on."""
        mine = None if len(shards) == SHARDS else shards
        if mine != self.shards:
            self.shards, self._poll_at = mine, 0.0

    def look_now(self) -> None:
        """Poll at the next turn: rows were born or moved that are due soon; safe from other threads."""
        self._asked = True

    def hurry(self) -> None:
        """Poll at the next turn, and often for some seconds."""
        self._poll_at, self._busy_until = 0.0, time.monotonic() + _BUSY_FOR

    def turn(self) -> int:
        """Publish what has become due; return how many rows."""
        sent = self._at_their_instant()
        if time.monotonic() >= self._next_poll_at():
            sent += self.poll()
        if sent:
            self.sent_at = time.monotonic()
            self._busy_until = self.sent_at + _BUSY_FOR
        return sent

    def poll(self) -> int:
        """Publish what is due, by the rows; look ahead. Return how many rows were published."""
        self._asked = False  # first, so that what is asked for meanwhile is done
        with own():
            self._clock = reckoning.look()
        gone = self._attempt("Letting parked rows go", partial(self._let_go, self._clock.said), _WITHIN)
        with own():
            if gone:
                self._clock = reckoning.look()  # they are due since a moment
            self._heads = heads()
            now = self._clock.said
            soon = now + timedelta(seconds=max(settings().LOOKAHEAD, 2 * settings().POLL))
            coming = [queue for queue, head in self._heads.items() if head <= soon]
            if coming:
                self._picture = limits.picture()
        due = [queue for queue in coming if self._heads[queue] <= now]
        random.shuffle(due)  # a limit of all queues has room for a few: not always for the same ones
        if coming:
            self._pace.look(self._picture.queued)
            limits.move_at(self._pace.rate)
        numbers = [self._dispatch(queue, now) for queue in due]
        if coming:
            self._attempt("Looking ahead", partial(self._look_ahead, coming, now, soon), _WITHIN)
        self.scanned_at = time.monotonic()
        self._poll_at = self.scanned_at + self._pause([*numbers, gone])
        return sum(numbers)

    def _next_poll_at(self) -> float:
        """Return when to poll next: who is asked to look comes earlier, but never without a pause."""
        return min(self._poll_at, (self.scanned_at or 0.0) + _FULL_PAUSE) if self._asked else self._poll_at

    def _pause(self, numbers: list[int]) -> float:
        """Return how long (seconds) to wait with the next poll after one that moved so many rows of each queue."""
        if settings().BATCH_SIZE in numbers:
            return 0.0  # there is more, and room for it
        if any(numbers):
            return _FULL_PAUSE
        return min(_BUSY_POLL if time.monotonic() < self._busy_until else settings().POLL, settings().POLL)

    def _let_go(self, now: datetime) -> int:
        with own():
            return letting_go.let_go(now, settings().BATCH_SIZE)

    def _dispatch(self, queue: str, now: datetime) -> int:
        room, least = self._room(queue), 0
        if not room:
            urgent = self._picture.urgent_room(queue, self._pace.rate(queue)) - self._pace.sent_since(queue)
            room, least = max(0, urgent), _URGENT
        dispatch = partial(dispatcher.dispatch, queue, now, room, self.node, self.shards, least)
        number = self._attempt(f"Dispatching queue {queue!r}", dispatch, _WITHIN)
        self._pace.sent(queue, number)
        return number

    def _room(self, queue: str) -> int:
        room = self._picture.room(queue, self._pace.rate(queue)) - self._pace.sent_since(queue)
        return max(0, min(room, settings().BATCH_SIZE))

    def _look_ahead(self, queues: list[str], now: datetime, soon: datetime) -> int:
        with own():
            for queue in queues:
                found = claims.coming(queue, now, soon, 10 * settings().BATCH_SIZE, self.shards)
                self.index.add(Due(*row) for row in found)
        return 0

    def _at_their_instant(self) -> int:
        """Claim by their ids the rows whose instant has come; the poll sees to those that could not go."""
        began = time.monotonic()
        if began < self._breathe_until:
            return 0
        found = self._popped(self.now - _CLOSEST)
        self._popped_nothing = not found
        if not found:
            return 0
        going = Counter(due.queue for due in found)
        room = {queue: self._room(queue) for queue in going}
        ids = [due.task_id for due in found if going[due.queue] <= room[due.queue]]
        claim = partial(dispatcher.dispatch_these, ids, self.now, self.node)
        sent = self._attempt("Dispatching rows at their instant", claim, _WITHIN) if ids else 0
        if sent == len(found):
            for queue, number in going.items():
                self._pace.sent(queue, number)
        else:
            self._poll_at = min(self._poll_at, time.monotonic() + _FULL_PAUSE)
        ended = time.monotonic()
        self._breathe_until = ended + min(max(ended - began, _BREATH_A_ROW * len(found)), _LONGEST_BREATH)
        return sent

    def _popped(self, now: datetime) -> list[Due]:
        limit, mine = settings().BATCH_SIZE, self.shards
        found = self.index.pop_due(now, limit, mine)
        if mine is not None and len(found) < limit:
            found += self.index.pop_due(now - timedelta(seconds=UNSERVED_AFTER), limit - len(found))
        return found

    def rest(self) -> float:
        """Return how long (seconds) there is nothing to publish, at most until the next poll."""
        now = self.now
        waits = [self._next_poll_at() - time.monotonic()]
        waits += [(head + _CLOSEST - now).total_seconds() for head in self._heads.values() if head > now]
        next_at = self.index.next_at()
        if next_at is not None:
            until = (next_at + _CLOSEST - now).total_seconds()
            if until <= 0 and self._popped_nothing:
                until = _SHORTEST  # it is of another node's shards, and stays there while that node is at it
            waits.append(max(until, self._breathe_until - time.monotonic()))
        return max(0.0, min(waits))
