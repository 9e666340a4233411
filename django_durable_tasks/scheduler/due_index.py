"""The due index of a scheduler: the tasks that will be due within LOOKAHEAD seconds, in memory, or
in one sorted set in Redis, ``due_tasks``, that all schedulers of a region share.

An entry is a hint: the claim refuses a wrong one, and a poll finds a task without one. So nothing
is repaired here. A scheduler adds what its polls find in advance, removes what it claims, and
claims what it pops.
"""

from __future__ import annotations

import heapq
import logging
import math
import uuid
from collections.abc import Callable, Collection, Iterable
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeVar

from django_durable_tasks import conf
from django_durable_tasks.scheduler.notifier import (
    RedisConnection,
    from_ms,
    instant_ms,
    redis_connection,
    redis_scope,
)

logger = logging.getLogger("django_durable_tasks.due_index")
T = TypeVar("T")

# Milliseconds without a write after which the set expires: no installation pauses its polls for an
# hour.
_LIFE_MS = 3_600_000
# How many entries a scheduler remembers to have added, several times what it reads in advance.
_REMEMBERED = 20_000
# A pop reads this many times its limit, to find entries of its own shards among those of others.
_READ = 10
# The range of ``datetime`` in milliseconds since 1970: years 1 to 9999.
_EARLIEST_MS, _LATEST_MS = -62_135_596_800_000, 253_402_300_799_000


class DueEntry(NamedTuple):
    """A task that will be due. ``at`` is an instant of the database's clock, in UTC."""

    at: datetime
    queue: str
    task_id: uuid.UUID
    shard: int


class DueIndex:
    """Index in the memory of one scheduler. It contains entries of this scheduler's shards only."""

    state = "in memory"
    """Where the entries are, or the reason and the interval of polling the database."""

    def __init__(self) -> None:
        self._entries: dict[uuid.UUID, DueEntry] = {}
        # Also contains entries that were removed or replaced, until they are due.
        self._heap: list[DueEntry] = []

    def add(self, entries: Iterable[DueEntry]) -> None:
        """Add entries. One that was added before has no effect; another one of the same task
        replaces it.
        """
        for entry in entries:
            if self._entries.get(entry.task_id) != entry:
                self._entries[entry.task_id] = entry
                heapq.heappush(self._heap, entry)

    def discard(self, ids: Iterable[uuid.UUID]) -> int:
        """Remove the entries of these tasks; return how many this scheduler had added."""
        return sum(self._entries.pop(task_id, None) is not None for task_id in ids)

    def next_at(self) -> datetime | None:
        """Return when the earliest entry is due; None if there is no entry."""
        first = self._first()
        return None if first is None else first.at

    def _first(self) -> DueEntry | None:
        while self._heap and self._entries.get(self._heap[0].task_id) != self._heap[0]:
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None

    def pop_due(
        self, now: datetime, limit: int, shards: Collection[int] | None = None
    ) -> list[DueEntry]:
        """Remove and return at most ``limit`` entries due at ``now``, earliest first.

        If the caller crashes, the poll finds its tasks. ``shards``: in Redis, only entries of
        these shards.
        """
        popped = list[DueEntry]()
        while len(popped) < limit and (first := self._first()) is not None and first.at <= now:
            popped.append(self._entries.pop(first.task_id))
        return popped

    def __len__(self) -> int:
        """Return how many entries this scheduler has added that it has not removed."""
        return len(self._entries)


