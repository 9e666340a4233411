"""Changes of the UTC offset of a zone."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import pairwise
from typing import NamedTuple

from django_durable_tasks.rules.recurring.timetables.zone_offsets import instant, reading, upwards


class ClockChange(NamedTuple):
    """The instant (UTC) of a change, and the difference. A positive one leaves a gap in the wall
    times.
    """

    at: datetime
    shift: timedelta


def clock_changes(zone: str, start: datetime, end: datetime) -> Iterator[ClockChange]:
    """Yield the changes of a zone's clock in (start, end], in order; raises InvalidSchedule for an
    unknown zone.
    """
    first, last = reading(start), reading(end)
    for before, after in pairwise(upwards(zone, first)):
        if after.start > last:
            return
        if before.offset != after.offset and after.start > first:
            yield ClockChange(instant(after.start), timedelta(seconds=after.offset - before.offset))
