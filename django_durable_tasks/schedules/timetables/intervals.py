"""Timetables without a calendar of their own: instants, fixed intervals and calendar intervals."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

from django_durable_tasks.exceptions import InvalidOption, InvalidSchedule
from django_durable_tasks.option_values import seconds
from django_durable_tasks.schedules.timetables.types import (
    TICK,
    BothWays,
    Count,
    Direction,
    Fire,
    OpenDays,
    TimetableContext,
)
from django_durable_tasks.schedules.timetables.wall_times import (
    BoundedWallTimes,
    DailyWallTimes,
    WallTimetable,
)
from django_durable_tasks.schedules.timetables.zones import DAY, reading, zone

# A timetable given as a list of instants. Each one is a fire time.


MOST_INSTANTS = 10_000


@dataclass(frozen=True, slots=True)
class Instants(BothWays[Fire]):
    """Fires at each of the moments (aware, UTC, ascending, distinct)."""

    moments: tuple[datetime, ...]

    def step(self, moment: datetime, way: Direction) -> Fire | None:
        place = way.place(self.moments, moment)
        return None if place is None else Fire(self.moments[place])

    def count(self, after: datetime, until: datetime) -> Count:
        """Return the number of moments in (after, until]."""
        return Count(max(bisect_right(self.moments, until) - bisect_right(self.moments, after), 0))


def checked_instants(part: Mapping[str, Any], setting: TimetableContext) -> dict[str, Any]:
    """Return the canonical part: ascending, distinct, in UTC as ISO 8601; raises
    InvalidSchedule.
    """
    values = part["at"]
    if not isinstance(values, list | tuple) or not values:
        raise InvalidSchedule.of("at", values, "give a list of at least one instant.")
    if len(values) > MOST_INSTANTS:
        raise InvalidSchedule(f"at: {len(values)} instants; a schedule can hold {MOST_INSTANTS}.")
    moments = sorted({_moment(value) for value in values})
    return {"at": [moment.isoformat().replace("+00:00", "Z") for moment in moments]}


def build_instants(part: Mapping[str, Any], setting: TimetableContext) -> Instants:
    """Return the timetable of a checked part."""
    return Instants(tuple(datetime.fromisoformat(text) for text in part["at"]))


def _moment(value: object) -> datetime:
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
        if not isinstance(moment, datetime):
            raise InvalidSchedule(
                f"at: {value!r} is no instant; write it as '2026-03-08T07:00:00Z'."
            )
        if moment.utcoffset() is None:
            raise InvalidSchedule(
                f"at: {value!r} is naive; add its offset, for example '2026-03-08T07:00:00Z'."
            )
        return moment.astimezone(UTC)
    except InvalidSchedule:
        raise
    except (ValueError, OverflowError) as error:
        raise InvalidSchedule(
            f"at: {value!r} is no instant ({error}); write it as '2026-03-08T07:00:00Z'."
        ) from error


# A fixed interval of elapsed time, counted from an anchor: no drift, independent of clock changes.


_SHORTEST = 0.001  # a node could not start more fires per second


@dataclass(frozen=True, slots=True)
class Interval:
    """Fires at ``anchor + k * step`` for every k from 0; counted in whole microseconds."""

    anchor: datetime
    step: timedelta

    def next(self, after: datetime) -> Fire | None:
        """Return the first grid point strictly after; None beyond the year 9999."""
        if after < self.anchor:
            return Fire(self.anchor)
        try:
            return Fire(self.anchor + ((after - self.anchor) // self.step + 1) * self.step)
        except OverflowError:
            return None

    def previous(self, before: datetime) -> Fire | None:
        """Return the last grid point strictly before; None up to the anchor."""
        if before <= self.anchor:
            return None
        return Fire(self.anchor + ((before - self.anchor - TICK) // self.step) * self.step)

    def count(self, after: datetime, until: datetime) -> Count:
        """Return the number of grid points in (after, until], in closed form."""
        if until <= after:
            return Count(0)
        return Count(max(self._up_to(until) - self._up_to(after), 0))

    def _up_to(self, moment: datetime) -> int:
        return (moment - self.anchor) // self.step + 1 if moment >= self.anchor else 0


def checked_interval(part: Mapping[str, Any], setting: TimetableContext) -> dict[str, Any]:
    """Return the canonical part; raises InvalidSchedule for an interval that is not positive, too
    long, or not a duration.
    """
    value = part["interval"]
    try:
        length = seconds("interval", value)
    except InvalidOption as error:
        raise InvalidSchedule(str(error), option=error.option) from error
    if length < _SHORTEST:
        raise InvalidSchedule.of("interval", value, f"it must be {_SHORTEST:g} seconds or more.")
    return {"interval": length}


def build_interval(part: Mapping[str, Any], setting: TimetableContext) -> Interval:
    """Return the timetable of a checked part."""
    return Interval(setting.anchor, timedelta(seconds=part["interval"]))


# Calendar intervals: one day in every N days, weeks, months, quarters or years, at a time of day.
#
# Periods are counted from the one that contains the start of the schedule in the calendar of its
# zone. Weeks begin on Monday. A period without the requested day (31 in April) has no fire.
# Without ``day`` the day of the start is used, without ``time`` its time of day. There is no fire
# before the start.


_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_UNITS = {
    "day": 1,
    "week": 7,
    "month": 31,
    "quarter": 92,
    "year": 366,
}  # and the maximum number of days
_MONTHS_OF = {"month": 1, "quarter": 3, "year": 12}
_DAY_TEXT = re.compile(
    rf"(first|last|\d{{1,3}}(?:st|nd|rd|th)) ?(day|working|{'|'.join(_WEEKDAYS)}|)", re.ASCII
)
_TIME = re.compile(r"([01]\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?", re.ASCII)
_MOST = 1_000


class _Day(NamedTuple):
    """Which day of a period: the n-th (from the end if negative) of its days, working days or
    weekdays.
    """

    number: int
    kind: str = "day"


@dataclass(frozen=True, slots=True)
class _Rhythm:
    unit: str
    every: int
    origin: int  # the index of the period that contains the start
    month: int  # the month of the period, from 1; 0 is the whole period
    day: _Day
    open_days: OpenDays

    def days(self, year: int) -> tuple[int, ...]:
        """Return the chosen days of a year as ordinals."""
        return _days(self, year)


def checked_calendar_interval(part: Mapping[str, Any], setting: TimetableContext) -> dict[str, Any]:
    """Return the canonical part; raises InvalidSchedule with the key."""
    unit, count = part["every"], part.get("count", 1)
    if unit not in tuple(_UNITS):
        raise InvalidSchedule.of(
            "every", unit, f"give one of {', '.join(_UNITS)}; for a duration give interval=seconds."
        )
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= _MOST:
        raise InvalidSchedule.of("count", count, f"give a whole number from 1 to {_MOST}.")
    canonical = {"every": unit, "count": count}
    if part.get("month") is not None:
        month, most = part["month"], {"quarter": 3, "year": 12}.get(unit, 0)
        if not most:
            raise InvalidSchedule.of(
                "month", month, "it can stand only where every is quarter or year."
            )
        if isinstance(month, bool) or not isinstance(month, int) or not 1 <= month <= most:
            raise InvalidSchedule.of(
                "month", month, f"give the month of the {unit}, from 1 to {most}."
            )
        canonical["month"] = month
    if part.get("day") is not None:
        _parsed_day(unit, part["day"])
        canonical["day"] = part["day"]
    if part.get("time") is not None:
        _second_of_day(part["time"])
        canonical["time"] = part["time"]
    return canonical


def build_calendar_interval(part: Mapping[str, Any], setting: TimetableContext) -> WallTimetable:
    """Return the timetable of a checked part."""
    return WallTimetable(_wall_times(part, setting), setting.zone, setting.gap, setting.overlap)


def never(part: Mapping[str, Any], setting: TimetableContext) -> str:
    """Return why no period has such a day, or an empty text."""
    if _wall_times(part, setting).first(0) is not None:
        return ""
    return (
        f"every={part['every']!r}, day={part.get('day')!r} can never fire: no such period has this"
        " day."
    )


def _wall_times(part: Mapping[str, Any], setting: TimetableContext) -> BoundedWallTimes:
    start = setting.anchor.astimezone(zone(setting.zone))
    unit, month = part["every"], part.get("month", 0)
    if "day" in part:
        chosen = _parsed_day(unit, part["day"])
    elif month:
        chosen = _Day(start.day)
    else:
        first = _span(unit, _index(unit, start.date()), 0)[0]
        chosen = _Day(start.toordinal() - first + 1)
    rhythm = _Rhythm(unit, part["count"], _index(unit, start.date()), month, chosen, setting.days)
    times = (_second_of_day(part["time"]) if "time" in part else reading(start) % DAY,)
    return BoundedWallTimes(DailyWallTimes(rhythm.days, lambda day: times), reading(start))


@lru_cache(maxsize=1024)
def _days(rhythm: _Rhythm, year: int) -> tuple[int, ...]:
    first, last = (_index(rhythm.unit, date(year, *day)) for day in ((1, 1), (12, 31)))
    first += (rhythm.origin - first) % rhythm.every
    chosen = (_chosen(rhythm, index) for index in range(first, last + 1, rhythm.every))
    year_days = range(date(year, 1, 1).toordinal(), date(year, 12, 31).toordinal() + 1)
    return tuple(day for day in chosen if day in year_days)


def _chosen(rhythm: _Rhythm, index: int) -> int:
    """Return the requested day of a period, or 0 if the period does not have it."""
    days = _span(rhythm.unit, index, rhythm.month)
    number, kind = rhythm.day
    if kind == "day":
        place = number - 1 if number > 0 else len(days) + number
        return days[place] if 0 <= place < len(days) else 0
    ordered = days if number > 0 else reversed(days)
    if kind == "working":
        fitting = (day for day in ordered if rhythm.open_days.is_open(date.fromordinal(day)))
    else:
        weekday = _WEEKDAYS.index(kind)
        fitting = (day for day in ordered if (day - 1) % 7 == weekday)
    return next(islice(fitting, abs(number) - 1, None), 0)


def _index(unit: str, day: date) -> int:
    """Return the number of the period that contains the day."""
    if unit in _MONTHS_OF:
        return (day.year * 12 + day.month - 1) // _MONTHS_OF[unit]
    return (day.toordinal() - 1) // _UNITS[unit]


def _span(unit: str, index: int, month: int) -> range:
    """Return the days of a period, or of one month of it, as ordinals."""
    if unit not in _MONTHS_OF:
        return range(index * _UNITS[unit] + 1, (index + 1) * _UNITS[unit] + 1)
    first = index * _MONTHS_OF[unit] + max(month - 1, 0)
    end = first + (1 if month else _MONTHS_OF[unit])
    return range(*(date(number // 12, number % 12 + 1, 1).toordinal() for number in (first, end)))


def _parsed_day(unit: str, day: object) -> _Day:
    refusal = InvalidSchedule.of(
        "day",
        day,
        f"a {unit} has no such day; give a number from 1 (-1 is the last), 'last',"
        " 'first working', 'last working', '3rd working', '2nd tuesday' or 'last"
        " friday'.",
    )
    if unit == "day":
        raise InvalidSchedule.of("day", day, "every day is meant already; leave it out.")
    if isinstance(day, int) and not isinstance(day, bool):
        if not 1 <= abs(day) <= _UNITS[unit]:
            raise refusal
        return _Day(day)
    text = day.strip().lower() if isinstance(day, str) else ""
    if text in _WEEKDAYS and unit == "week":
        return _Day(1, text)
    match = _DAY_TEXT.fullmatch(text)
    if not match:
        raise refusal
    number = {"first": 1, "last": -1}.get(match[1]) or int(match[1][:-2])
    if not 1 <= abs(number) <= _UNITS[unit]:
        raise refusal
    return _Day(number, match[2] or "day")


def _second_of_day(text: object) -> int:
    match = _TIME.fullmatch(text) if isinstance(text, str) else None
    if not match:
        raise InvalidSchedule.of("time", text, "give a time of day as '09:00' or '09:00:30'.")
    return int(match[1]) * 3600 + int(match[2]) * 60 + int(match[3] or 0)
