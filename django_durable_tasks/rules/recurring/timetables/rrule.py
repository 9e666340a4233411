"""Recurrences (RFC 5545): rules and single dates minus exceptions, as wall times of the schedule's
zone.

dateutil parses the same texts, but iterates a rule from its start, and without end if nothing
matches. Therefore only the tests use it, as a reference. A rule without a match within 400 years
counts as finished.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django_durable_tasks.exceptions import InvalidSchedule
from django_durable_tasks.rules.recurring.timetables.rrule_days import rule_wall_times
from django_durable_tasks.rules.recurring.timetables.rrule_syntax import Rule, parsed
from django_durable_tasks.rules.recurring.timetables.types import Count, TimetableContext
from django_durable_tasks.rules.recurring.timetables.wall_times import WallTimes
from django_durable_tasks.rules.recurring.timetables.wall_timetable import WallTimetable

_MOST = 10_000


@dataclass(frozen=True, slots=True)
class Dates:
    """Single wall seconds, in order."""

    seconds: tuple[int, ...]

    def first(self, start: int) -> int | None:
        """Return the first wall second at or after."""
        place = bisect_left(self.seconds, start)
        return self.seconds[place] if place < len(self.seconds) else None

    def last(self, end: int) -> int | None:
        """Return the last wall second before."""
        place = bisect_left(self.seconds, end)
        return self.seconds[place - 1] if place else None

    def count(self, start: int, end: int) -> Count:
        """Return how many are in [start, end)."""
        return Count(max(bisect_left(self.seconds, end) - bisect_left(self.seconds, start), 0))


@dataclass(frozen=True, slots=True)
class Combined:
    """The wall times of all ``included``, without those of any exception; distinct."""

    included: tuple[WallTimes, ...]
    excluded: tuple[WallTimes, ...]

    def first(self, start: int) -> int | None:
        """Return the first wall time at or after. Raises InvalidSchedule after ten thousand
        exceptions.
        """
        for _ in range(_MOST):
            found = [
                found_second
                for source in self.included
                if (found_second := source.first(start)) is not None
            ]
            if not found or not self._is_excluded(min(found)):
                return min(found, default=None)
            start = min(found) + 1
        raise _too_many()

    def last(self, end: int) -> int | None:
        """Return the last wall time before. Raises InvalidSchedule after ten thousand
        exceptions.
        """
        for _ in range(_MOST):
            found = [
                found_second
                for source in self.included
                if (found_second := source.last(end)) is not None
            ]
            if not found or not self._is_excluded(max(found)):
                return max(found, default=None)
            end = max(found)
        raise _too_many()

    def count(self, start: int, end: int) -> Count:
        """Return the number of wall times in [start, end). They are iterated, so above ten thousand
        the number is a lower bound.
        """
        number = 0
        while number < _MOST:
            found_second = self.first(start)
            if found_second is None or found_second >= end:
                return Count(number)
            number, start = number + 1, found_second + 1
        return Count(number, exact=False)

    def _is_excluded(self, found_second: int) -> bool:
        return any(source.first(found_second) == found_second for source in self.excluded)


def _too_many() -> InvalidSchedule:
    return InvalidSchedule(
        f"rrule: {_MOST} consecutive times are excluded; write the rule without EXRULE, or"
        f" exclude fewer."
    )


def checked(part: Mapping[str, Any], setting: TimetableContext) -> dict[str, Any]:
    """Return the canonical part; raises InvalidSchedule."""
    parsed(part["rrule"], setting)
    return {"rrule": "\n".join(line.strip() for line in part["rrule"].splitlines() if line.strip())}


def build(part: Mapping[str, Any], setting: TimetableContext) -> WallTimetable:
    """Return the timetable of a checked part."""
    return WallTimetable(_wall_times(part, setting), setting.zone, setting.gap, setting.overlap)


def never(part: Mapping[str, Any], setting: TimetableContext) -> str:
    """Return why the rule has no fire at all, or an empty text."""
    return (
        ""
        if _wall_times(part, setting).first(0) is not None
        else f"rrule={part['rrule']!r} can never fire."
    )


def _wall_times(part: Mapping[str, Any], setting: TimetableContext) -> WallTimes:
    found = parsed(part["rrule"], setting)
    included = _all(found.rules, found.dates)
    excluded = _all(found.excluded_rules, found.excluded_dates)
    return included[0] if len(included) == 1 and not excluded else Combined(included, excluded)


def _all(rules: Iterable[Rule], dates: set[int]) -> tuple[WallTimes, ...]:
    single: tuple[WallTimes, ...] = (Dates(tuple(sorted(dates))),) if dates else ()
    return (*map(rule_wall_times, rules), *single)
