"""The open tasks of queues, and the usage of limits, for a limited number of names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

OTHER = "other"
"""The queue and task under which series beyond METRICS_SERIES_MAX are counted."""


class QueueGauge(NamedTuple):
    """The open tasks of a queue, and the age in seconds of the oldest one that is due."""

    pending: int = 0
    due: int = 0
    oldest_due_age: float = 0.0
    queued: int = 0
    running: int = 0

    def plus(self, other: QueueGauge) -> QueueGauge:
        """Return both queues as one."""
        return QueueGauge(
            self.pending + other.pending,
            self.due + other.due,
            max(self.oldest_due_age, other.oldest_due_age),
            self.queued + other.queued,
            self.running + other.running,
        )


def busiest_queues(queues: Mapping[str, QueueGauge], most: int) -> dict[str, QueueGauge]:
    """Return the ``most`` queues with the most open tasks by name, the others as ``other``."""

    def size(name: str) -> tuple[int, str]:
        one = queues[name]
        return -(one.pending + one.queued + one.running), name

    names = sorted(queues, key=size)
    found = {name: queues[name] for name in sorted(names[:most])}
    for name in names[most:]:
        found[OTHER] = found.get(OTHER, QueueGauge()).plus(queues[name])
    return found


def fullest_limits(limits: Mapping[str, tuple[int, int]], most: int) -> dict[str, tuple[int, int]]:
    """Return the ``most`` limits of which the largest part is used, by scope."""

    def free(scope: str) -> tuple[float, str]:
        used, limit = limits[scope]
        return -(used / limit if limit else 0.0), scope

    return {scope: limits[scope] for scope in sorted(sorted(limits, key=free)[:most])}
