"""Wall times on a calendar, and their instants in a zone with clock changes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from itertools import takewhile
from typing import Protocol

from django_durable_tasks.schedules.timetables.types import TICK, Count, DstGap, DstOverlap, Fire
from django_durable_tasks.schedules.timetables.zones import (
    DAY,
    FIRST_YEAR,
    LAST_YEAR,
    OffsetPeriod,
    downwards,
    instant,
    reading,
    upwards,
    wall,
)

# Wall times on a calendar: on these days, at these times of day, independent of a zone.
#
# Wall times are whole wall seconds, as in ``zones``.


EMPTY_YEARS = 400  # The Gregorian calendar repeats after this many years.
_COUNTED_DAYS = 100_000  # maximum number of days examined one by one, if they differ
_FIRST_DAY, _LAST_DAY = date(FIRST_YEAR, 1, 1).toordinal(), date(LAST_YEAR, 12, 31).toordinal()


class WallTimes(Protocol):
    """Wall times in order."""

    def first(self, start: int) -> int | None:
        """Return the first wall time at or after the wall second; None if there is none."""

    def last(self, end: int) -> int | None:
        """Return the last wall time before the wall second; None if there is none."""

    def count(self, start: int, end: int) -> Count:
        """Return the number of wall times in [start, end). The work is bounded."""


@dataclass(frozen=True, slots=True)
class DailyWallTimes:
    """``days(year)`` returns the ordinals of its days, ascending; ``times(day)`` the seconds of
    that day, ascending.

    ``uniform``: every day has the same times, so ranges of years are counted without examining each
    day.
    """

    days: Callable[[int], Sequence[int]]
    times: Callable[[int], Sequence[int]]
    uniform: bool = True

    def first(self, start: int) -> int | None:
        """Return the first wall time at or after the wall second; None after 400 years
        without one.
        """
        day, second = divmod(max(start, _FIRST_DAY * DAY), DAY)
        if day > _LAST_DAY:
            return None
        year = date.fromordinal(day).year
        for number in range(year, min(year + EMPTY_YEARS, LAST_YEAR) + 1):
            days = self.days(number)
            for index in range(bisect_left(days, day) if number == year else 0, len(days)):
                times = self.times(days[index])
                place = bisect_left(times, second) if days[index] == day else 0
                if place < len(times):
                    return days[index] * DAY + times[place]
        return None

    def last(self, end: int) -> int | None:
        """Return the last wall time before the wall second; None after 400 years without one."""
        day, second = divmod(min(end, (_LAST_DAY + 1) * DAY - 1), DAY)
        if day < _FIRST_DAY:
            return None
        year = date.fromordinal(day).year
        for number in range(year, max(year - EMPTY_YEARS, FIRST_YEAR) - 1, -1):
            days = self.days(number)
            for index in range(
                (bisect_left(days, day + 1) if number == year else len(days)) - 1, -1, -1
            ):
                times = self.times(days[index])
                place = bisect_left(times, second) if days[index] == day else len(times)
                if place:
                    return days[index] * DAY + times[place - 1]
        return None

    def count(self, start: int, end: int) -> Count:
        """Return the number of wall times in [start, end); a lower bound if the days differ and are
        too many to examine.
        """
        start, end = max(start, _FIRST_DAY * DAY), min(end, (_LAST_DAY + 1) * DAY - 1)
        if end <= start:
            return Count(0)
        (first_day, first_second), (last_day, last_second) = divmod(start, DAY), divmod(end, DAY)
        number = self._up_to(last_day, last_second) - self._up_to(first_day, first_second)
        between = self._between(first_day, last_day)
        return Count(number + between.number, between.exact)

    def _up_to(self, day: int, second: int) -> int:
        """Return how many wall times of the day are before the second."""
        days = self.days(date.fromordinal(day).year)
        place = bisect_left(days, day)
        return (
            bisect_left(self.times(day), second) if place < len(days) and days[place] == day else 0
        )

    def _between(self, first_day: int, last_day: int) -> Count:
        """Return the number of wall times of the whole days in [first_day, last_day)."""
        number = looked_at = 0
        for year in range(date.fromordinal(first_day).year, date.fromordinal(last_day).year + 1):
            days = self.days(year)
            low, high = bisect_left(days, first_day), bisect_left(days, last_day)
            if self.uniform and high > low:
                number += (high - low) * len(self.times(days[low]))
            elif not self.uniform:
                number += sum(len(self.times(day)) for day in days[low:high])
                looked_at += high - low
            if looked_at > _COUNTED_DAYS:
                return Count(number, exact=False)
        return Count(number)


@dataclass(frozen=True, slots=True)
class BoundedWallTimes:
    """The wall times of another object in [start, end)."""

    inner: WallTimes
    start: int
    end: int = (_LAST_DAY + 1) * DAY

    def first(self, start: int) -> int | None:
        """Return the first wall time at or after the wall second, inside the bounds."""
        second = self.inner.first(max(start, self.start))
        return second if second is not None and second < self.end else None

    def last(self, end: int) -> int | None:
        """Return the last wall time before the wall second, inside the bounds."""
        second = self.inner.last(min(end, self.end))
        return second if second is not None and second >= self.start else None

    def count(self, start: int, end: int) -> Count:
        """Return the number of wall times in [start, end) and inside the bounds."""
        return self.inner.count(max(start, self.start), min(end, self.end))


def spaced(times: Sequence[int]) -> Sequence[int]:
    """Return the numbers as a range if they are evenly spaced, otherwise unchanged."""
    step = times[1] - times[0] if len(times) > 1 else 1
    even = range(times[0], times[-1] + 1, step) if times else range(0)
    return even if len(even) == len(times) and all(map(int.__eq__, even, times)) else tuple(times)


# Wall times in a zone: their instants, with the policies for gaps and repetitions of the clock.
#
# The defaults are those of Debian's cron(8): wall times in a gap fire once, right after the gap,
# independent of their number; a repeated wall time fires in its first pass. Debian applies this to
# changes below three hours only, because it cannot distinguish a zone's change from a corrected
# clock. The time zone database can, so a skipped day is treated like any other gap.


_COUNTED_YEARS = 100
_MOVED = 3 * DAY  # longer than any clock change in the time zone database


@dataclass(frozen=True, slots=True)
class WallTimetable:
    """Fires when the clock of the zone shows one of the wall times, under the two policies."""

    wall_times: WallTimes
    zone: str
    gap: DstGap
    overlap: DstOverlap

    def next(self, after: datetime) -> Fire | None:
        """Return the first fire strictly after; None if no wall time is left."""
        result: Fire | int | None = _second(after) + 1
        while isinstance(result, int):
            result = self._next(result)
        return result

    def _next(self, start: int) -> Fire | int | None:
        """Return the first fire, or from which instant on to search it.

        The years up to a distant wall time are skipped. Each of them would search it again.
        """
        for stretch in upwards(self.zone, start):
            low = max(start, stretch.start)
            if low == stretch.start and self._jumped(stretch):
                return self._fire(stretch, low)
            bottom = max(low + stretch.offset, self._bottom(stretch))
            wall_second = self.wall_times.first(bottom)
            if wall_second is not None and wall_second < self._top(stretch):
                return self._fire(stretch, wall_second - stretch.offset)
            if (
                wall_second is None or wall_second > self._top(stretch) + 4 * _MOVED
            ) and self.wall_times.first(bottom - _MOVED) == wall_second:
                return None if wall_second is None else wall_second - 2 * _MOVED
        return None

    def previous(self, before: datetime) -> Fire | None:
        """Return the last fire strictly before; None if there is no earlier wall time."""
        result: Fire | int | None = _second(before - TICK) + 1
        while isinstance(result, int):
            result = self._previous(result)
        return result

    def _previous(self, end: int) -> Fire | int | None:
        """Return the last fire, or before which instant to search it."""
        for stretch in downwards(self.zone, end - 1):
            top = min(end + stretch.offset, self._top(stretch))
            wall_second = self.wall_times.last(top)
            if wall_second is not None and wall_second >= self._bottom(stretch):
                return self._fire(stretch, wall_second - stretch.offset)
            if self._jumped(stretch):
                return self._fire(stretch, stretch.start)
            if (
                wall_second is None or wall_second < self._bottom(stretch) - 4 * _MOVED
            ) and self.wall_times.last(top + _MOVED) == wall_second:
                return None if wall_second is None else wall_second + 2 * _MOVED
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
        wall_second = second + stretch.offset
        if second == stretch.start and self._jumped(stretch):
            return Fire(instant(second), (self._gap_remark(stretch.floor, wall_second),))
        if stretch.floor <= wall_second < stretch.ceiling:
            return Fire(instant(second))
        passed = "second" if wall_second < stretch.floor else "first"
        moment = wall(wall_second)
        remark = (
            f"DST overlap: {moment:%H:%M} comes twice on {moment:%Y-%m-%d} in {self.zone}; this is"
            f" the {passed} pass"
        )
        return Fire(instant(second), (remark,))

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
