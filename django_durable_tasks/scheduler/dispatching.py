"""What one scheduler publishes, and when: rows that are due by a poll, rows that come at their very instant.

A poll asks each queue for its first row, publishes what is due within the window of published rows, and looks ahead:
rows that will be due within LOOKAHEAD seconds go into an index in memory. At its instant a row is claimed by its id, so
that nothing stands between the instant and the ring but one statement. The index is a convenience: what it lacks, or
lost, the next poll finds; what it holds wrongly, the claim refuses.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial

from django_durable_tasks.celery import dispatcher
from django_durable_tasks.celery.dispatcher import Dispatched
from django_durable_tasks.conf import settings
from django_durable_tasks.due_index.types import Due, DueIndex
from django_durable_tasks.lifecycle import claims, letting_go, limits, reckoning
from django_durable_tasks.lifecycle.clock import database_now
from django_durable_tasks.lifecycle.connections import own
from django_durable_tasks.lifecycle.heads import heads
from django_durable_tasks.lifecycle.limits import Picture
from django_durable_tasks.lifecycle.lines import URGENT
from django_durable_tasks.rules.demands import Demand
from django_durable_tasks.rules.shards import SHARDS, UNSERVED_AFTER
from django_durable_tasks.scheduler.turns import Turns

logger = logging.getLogger("django_durable_tasks.scheduler")
Attempt = Callable[[str, Callable[[], int], float], int]
_WITHIN = 60.0
_BUSY_POLL = 0.1
_FULL_PAUSE = 0.02  # seconds: a window that has just been filled lasts longer than that
_BUSY_FOR = 5.0  # seconds: what follows from what just happened is not long in coming
_SHORTEST = 0.005
_PASSES, _TOGETHER, _SMALLEST_PART = 4, 5, 10
"""A poll has at most so many passes. Each claims at most so many times BATCH_SIZE rows, of a queue at least so few."""
_IDLE = 0.01
"""A queue with fewer starts a second is forgotten."""
_BREATH_A_ROW, _LONGEST_BREATH = 0.002, 0.015
"""After a claim by ids the next one waits as long as it took, or so long for each of its rows (seconds): where many
rows come, many go together, and what a claim costs is shared."""
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
        seen = self._queued | self._sent | queued
        for queue in seen:
            left = max(0, self._queued[queue] + self._sent[queue] - queued[queue])
            # Falls slowly, so that one look at an idle moment does not close the window.
            self._rate[queue] = max(left / elapsed, self._rate.get(queue, 0.0) * 0.9)
        for queue in self._rate.keys() - seen.keys():
            self._rate[queue] *= 0.9
            if self._rate[queue] < _IDLE:
                del self._rate[queue]
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
        self._turns = Turns()
        self._apart = set[str]()
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
        """Poll at the next turn, and often for some seconds; safe from other threads."""
        self._asked, self._busy_until = True, time.monotonic() + _BUSY_FOR

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
            self._apart &= self._heads.keys()
            now = self._clock.said
            soon = now + timedelta(seconds=max(settings().LOOKAHEAD, 2 * settings().POLL))
            coming = [queue for queue, head in self._heads.items() if head <= soon]
            if coming:
                self._picture = limits.picture()
        due = [queue for queue in coming if self._heads[queue] <= now]
        if coming:
            self._pace.look(self._picture.queued)
            limits.move_at(self._pace.rate)
        sent, more = self._dispatch(due, now)
        if coming:
            self._attempt("Looking ahead", partial(self._look_ahead, coming, now, soon), _WITHIN)
        self.scanned_at = time.monotonic()
        self._poll_at = self.scanned_at + (0.0 if more or gone == settings().BATCH_SIZE else self._pause(sent or gone))
        return sent

    def _next_poll_at(self) -> float:
        """Return when to poll next: who is asked to look comes earlier, but never without a pause."""
        return min(self._poll_at, (self.scanned_at or 0.0) + _FULL_PAUSE) if self._asked else self._poll_at

    def _pause(self, moved: int) -> float:
        """Return how long (seconds) to wait with the next poll after one that moved so many rows and left none."""
        if moved:
            return _FULL_PAUSE
        return min(_BUSY_POLL if time.monotonic() < self._busy_until else settings().POLL, settings().POLL)

    def _let_go(self, now: datetime) -> int:
        with own():
            return letting_go.let_go(now, settings().BATCH_SIZE)

    def _dispatch(self, queues: list[str], now: datetime) -> tuple[int, bool]:
        """Publish due rows of these queues; return how many, and whether there may be more, and room for them.

        Each pass claims of all queues together, of each an equal part, so that a long queue holds up no other. If the
        limit is too low for all of them, the queues that were served longest ago come first.
        """
        batch, sent = settings().BATCH_SIZE, Counter[str]()
        left = {one.queue: one for one in map(self._demand, queues) if one.limit}
        for _ in range(_PASSES):
            if not left:
                break
            most = _TOGETHER * batch
            part = max(_SMALLEST_PART, most // len(left))
            asked = [left[queue]._replace(limit=min(left[queue].limit, part)) for queue in self._turns.ordered(left)]
            done = Dispatched()
            self._serve(done, asked, now, most)
            self._turns.served(done.taken)
            for queue, number in done.sent.items():
                self._pace.sent(queue, number)
            sent.update(done.sent)
            left = {
                one.queue: whole._replace(limit=whole.limit - done.claimed[one.queue])
                for one in asked
                if (whole := left[one.queue]).limit > done.claimed[one.queue]
                and (one.queue in done.cut or done.taken[one.queue] >= one.limit)
            }
        return sent.total(), bool(left) or any(number >= batch for number in sent.values())

    def _serve(self, done: Dispatched, asked: list[Demand], now: datetime, most: int) -> None:
        """Dispatch these queues together, but for those that failed alone the last time."""
        together = [one for one in asked if one.queue not in self._apart]
        apart = [one for one in asked if one.queue in self._apart]
        if together:
            self._serve_together(done, together, now, most)
        for one in apart:
            self._serve_alone(done, one, now)

    def _serve_together(self, done: Dispatched, asked: list[Demand], now: datetime, most: int) -> None:
        """Dispatch these queues; if that fails for one of them, in halves, so that only that one waits."""
        if len(asked) == 1:
            self._serve_alone(done, asked[0], now)
            return
        failed = list[Exception]()

        def act() -> int:
            try:
                return self._dispatch_of(done, asked, now, most - done.taken.total())
            except Exception as error:
                logger.debug("Dispatching %d queues together failed; trying halves.", len(asked), exc_info=True)
                failed.append(error)
                return 0

        self._attempt("Dispatching due rows", act, _WITHIN)
        if failed:
            with own():
                database_now()  # raises if the database is away: then each half would wait for it
            middle = len(asked) // 2
            for half in (asked[:middle], asked[middle:]):
                self._serve_together(done, half, now, most)

    def _serve_alone(self, done: Dispatched, one: Demand, now: datetime) -> None:
        """Dispatch this queue; if that fails, it stays apart until it succeeds, so that no joint claim fails of it."""

        def act() -> int:
            self._apart.add(one.queue)
            sent = self._dispatch_of(done, [one], now, one.limit)
            self._apart.discard(one.queue)
            return sent

        self._attempt(f"Dispatching queue {one.queue!r}", act, _WITHIN)

    def _dispatch_of(self, done: Dispatched, asked: list[Demand], now: datetime, limit: int) -> int:
        # A joint claim that failed may have published a part: the repetition must not overfill the windows.
        rest = [one._replace(limit=number) for one in asked if (number := one.limit - done.claimed[one.queue]) > 0]
        dispatcher.dispatch_of(done, rest, now, max(0, limit), self.node, self.shards)
        return done.sent.total()

    def _demand(self, queue: str) -> Demand:
        """Return how many rows of a queue may be published; of a full one the most urgent have a little room more."""
        room = self._room(queue)
        if room:
            return Demand(queue, room)
        urgent = self._picture.urgent_room(queue, self._pace.rate(queue)) - self._pace.sent_since(queue)
        return Demand(queue, max(0, urgent), URGENT)

    def _room(self, queue: str) -> int:
        room = self._picture.room(queue, self._pace.rate(queue)) - self._pace.sent_since(queue)
        return max(0, min(room, dispatcher.room_of(queue)))

    def _look_ahead(self, queues: list[str], now: datetime, soon: datetime) -> int:
        with own():
            found = claims.coming(queues, now, soon, 10 * settings().BATCH_SIZE, self.shards)
        self.index.add(Due(*row) for row in found)
        return 0

    def _at_their_instant(self) -> int:
        """Claim by their ids the rows whose instant has come; the poll sees to those that could not go."""
        began = time.monotonic()
        if began < self._breathe_until:
            return 0
        found = list[Due]()
        self._attempt("Reading the due index", lambda: self._pop(found), _WITHIN)
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

    def _pop(self, found: list[Due]) -> int:
        """Move what is due from the index to ``found``, which keeps what was popped before an error."""
        now, limit, mine = self.now - _CLOSEST, settings().BATCH_SIZE, self.shards
        found += self.index.pop_due(now, limit, mine)
        if mine is not None and len(found) < limit:
            found += self.index.pop_due(now - timedelta(seconds=UNSERVED_AFTER), limit - len(found))
        return len(found)

    def _next_at(self) -> datetime | None:
        """Return when the first entry of the index is due; None if the index fails."""
        found = list[datetime | None]()

        def look() -> int:
            found.append(self.index.next_at())
            return 0

        self._attempt("Looking into the due index", look, _WITHIN)
        return found[0] if found else None

    def rest(self) -> float:
        """Return how long (seconds) there is nothing to publish, at most until the next poll."""
        now = self.now
        waits = [self._next_poll_at() - time.monotonic()]
        waits += [(head + _CLOSEST - now).total_seconds() for head in self._heads.values() if head > now]
        next_at = self._next_at()
        if next_at is not None:
            until = (next_at + _CLOSEST - now).total_seconds()
            if until <= 0 and self._popped_nothing:
                until = _SHORTEST  # it is of another node's shards, and stays there while that node is at it
            waits.append(max(until, self._breathe_until - time.monotonic()))
        return max(0.0, min(waits))
