"""The schedules that this scheduler cannot fire yet: another release has their task, or another
process their key. The leader reports them with its heartbeat.
"""

from __future__ import annotations

import threading
import time
import uuid
from dataclasses import dataclass
from typing import Any

_KEPT = 10.0
"""An entry is dropped this many retry intervals after the last attempt: the schedule was paused,
deleted, or is fired by another leader.
"""


@dataclass(slots=True)
class _Postponed:
    name: str
    error: str
    since: float
    last: float
    number: int


class PostponedSchedules:
    """The postponed schedules of this process; thread-safe."""

    def __init__(self) -> None:
        self._schedules: dict[uuid.UUID, _Postponed] = {}
        self._lock = threading.Lock()

    def add(self, key: uuid.UUID, name: str, error: str) -> None:
        """Record that this schedule could not fire."""
        now = time.monotonic()
        with self._lock:
            found = self._schedules.setdefault(key, _Postponed(name, error, now, now, 0))
            found.error, found.last, found.number = error, now, found.number + 1

    def remove(self, key: uuid.UUID) -> None:
        """Record that this schedule can fire."""
        if self._schedules:
            with self._lock:
                self._schedules.pop(key, None)

    def failing(self, interval: float) -> list[dict[str, Any]]:
        """Return the schedules as failing parts of a scheduler; ``interval`` (seconds) is the time
        between two attempts.
        """
        now = time.monotonic()
        with self._lock:
            for key, one in list(self._schedules.items()):
                if now - one.last > _KEPT * interval:
                    del self._schedules[key]
            found = list(self._schedules.values())
        return [
            {
                "what": part_of(one.name),
                "error": one.error,
                "number": one.number,
                "since": round(now - one.since, 1),
            }
            for one in found
        ]


def part_of(name: str) -> str:
    """Return the name under which a scheduler reports that it cannot fire this schedule."""
    return f"recurring task {name}"
