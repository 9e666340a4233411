"""The due index of one scheduler if REDIS_URL is set: the shared set in Redis while it is complete,
otherwise one in memory.

Tasks found by a poll that looks ahead are added here too. They complete the shared set with tasks
whose writers could not reach Redis, and fill the index in memory while the shared set is not
complete. Entries that are in memory when Redis is available again are popped as well. Two
schedulers may pop the same task; one of them claims it.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable
from datetime import datetime

from django_durable_tasks.due_index import redis_client
from django_durable_tasks.due_index.memory import MemoryDueIndex
from django_durable_tasks.due_index.redis import RedisDueIndex
from django_durable_tasks.due_index.types import DueEntry, DueIndex

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
    shared = redis_client.connection()
    return (
        MemoryDueIndex() if shared is None else SharedDueIndex(RedisDueIndex(shared, probe=False))
    )
