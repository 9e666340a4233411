"""Wall times on a calendar: on these days, at these times of day. No zone is known here.

Slots are asked by whole wall seconds, as ``stretches`` counts them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Protocol

from django_durable_tasks.rules.recurring.timetables.types import Count
from django_durable_tasks.rules.recurring.timetables.zone_offsets import DAY, FIRST_YEAR, LAST_YEAR

EMPTY_YEARS = (
    400  # the Gregorian calendar repeats after them, so what did not come by then will not come
)
_COUNTED_DAYS = 100_000  # days looked at one by one, where they differ
_FIRST_DAY, _LAST_DAY = date(FIRST_YEAR, 1, 1).toordinal(), date(LAST_YEAR, 12, 31).toordinal()


class Slots(Protocol):
    """Wall times in order."""

    def first(self, start: int) -> int | None:
        """Return the first slot at or after the wall second; None: no more."""

    def last(self, end: int) -> int | None:
        """Return the last slot before the wall second; None: none."""

    def count(self, start: int, end: int) -> Count:
        """Return the slots in [start, end), by bounded work."""


@dataclass(frozen=True, slots=True)
class DaySlots:
    """``days(year)`` are its days as ordinals, in order; ``times(day)`` the seconds of that day, in
    order.

    ``uniform``: every day has the same times, so stretches of years are counted without looking at
    each day.
    """

    days: Callable[[int], Sequence[int]]
    times: Callable[[int], Sequence[int]]
    uniform: bool = True

    def first(self, start: int) -> int | None:
        """Return the first slot at or after the wall second; None after 400 years without one."""
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
        """Return the last slot before the wall second; None after 400 years without one."""
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
        """Return the slots in [start, end); at least so many when the days differ and are too many
        to look at.
        """
        start, end = max(start, _FIRST_DAY * DAY), min(end, (_LAST_DAY + 1) * DAY - 1)
        if end <= start:
            return Count(0)
        (first_day, first_second), (last_day, last_second) = divmod(start, DAY), divmod(end, DAY)
        number = self._up_to(last_day, last_second) - self._up_to(first_day, first_second)
        between = self._between(first_day, last_day)
        return Count(number + between.number, between.exact)

    def _up_to(self, day: int, second: int) -> int:
        """Return how many slots of the day come before the second."""
        days = self.days(date.fromordinal(day).year)
        place = bisect_left(days, day)
        return (
            bisect_left(self.times(day), second) if place < len(days) and days[place] == day else 0
        )

    def _between(self, first_day: int, last_day: int) -> Count:
        """Return the slots of the whole days in [first_day, last_day)."""
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
class Bounded:
    """The slots of another in [start, end)."""

    slots: Slots
    start: int
    end: int = (_LAST_DAY + 1) * DAY

    def first(self, start: int) -> int | None:
        """Return the first slot at or after the wall second, inside the bounds."""
        slot = self.slots.first(max(start, self.start))
        return slot if slot is not None and slot < self.end else None

    def last(self, end: int) -> int | None:
        """Return the last slot before the wall second, inside the bounds."""
        slot = self.slots.last(min(end, self.end))
        return slot if slot is not None and slot >= self.start else None

    def count(self, start: int, end: int) -> Count:
        """Return the slots in [start, end) and inside the bounds."""
        return self.slots.count(max(start, self.start), min(end, self.end))


def spaced(times: Sequence[int]) -> Sequence[int]:
    """Return the numbers as a range where they are evenly spaced, else as they are."""
    step = times[1] - times[0] if len(times) > 1 else 1
    even = range(times[0], times[-1] + 1, step) if times else range(0)
    return even if len(even) == len(times) and all(map(int.__eq__, even, times)) else tuple(times)
