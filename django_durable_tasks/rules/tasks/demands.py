"""The number of tasks that one claim requests of each queue. Pure."""

from __future__ import annotations

from typing import NamedTuple

ALL_LEVELS = (1 << 10) - 1


def priorities_of(levels: int) -> list[int]:
    """Return the priorities of these bits, the highest first."""
    return [priority for priority in range(9, -1, -1) if levels >> priority & 1]


class QueueDemand(NamedTuple):
    """The maximum number of due tasks of a queue to claim, and their lowest priority.

    ``levels``: the priorities that are searched, as bits. A caller that has read for which
    priorities tasks are due saves the search for the others. ``tenant_id``: only the tasks of this
    tenant, which is not the default one.
    """

    queue: str
    limit: int
    least: int = 0
    levels: int = ALL_LEVELS
    tenant_id: int | None = None

    def at_most(self, number: int) -> QueueDemand:
        """Return the demand with a limit of at most ``number``."""
        if self.limit <= number:
            return self
        return self._replace(limit=number)

    @property
    def priorities(self) -> list[int]:
        """The priorities that are searched, the highest first."""
        return [priority for priority in priorities_of(self.levels) if priority >= self.least]
