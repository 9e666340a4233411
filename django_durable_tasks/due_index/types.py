"""The entry of a due index, and the interface that its implementations in memory and in Redis
share.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple, Protocol


class Due(NamedTuple):
    """One row that will be due; ``at`` is an instant of the database's clock, aware, in UTC."""

    at: datetime
    queue: str
    task_id: uuid.UUID
    priority: int
    shard: int


class DueIndex(Protocol):
    """Remembers which rows are due when; instants are read to the millisecond, cut down.

    It promises nothing: entries may be missing, stale or of rows that are gone. Whoever pops an
    entry claims the row by its id, and the claim alone decides. No method raises because a server
    is away.
    """

    @property
    def state(self) -> str:
        """Say where the entries are, or why and how often the database is polled instead."""

    def add(self, rows: Iterable[Due]) -> None:
        """Remember these rows; again is once, and a moved row replaces its older entry."""

    def discard(self, ids: Iterable[uuid.UUID]) -> None:
        """Forget these rows; unknown ones are passed over."""

    def next_at(self) -> datetime | None:
        """Return when the earliest entry is due (UTC), or None where there is none."""

    def pop_due(self, now: datetime, limit: int, shards: frozenset[int] | None = None) -> list[Due]:
        """Remove and return at most ``limit`` entries due at ``now``, earliest first; only of these
        shards, if given.

        No entry is returned twice, whoever asks at the same time; one that its popper loses is
        found by the poll.
        """

    def __len__(self) -> int:
        """Return how many entries there are."""

    def close(self) -> None:
        """Let go of what is held; the index may not be used afterwards."""
