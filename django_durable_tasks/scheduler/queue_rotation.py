"""Order in which queues share a claim limit that is too low for all of them."""

from __future__ import annotations

import random
from collections.abc import Iterable

_REMEMBERED = 10_000


class QueueRotation:
    """Orders queues by when they were last served. Keeps 10,000 queues; others come first."""

    def __init__(self) -> None:
        self._number = 0
        self._last: dict[str, int] = {}

    def ordered(self, queues: Iterable[str]) -> list[str]:
        """Return these queues, the one that was served longest ago first."""
        found = list(queues)
        # Queues of equal rank come in random order, so that several schedulers do not begin with
        # the same ones.
        random.shuffle(found)
        return sorted(found, key=lambda queue: self._last.get(queue, 0))

    def served(self, queues: Iterable[str]) -> None:
        """Record that these queues were served now, all at once."""
        self._number += 1
        for queue in queues:
            self._last.pop(queue, None)  # keeps the dict ordered by the last time served
            self._last[queue] = self._number
        while len(self._last) > _REMEMBERED:
            del self._last[next(iter(self._last))]