class RedisDueIndex(DueIndex):
    """Index in Redis: a sorted set with the due time in milliseconds as the score. No entry is
    returned twice, also not to two schedulers.

    While Redis is unavailable it is empty and loses what is added. It never tests whether Redis is
    available again, because the dispatch thread must not wait; the self-tests of the listener do.

    No content of Redis raises an exception. Members that cannot be read are removed, counted and
    logged when they are due, a key of another type at once.
    """

    def __init__(self, connection: RedisConnection) -> None:
        super().__init__()
        self._connection, self.key = connection, f"{redis_scope()}:due_tasks"
        self.unreadable = 0
        """How many members and keys this process removed because they could not be parsed."""

    @property
    def state(self) -> str:  # type: ignore[override]
        """``redis``, or the reason and the interval of polling the database."""
        removed = f"; {self.unreadable} unreadable entries were removed" if self.unreadable else ""
        if self._connection.open():
            return f"redis{removed}"
        return f"polling every {conf.settings().POLL:g} s: {self._connection.why}{removed}"

    def add(self, entries: Iterable[DueEntry]) -> None:
        """Add these entries, each once: polls find them several times."""
        if len(self._entries) > _REMEMBERED:
            self._entries.clear()
        new = [entry for entry in entries if self._entries.get(entry.task_id) != entry]
        scores = {_member(entry): instant_ms(entry.at) for entry in new}

        def write(client: Any) -> bool:
            with client.pipeline() as pipeline:
                pipeline.zadd(self.key, scores).pexpire(self.key, _LIFE_MS).execute()
            self._entries.update((entry.task_id, entry) for entry in new)
            return True

        if new and not self._request(write, False):
            self._entries.clear()  # Redis may have lost its data

    def discard(self, ids: Iterable[uuid.UUID]) -> int:
        """Remove those of these tasks that this scheduler has added."""
        added = (self._entries.pop(task_id, None) for task_id in ids)
        members = [_member(entry) for entry in added if entry is not None]
        if members:
            self._request(lambda client: client.zrem(self.key, *members), 0)
        return len(members)

    def next_at(self) -> datetime | None:
        """Return when the earliest entry of any shard is due."""
        first: list[tuple[str, float]] = self._request(
            lambda client: client.zrange(self.key, 0, 0, withscores=True), []
        )
        return _from_score(first[0][1]) if first else None

    def pop_due(
        self, now: datetime, limit: int, shards: Collection[int] | None = None
    ) -> list[DueEntry]:
        """Remove and return entries of these shards; each is returned to one scheduler only."""
        past = math.floor((now - from_ms(0)) / timedelta(milliseconds=1))
        most = limit if shards is None else _READ * limit

        def pop(client: Any) -> list[tuple[str, DueEntry | None]]:
            due = client.zrangebyscore(self.key, "-inf", past, 0, most, withscores=True)
            entries = [(member, _entry(member, score)) for member, score in due]
            accepted = [
                (member, entry)
                for member, entry in entries
                if shards is None or entry is None or entry.shard in shards
            ][:limit]
            with client.pipeline(transaction=False) as pipeline:
                for member, _ in accepted:
                    pipeline.zrem(self.key, member)
                removed = pipeline.execute()
            return [pair for pair, here in zip(accepted, removed, strict=True) if here]

        popped = list[DueEntry]()
        none = list[tuple[str, DueEntry | None]]()
        for member, entry in self._request(pop, none):
            if entry is None:
                self._count_unreadable(member)
            else:
                self._entries.pop(entry.task_id, None)
                popped.append(entry)
        return popped

    def _request(self, act: Callable[[Any], T], otherwise: T) -> T:
        """Return the result of ``act``. If Redis reports a key of another type, it is removed."""
        from redis import ResponseError  # noqa: PLC0415 - see notifier.py

        def call(client: Any) -> T:
            try:
                return act(client)
            except ResponseError as error:
                if "WRONGTYPE" not in str(error):
                    raise
            client.delete(self.key)
            self._entries.clear()
            self._count_unreadable(self.key)
            return otherwise

        return self._connection.call(call, otherwise, probe=False)

    def _count_unreadable(self, text: str) -> None:
        if not self.unreadable:
            logger.error(
                "Removed entries of the due index in Redis that this release cannot read, such as"
                " %a. Their tasks are found by polling. Another program or release may write to the"
                " keys of %s.",
                text[:200],
                redis_scope(),
            )
        self.unreadable += 1


def _member(entry: DueEntry) -> str:
    return f"{entry.task_id}|{entry.shard}|{entry.queue}"


def _entry(member: str, score: float) -> DueEntry | None:
    """Return an entry; None if it cannot be parsed."""
    try:
        member.encode()
        task_id, shard, queue = member.split("|", 2)
        return DueEntry(_from_score(score), queue, uuid.UUID(task_id), int(shard))
    except ValueError:
        return None


def _from_score(score: float) -> datetime:
    """Return the instant of a score, which another program may have written: within the years 1 to
    9999.
    """
    return from_ms(math.floor(max(_EARLIEST_MS, min(score, _LATEST_MS))))


def due_index() -> DueIndex:
    """Return the index for a scheduler of this process: the shared one if Redis is configured,
    otherwise one in memory.
    """
    shared = redis_connection()
    return DueIndex() if shared is None else RedisDueIndex(shared)
