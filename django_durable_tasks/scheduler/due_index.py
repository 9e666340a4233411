"""The due index of a scheduler: a heap of due times, and the newest entry of each task."""

from __future__ import annotations

import heapq
import threading
import uuid
from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple


class DueEntry(NamedTuple):
    """The entry of a task that will be due. ``at`` is an instant of the database's clock, aware, in
    UTC.
    """

    at: datetime
    queue: str
    task_id: uuid.UUID
    priority: int
    shard: int


# Stale entries of the heap that never cause a rebuild, so that a small heap is not rebuilt often.
_SLACK = 64


class DueIndex:
    """Index of due times, in the memory of one scheduler; thread-safe. Instants are truncated to
    milliseconds.

    The index is an optimization without guarantees: entries may be missing, stale, or of deleted
    tasks. A caller that pops an entry claims the task by its id, and the claim decides. No method
    raises because a server is unavailable.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[uuid.UUID, DueEntry] = {}
        self._heap: list[tuple[datetime, uuid.UUID]] = []

    @property
    def state(self) -> str:
        """Where the entries are, or the reason and the interval of polling the database."""
        return "in memory"

    def add(self, rows: Iterable[DueEntry]) -> None:
        """Add these entries. Adding one twice has no effect; an entry replaces an older one of the
        same task.
        """
        with self._lock:
            for due in rows:
                before = self._known.get(due.task_id)
                self._known[due.task_id] = due
                if before is None or before.at != due.at:
                    heapq.heappush(self._heap, (due.at, due.task_id))
            self._tidy()

    def discard(self, ids: Iterable[uuid.UUID]) -> int:
        """Remove the entries of these tasks; return how many there were."""
        with self._lock:
            before = len(self._known)
            for task_id in ids:
                self._known.pop(task_id, None)
            self._tidy()
            return before - len(self._known)

    def next_at(self) -> datetime | None:
        """Return when the earliest entry is due (UTC); None if there is no entry."""
        with self._lock:
            while self._heap and self._stale(*self._heap[0]):
                heapq.heappop(self._heap)
            return self._heap[0][0] if self._heap else None

    def pop_due(
        self, now: datetime, limit: int, shards: frozenset[int] | None = None
    ) -> list[DueEntry]:
        """Remove and return at most ``limit`` entries due at ``now``, earliest first. With
        ``shards`` only entries of these shards are returned.

        No entry is returned twice, also not to concurrent callers. If a caller crashes, the poll
        finds its tasks.
        """
        entries: list[DueEntry] = []
        others: list[tuple[datetime, uuid.UUID]] = []
        with self._lock:
            while len(entries) < limit and self._heap and self._heap[0][0] <= now:
                at, task_id = heapq.heappop(self._heap)
                if self._stale(at, task_id):
                    continue
                if shards is not None and self._known[task_id].shard not in shards:
                    others.append((at, task_id))
                else:
                    entries.append(self._known.pop(task_id))
            for other in others:
                heapq.heappush(self._heap, other)
        return entries

    def __len__(self) -> int:
        """Return how many entries there are."""
        return len(self._known)

    def _stale(self, at: datetime, task_id: uuid.UUID) -> bool:
        due = self._known.get(task_id)
        return due is None or due.at != at

    def _tidy(self) -> None:
        """Rebuild the heap when most of it is stale."""
        if len(self._heap) > 2 * len(self._known) + _SLACK:
            self._heap = [(due.at, due.task_id) for due in self._known.values()]
            heapq.heapify(self._heap)
