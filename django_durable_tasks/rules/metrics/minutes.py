"""When the tasks that were created in a minute are counted, and counted again for late commits."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

MINUTE = timedelta(minutes=1)
DELAYS = (timedelta(seconds=5), timedelta(minutes=5), timedelta(hours=1))
"""How long after its end a minute is counted. A transaction that commits later is not counted."""


def minute_of(instant: datetime) -> datetime:
    """Return the beginning of the minute."""
    return instant.astimezone(UTC).replace(second=0, microsecond=0)


def next_minute(
    nexts: Sequence[datetime], now: datetime, oldest: datetime
) -> tuple[int, datetime] | None:
    """Return the next count to make: the index of its delay, and its minute. None if none is due.

    ``nexts`` are the next minutes for each of DELAYS. Minutes before ``oldest`` are left out. A
    minute whose next delay has passed too is counted only once, so that a catch-up after an outage
    does not repeat counts.
    """
    for index in range(len(DELAYS)):
        due = skipped_to(nexts, index, now, oldest)
        if now >= due + MINUTE + DELAYS[index]:
            return index, due
    return None


def skipped_to(nexts: Sequence[datetime], index: int, now: datetime, oldest: datetime) -> datetime:
    """Return the next minute for this delay, without the minutes that need no count of its own."""
    due = max(nexts[index], minute_of(oldest))
    if index + 1 < len(DELAYS):
        due = max(due, minute_of(now - DELAYS[index + 1] - MINUTE) + MINUTE)
    return due
