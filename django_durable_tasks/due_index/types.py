"""The entry of a due index, and the interface that its implementations in memory and in Redis
share.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple, Protocol


class DueEntry(NamedTuple):
    """The entry of a task that will be due. ``at`` is an instant of the database's clock, aware, in
    UTC.
    """

    at: datetime
    queue: str
    task_id: uuid.UUID
    priority: int
    shard: int


class DueIndex(Protocol):
    """Index of due times; instants are truncated to milliseconds.

    The index is an optimization without guarantees: entries may be missing, stale, or of deleted
    tasks. A caller that pops an entry claims the task by its id, and the claim decides. No method
    raises because a server is unavailable.
    """

    @property
    def state(self) -> str:
        """Where the entries are, or the reason and the interval of polling the database."""

    def add(self, rows: Iterable[DueEntry]) -> None:
        """Add these entries. Adding one twice has no effect; an entry replaces an older one of the
        same task.
        """

    def discard(self, ids: Iterable[uuid.UUID]) -> int:
        """Remove the entries of these tasks; return how many there were."""

    def next_at(self) -> datetime | None:
        """Return when the earliest entry is due (UTC); None if there is no entry."""

    def pop_due(
        self, now: datetime, limit: int, shards: frozenset[int] | None = None
    ) -> list[DueEntry]:
        """Remove and return at most ``limit`` entries due at ``now``, earliest first. With
        ``shards`` only entries of these shards are returned.

        No entry is returned twice, also not to concurrent callers. If a caller crashes, the poll
        finds its tasks.
        """

    def __len__(self) -> int:
        """Return how many entries there are."""

    def close(self) -> None:
        """Release the resources; the index may not be used afterwards."""
