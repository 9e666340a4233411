"""Wall times in a zone: their instants, with the policies for gaps and repetitions of the clock.

The defaults are those of Debian's cron(8): wall times in a gap fire once, right after the gap,
independent of their number; a repeated wall time fires in its first pass. Debian applies this to
changes below three hours only, because it cannot distinguish a zone's change from a corrected
clock. The time zone database can, so a skipped day is treated like any other gap.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import takewhile

from django_durable_tasks.rules.recurring.timetables.types import Count, DstGap, DstOverlap, Fire
from django_durable_tasks.rules.recurring.timetables.wall_times import WallTimes
from django_durable_tasks.rules.recurring.timetables.zone_offsets import (
    DAY,
    OffsetPeriod,
    downwards,
    instant,
    reading,
    upwards,
    wall,
)

_COUNTED_YEARS = 100
_MOVED = 3 * DAY  # longer than any clock change in the time zone database
_TICK = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class WallTimetable:
    """Fires when the clock of the zone shows one of the wall times, under the two policies."""

    wall_times: WallTimes
    zone: str
    gap: DstGap
    overlap: DstOverlap

    def next(self, after: datetime) -> Fire | None:
        """Return the first fire strictly after; None if no wall time is left."""
        start = _second(after) + 1
        for stretch in upwards(self.zone, start):
            low = max(start, stretch.start)
            if low == stretch.start and self._jumped(stretch):
                return self._fire(stretch, low)
            bottom = max(low + stretch.offset, self._bottom(stretch))
            wall_second = self.wall_times.first(bottom)
            if wall_second is not None and wall_second < self._top(stretch):
                return self._fire(stretch, wall_second - stretch.offset)
            if wall_second is None and self.wall_times.first(bottom - _MOVED) is None:
                return None
        return None

    def previous(self, before: datetime) -> Fire | None:
        """Return the last fire strictly before; None if there is no earlier wall time."""
        end = _second(before - _TICK) + 1
        for stretch in downwards(self.zone, end - 1):
            top = min(end + stretch.offset, self._top(stretch))
            wall_second = self.wall_times.last(top)
            if wall_second is not None and wall_second >= self._bottom(stretch):
                return self._fire(stretch, wall_second - stretch.offset)
            if self._jumped(stretch):
                return self._fire(stretch, stretch.start)
            if wall_second is None and self.wall_times.last(top + _MOVED) is None:
                return None
        return None

    def count(self, after: datetime, until: datetime) -> Count:
        """Return the number of fires in (after, until]. Whole days are multiplied, and above a
        hundred years the number is a lower bound.
        """
        start, end = _second(after) + 1, _second(until) + 1
        limit = start + _COUNTED_YEARS * 366 * DAY
        counts = [
            self._count(stretch, start, min(end, limit))
            for stretch in takewhile(
                lambda stretch: stretch.start < min(end, limit), upwards(self.zone, start)
            )
        ]
        exact = end <= limit or self.wall_times.first(limit - _MOVED) is None
        return Count(
            sum(count.number for count in counts), exact and all(count.exact for count in counts)
        )

    def _count(self, stretch: OffsetPeriod, start: int, end: int) -> Count:
        bottom = max(start + stretch.offset, self._bottom(stretch))
        count = self.wall_times.count(bottom, min(end + stretch.offset, self._top(stretch)))
        if stretch.start < start or not self._jumped(stretch):
            return count
        return Count(
            count.number + (self.wall_times.first(bottom) != stretch.start + stretch.offset),
            count.exact,
        )

    def _bottom(self, stretch: OffsetPeriod) -> int:
        begin = stretch.start + stretch.offset
        return max(begin, stretch.floor) if self.overlap is DstOverlap.FIRST else begin

    def _top(self, stretch: OffsetPeriod) -> int:
        end = stretch.end + stretch.offset
        return min(end, stretch.ceiling) if self.overlap is DstOverlap.LAST else end

    def _jumped(self, stretch: OffsetPeriod) -> bool:
        """Return whether a wall time is in the gap before this stretch and fires at its start."""
        landing = stretch.start + stretch.offset
        if self.gap is DstGap.SKIP or landing <= stretch.floor:
            return False
        wall_second = self.wall_times.first(stretch.floor)
        return wall_second is not None and wall_second < landing

    def _fire(self, stretch: OffsetPeriod, second: int) -> Fire:
        return Fire(instant(second), self._remarks(stretch, second))

    def _remarks(self, stretch: OffsetPeriod, second: int) -> tuple[str, ...]:
        shown = second + stretch.offset
        if second == stretch.start and self._jumped(stretch):
            return (self._gap_remark(stretch.floor, shown),)
        if stretch.floor <= shown < stretch.ceiling:
            return ()
        passed = "second" if shown < stretch.floor else "first"
        moment = wall(shown)
        return (
            (
                f"DST overlap: {moment:%H:%M} comes twice on {moment:%Y-%m-%d} in {self.zone}; this"
                f" is the {passed} pass"
            ),
        )

    def _gap_remark(self, floor: int, landing: int) -> str:
        first, last, place = (
            self.wall_times.first(floor),
            self.wall_times.last(landing),
            wall(landing),
        )
        lost, end = wall(first or floor), wall(last or floor)
        what = f"{lost:%H:%M} does" if lost == end else f"{lost:%H:%M} to {end:%H:%M} do"
        when = f"{place:%H:%M}" if place.date() == lost.date() else f"{place:%Y-%m-%d %H:%M}"
        return (
            f"DST gap: {what} not exist on {lost:%Y-%m-%d} in {self.zone}; fires right after it, at"
            f" {when}"
        )


def _second(moment: datetime) -> int:
    """Return the whole seconds of an instant; raises ValueError for a naive one."""
    if moment.tzinfo is None:
        raise ValueError(f"{moment!r} is naive: give it a time zone.")
    return reading(moment.astimezone(UTC))
