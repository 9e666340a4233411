"""The due index of one scheduler if REDIS_URL is set, and the job that loads the set in Redis."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterable
from datetime import datetime, timedelta

from django_durable_tasks.limits.backpressure import heads
from django_durable_tasks.scheduler import redis_index
from django_durable_tasks.scheduler.due_index import DueEntry, DueIndex, MemoryDueIndex
from django_durable_tasks.scheduler.redis_index import HORIZON, RedisDueIndex, from_ms, instant_ms
from django_durable_tasks.tasks import claim

# The due index of one scheduler if REDIS_URL is set: the shared set in Redis while it is complete,
# otherwise one in memory.
#
# Tasks found by a poll that looks ahead are added here too. They complete the shared set with
# tasks whose writers could not reach Redis, and fill the index in memory while the shared set is
# not complete. Entries that are in memory when Redis is available again are popped as well. Two
# schedulers may pop the same task; one of them claims it.


logger = logging.getLogger("django_durable_tasks.due_index")
_REMEMBERED = 20_000


class SharedDueIndex:
    """A ``DueIndex`` for a scheduler with REDIS_URL. Calls do not wait for Redis while it is known
    to be unavailable.
    """

    def __init__(self, shared: RedisDueIndex) -> None:
        self._shared, self._own = shared, MemoryDueIndex()
        self._added: dict[uuid.UUID, datetime] = {}
        self._relied = True

    @property
    def state(self) -> str:
        """``redis``, or the reason and the interval of polling the database."""
        return self._shared.state

    def add(self, rows: Iterable[DueEntry]) -> None:
        """Add these entries: to Redis, once for each due time, or to memory while the set in Redis
        is not complete.
        """
        if not self._reliable():
            self._own.add(rows)
            return
        new = [due for due in rows if self._added.get(due.task_id) != due.at]
        if len(self._added) > _REMEMBERED:
            self._added.clear()
        self._added.update((due.task_id, due.at) for due in new)
        self._shared.add(new)

    def discard(self, ids: Iterable[uuid.UUID]) -> int:
        """Remove the entries of these tasks; return how many there were."""
        gone = list(ids)
        for task_id in gone:
            self._added.pop(task_id, None)
        return self._own.discard(gone) + self._shared.discard(gone)

    def next_at(self) -> datetime | None:
        """Return when the earliest entry is due."""
        instants = [at for at in (self._own.next_at(), self._shared.next_at()) if at is not None]
        return min(instants, default=None)

    def pop_due(
        self, now: datetime, limit: int, shards: frozenset[int] | None = None
    ) -> list[DueEntry]:
        """Remove and return entries that are due."""
        found = self._own.pop_due(now, limit, shards)
        found += self._shared.pop_due(now, limit - len(found), shards)
        for due in found:
            self._added.pop(due.task_id, None)
        return found

    def __len__(self) -> int:
        return len(self._own) + len(self._shared)

    def close(self) -> None:
        """Clear the entries in memory; the shared set stays."""
        self._own.close()
        self._shared.close()

    def _reliable(self) -> bool:
        relied = self._shared.filled_until is not None
        if relied != self._relied:
            self._relied = relied
            self._added.clear()
            if relied:
                logger.warning("The due index in Redis is complete; due tasks are read from it.")
            else:
                logger.warning("Due tasks are read from the database: %s.", self._shared.state)
        return relied


def due_index() -> DueIndex:
    """Return the index for a scheduler of this process: the shared one if Redis is configured,
    otherwise one in memory.
    """
    shared = redis_index.connection()
    return (
        MemoryDueIndex() if shared is None else SharedDueIndex(RedisDueIndex(shared, probe=False))
    )


# Loads the due index in Redis from the database, on the leader, in bounded steps.
#
# After each step a mark in Redis contains the instant up to which the index is complete.


_PAGE = 2_000
_WINDOW = timedelta(seconds=15)
_MOST = 100_000
_AT_ONCE = 1.0
_PLAUSIBLE = timedelta(hours=1)
"""A mark further ahead of the horizon was not written by a leader of this installation, so it is
not trusted.
"""


def fill_redis(now: datetime) -> int:
    """Add the tasks that are due within HORIZON of ``now`` to the set; return their
    number.

    Continues at the mark, for about a second, and stops at about 100,000 entries. Then the mark is
    set to the instant up to which the set is complete. Raises Error if the database is unavailable.
    """
    shared = redis_index.connection()
    if shared is None or not shared.open():
        return 0
    index, end, read = RedisDueIndex(shared, probe=False), time.monotonic() + _AT_ONCE, 0
    index.next_at()
    if not shared.open():
        return 0
    filled = index.filled_until
    if filled is not None and filled > now + HORIZON + _PLAUSIBLE:
        index.forget_mark()
        filled = None
    reached = _whole(now) if filled is None or filled < now else filled
    horizon = from_ms(instant_ms(now + HORIZON))
    queues = [queue for queue, head in heads().items() if head <= horizon]
    while reached < horizon and time.monotonic() < end and len(index) < _MOST:
        until = min(reached + _WINDOW, horizon)
        steps = [_fill_queue(index, queue, reached, until) for queue in queues]
        read += sum(number for number, _ in steps)
        reached = min((stopped for _, stopped in steps), default=until)
        if not index.filled(reached):
            break
    return read


def _fill_queue(
    index: RedisDueIndex, queue: str, after: datetime, until: datetime
) -> tuple[int, datetime]:
    """Return how many tasks were read, and the instant before which all tasks were read."""
    read, past = 0, None
    while True:
        rows = [DueEntry(*row) for row in claim.coming(queue, after, until, _PAGE, past=past)]
        index.add(rows)
        read += len(rows)
        if len(rows) < _PAGE:
            return read, until
        after, past = rows[-1].at, rows[-1].task_id
        if not 0 < len(index) < _MOST:  # the set is full, or Redis does not respond
            return read, _whole(after)


def _whole(at: datetime) -> datetime:
    """Truncate an instant to milliseconds, the precision of the mark."""
    return at.replace(microsecond=at.microsecond // 1000 * 1000)
