"""Detects that the database's clock was set: two readings differ by another time than has passed.

The time that has passed is that of the host's monotonic clock, which neither an operator nor a time
server sets, and which continues while the host is suspended.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime

from django_durable_tasks.engine.db.clock import database_now

_TOO_SLOW = 1.0
"""Seconds. A reading that took longer is not precise enough."""


def elapsed() -> float:
    """Return the seconds since the host started, suspensions included."""
    clock = getattr(
        time, "CLOCK_BOOTTIME", None
    )  # on Linux; elsewhere `monotonic` may include them
    return time.monotonic() if clock is None else time.clock_gettime(clock)


@dataclass(frozen=True, slots=True)
class ClockStep:
    """By how many seconds the clock was set, negative if back, and when this was noticed by the
    process's monotonic clock.
    """

    seconds: float
    noticed: float


class ClockStepDetector:
    """Compares each reading of the database's clock with the previous one."""

    def __init__(self) -> None:
        self._last: tuple[datetime, float] | None = None

    def read(self) -> float | None:
        """Read the clock; return by how many seconds it was set since the previous reading.

        Returns None if this is unknown: after the first reading and after a slow one.
        """
        asked = elapsed()
        now = database_now()
        answered = elapsed()
        if answered - asked > _TOO_SLOW:
            return None
        last, self._last = self._last, (now, (asked + answered) / 2)
        if last is None:
            return None
        return (now - last[0]).total_seconds() - (self._last[1] - last[1])
