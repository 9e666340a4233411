"""Wall times on a calendar: on these days, at these times of day, independent of a zone.

Wall times are whole wall seconds, as in ``zone_offsets``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Protocol

from django_durable_tasks.rules.recurring.timetables.types import Count
from django_durable_tasks.rules.recurring.timetables.zone_offsets import DAY, FIRST_YEAR, LAST_YEAR

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
