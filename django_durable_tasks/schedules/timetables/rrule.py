"""Recurrences (RFC 5545): the parser, single rules, and rules with dates and exceptions."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from calendar import isleap, monthrange
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from functools import cache, lru_cache, partial
from itertools import groupby, product
from math import gcd
from typing import Any

from django_durable_tasks.exceptions import InvalidSchedule
from django_durable_tasks.schedules.timetables.types import (
    Count,
    Direction,
    Remembered,
    TimetableContext,
)
from django_durable_tasks.schedules.timetables.wall_times import (
    EMPTY_YEARS,
    BoundedWallTimes,
    DailyWallTimes,
    WallTimes,
    WallTimetable,
    spaced,
)
from django_durable_tasks.schedules.timetables.zones import DAY, LAST_YEAR, reading, zone

# Parser of recurrences in RFC 5545: RRULE, RDATE, EXRULE, EXDATE and DTSTART, one per line.
#
# A bare ``FREQ=...`` is an RRULE. Times are wall times of the schedule's zone; times that end in Z
# are converted. Parts that a rule does not define come from DTSTART, as in dateutil. UNTIL without
# a time is midnight at the start of its day.


MOST_CHARACTERS, MOST_LINES, MOST_DATES, MOST_COUNTED, MOST_INTERVAL = (
    5_000,
    20,
    500,
    10_000,
    1_000_000,
)
FREQUENCIES = ("YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY")
_WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
_LIMITS = {  # key: (attribute, minimum, maximum, whether negative numbers are allowed)
    "BYMONTH": ("months", 1, 12, False),
    "BYMONTHDAY": ("month_days", 1, 31, True),
    "BYYEARDAY": ("year_days", 1, 366, True),
    "BYWEEKNO": ("weeks", 1, 53, True),
    "BYHOUR": ("hours", 0, 23, False),
    "BYMINUTE": ("minutes", 0, 59, False),
    "BYSECOND": ("seconds", 0, 59, False),
    "BYSETPOS": ("positions", 1, 366, True),
}
_BYDAY = re.compile(r"([+-]?\d{1,2})?(MO|TU|WE|TH|FR|SA|SU)", re.ASCII)
_STAMP = re.compile(r"\d{8}(T\d{6}Z?)?", re.ASCII)
_NONE: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Rule:
    """One RRULE or EXRULE with the defaults of its start; weekdays from Monday, ``until`` is a wall
    second.
    """

    start: int
    frequency: str = ""
    interval: int = 1
    week_start: int = 0
    count: int | None = None
    until: int | None = None
    months: frozenset[int] = _NONE
    month_days: frozenset[int] = _NONE
    year_days: frozenset[int] = _NONE
    weeks: frozenset[int] = _NONE
    weekdays: frozenset[int] = _NONE
    nth: frozenset[tuple[int, int]] = frozenset()
    hours: frozenset[int] = _NONE
    minutes: frozenset[int] = _NONE
    seconds: frozenset[int] = _NONE
    positions: frozenset[int] = _NONE

    @property
    def rank(self) -> int:
        """Return the index of the frequency, from YEARLY (0) to SECONDLY (6)."""
        return FREQUENCIES.index(self.frequency)


@dataclass(slots=True)
class Recurrence:
    """All lines of a text: rules and wall seconds that are included, and those that are
    excluded.
    """

    rules: list[Rule] = field(default_factory=list)
    dates: set[int] = field(default_factory=set)
    excluded_rules: list[Rule] = field(default_factory=list)
    excluded_dates: set[int] = field(default_factory=set)


def parsed(text: object, setting: TimetableContext) -> Recurrence:
    """Return the recurrence of a text; raises InvalidSchedule with the line, the key and
    the value.
    """
    lines = _lines(text)
    start = setting.anchor.astimezone(zone(setting.zone)).replace(tzinfo=None, microsecond=0)
    own_start = next((line for line in lines if line.startswith("DTSTART")), None)
    if own_start is not None:
        head, _, value = own_start.rpartition(":")
        if value.endswith("Z") and setting.zone != "UTC":
            raise InvalidSchedule(
                f"rrule: {own_start!r} is in UTC and the schedule in {setting.zone}; leave the Z"
                " out, or use UTC."
            )
        _own_zone(own_start, head.partition(";")[2], setting)
        start = _stamp("DTSTART", value, setting)
    recurrence = Recurrence()
    for line in lines:
        head, _, value = line.rpartition(":")
        name, _, parameters = head.partition(";")
        if name in {"RRULE", "EXRULE", ""} and not parameters:
            (recurrence.excluded_rules if name == "EXRULE" else recurrence.rules).append(
                _rule(value, start, setting)
            )
        elif name in {"RDATE", "EXDATE"}:
            _own_zone(line, parameters, setting)
            (recurrence.excluded_dates if name == "EXDATE" else recurrence.dates).update(
                reading(_stamp(line.partition(":")[0], stamp, setting))
                for stamp in value.split(",")
            )
        elif name != "DTSTART":
            raise InvalidSchedule(
                f"rrule: {line[:80]!r}: a line begins with RRULE, RDATE, EXRULE, EXDATE or DTSTART."
            )
    if not recurrence.rules and not recurrence.dates:
        raise InvalidSchedule(
            "rrule: no line defines when it fires; give for example 'FREQ=MONTHLY;BYDAY=-1FR'."
        )
    return recurrence


def _lines(text: object) -> list[str]:
    if not isinstance(text, str) or not text.strip():
        raise InvalidSchedule.of(
            "rrule", text, "give a text, for example 'FREQ=MONTHLY;BYDAY=-1FR'."
        )
    lines = [
        line.strip().upper() if "TZID" not in line.upper() else line.strip()
        for line in text.splitlines()
    ]
    lines = [line for line in lines if line]
    if len(text) > MOST_CHARACTERS or len(lines) > MOST_LINES or text.count(",") > MOST_DATES:
        raise InvalidSchedule(
            f"rrule={text[:40]!r}...: {len(text)} characters in {len(lines)} lines; at most"
            f" {MOST_CHARACTERS} characters, {MOST_LINES} lines and {MOST_DATES} values are read."
            " Give instants or several parts.",
            option="rrule",
        )
    return lines


def _own_zone(line: str, parameters: str, setting: TimetableContext) -> None:
    for parameter in filter(None, parameters.split(";")):
        if parameter not in {f"TZID={setting.zone}", "VALUE=DATE-TIME", "VALUE=DATE"}:
            raise InvalidSchedule(
                f"rrule: {line[:80]!r}: {parameter[:40]} does not fit timezone={setting.zone!r}."
            )


def _stamp(name: str, text: str, setting: TimetableContext) -> datetime:
    """Convert a time to the wall time of the schedule's zone."""
    try:
        if not _STAMP.fullmatch(text):
            raise InvalidSchedule(f"rrule: {name}={text[:40]!r}: write it as 20260308T023000.")
        moment = datetime.fromisoformat(text)
        return (
            moment.astimezone(zone(setting.zone)).replace(tzinfo=None) if moment.tzinfo else moment
        )
    except (ValueError, OverflowError) as error:
        if isinstance(error, InvalidSchedule):
            raise
        raise InvalidSchedule(
            f"rrule: {name}={text!r}: there is no such time ({error})."
        ) from error


def _rule(text: str, start: datetime, setting: TimetableContext) -> Rule:
    pairs = [part.partition("=")[::2] for part in text.split(";") if part]
    by_key = dict(pairs)
    if len(by_key) < len(pairs) or not by_key.get("FREQ"):
        raise InvalidSchedule.of("rrule", text[:80], "each key once, and FREQ among them.")
    values: dict[str, Any] = {"start": reading(start)}
    for key, value in by_key.items():
        values |= _read(key, value, setting)
    rule = Rule(**values)
    # Keys that RFC 5545 does not allow together.
    faults = {
        "COUNT and UNTIL exclude each other": rule.count is not None and rule.until is not None,
        "BYDAY with a number needs FREQ=MONTHLY or YEARLY, without BYWEEKNO": (
            rule.nth and (rule.rank > 1 or rule.weeks)
        ),
        "BYWEEKNO needs FREQ=YEARLY": rule.weeks and rule.rank > 0,
        "BYSETPOS needs FREQ=DAILY or longer": (
            rule.positions and rule.rank > FREQUENCIES.index("DAILY")
        ),
    }
    for fault, applies in faults.items():
        if applies:
            raise InvalidSchedule.of("rrule", text[:80], f"{fault}.")
    # The missing parts are derived from the start.
    completed: dict[str, Any] = {}
    if not (rule.weeks or rule.year_days or rule.month_days or rule.weekdays or rule.nth):
        if rule.frequency == "YEARLY" and not rule.months:
            completed["months"] = frozenset({start.month})
        if rule.frequency in {"YEARLY", "MONTHLY"}:
            completed["month_days"] = frozenset({start.day})
        if rule.frequency == "WEEKLY":
            completed["weekdays"] = frozenset({start.weekday()})
    for name, finest in (("hour", "HOURLY"), ("minute", "MINUTELY"), ("second", "SECONDLY")):
        if not getattr(rule, f"{name}s") and rule.rank < FREQUENCIES.index(finest):
            completed[f"{name}s"] = frozenset({getattr(start, name)})
    return replace(rule, **completed)


def _read(key: str, value: str, setting: TimetableContext) -> Mapping[str, Any]:
    """Return the attributes that one key sets."""
    if key in _LIMITS:
        attribute, least, most, signed = _LIMITS[key]
        return {
            attribute: frozenset(
                _number(key, word, least, most, signed) for word in value.split(",")
            )
        }
    if key == "BYDAY":
        plain, nth = set(), set()
        for word in value.split(","):
            match = _BYDAY.fullmatch(word)
            if not match or (match[1] and not 1 <= abs(int(match[1])) <= 53):
                raise InvalidSchedule(
                    f"rrule: BYDAY={word[:40]!r}: give for example MO, 2TU or -1FR."
                )
            weekday = _WEEKDAYS.index(match[2])
            if match[1]:
                nth.add((weekday, int(match[1])))
            else:
                plain.add(weekday)
        return {"weekdays": frozenset(plain), "nth": frozenset(nth)}
    if key == "FREQ" and value in FREQUENCIES:
        return {"frequency": value}
    if key == "WKST" and value in _WEEKDAYS:
        return {"week_start": _WEEKDAYS.index(value)}
    if key == "UNTIL":
        return {"until": reading(_stamp(key, value, setting))}
    if key in {"INTERVAL", "COUNT"}:
        return {
            key.lower(): _number(
                key, value, 1, MOST_COUNTED if key == "COUNT" else MOST_INTERVAL, False
            )
        }
    raise InvalidSchedule(
        f"rrule: {key[:40]}={value[:40]!r} is not read; see RFC 5545, section 3.3.10."
    )


def _number(key: str, word: str, least: int, most: int, signed: bool) -> int:
    if re.fullmatch(r"[+-]?\d{1,7}", word, re.ASCII):
        number = int(word)
        if least <= (abs(number) if signed else number) <= most:
            return number
    ends = f" or from {-most} to {-least}" if signed else ""
    raise InvalidSchedule(f"rrule: {key}={word[:40]!r}: give numbers from {least} to {most}{ends}.")


# One recurrence rule (RFC 5545), evaluated year by year on the calendar, with bounded work per
# call.


_UNITS = {"HOURLY": 3600, "MINUTELY": 60, "SECONDLY": 1}


def rule_wall_times(rule: Rule) -> BoundedWallTimes:
    """Return the wall times of one rule, from its start to its end."""
    inner = _unbounded(replace(rule, count=None, until=None))
    unbounded = BoundedWallTimes(inner, rule.start)
    if rule.until is not None:
        return replace(unbounded, end=rule.until + 1)
    if rule.count is None:
        return unbounded
    last = _nth(inner, rule.start, rule.count)
    return unbounded if last is None else replace(unbounded, end=last + 1)


def _nth(wall_times: DailyWallTimes, start: int, number: int) -> int | None:
    """Return the wall time with this number from the start, or None if it is more than 400 years
    after it. Whole days are counted at once.
    """
    day, second = divmod(start, DAY)
    year = date.fromordinal(day).year
    for each in range(year, min(year + EMPTY_YEARS, LAST_YEAR) + 1):
        for candidate in wall_times.days(each):
            if candidate < day:
                continue
            times = wall_times.times(candidate)
            skipped = bisect_left(times, second) if candidate == day else 0
            if number <= len(times) - skipped:
                return candidate * DAY + times[skipped + number - 1]
            number -= len(times) - skipped
    return None


def _unbounded(rule: Rule) -> DailyWallTimes:
    if rule.positions:
        return DailyWallTimes(
            lambda year: sorted(_selected(rule, year)),
            lambda day: _selected(rule, date.fromordinal(day).year).get(day, ()),
            uniform=False,
        )
    if rule.frequency not in _UNITS:
        of_day = product(sorted(rule.hours), sorted(rule.minutes), sorted(rule.seconds))
        times = spaced([hour * 3600 + minute * 60 + second for hour, minute, second in of_day])
        return DailyWallTimes(partial(_days, rule), lambda day: times)
    unit = _UNITS[rule.frequency]
    return DailyWallTimes(
        partial(_days_with_steps, rule),
        # The offset of the day's first step of the interval, in units.
        lambda day: _phased(rule, (rule.start // unit - day * DAY // unit) % rule.interval),
        uniform=(DAY // unit) % rule.interval == 0,
    )


@lru_cache(maxsize=1024)
def _days_with_steps(rule: Rule, year: int) -> tuple[int, ...]:
    """Return the days of a year that have a step of the interval at the times of the rule.

    Otherwise a rule whose steps rarely meet its hours would compute the times of every day of 400
    years.
    """
    unit = _UNITS[rule.frequency]
    phases, start, of_day, interval = (
        _phases(rule, unit),
        rule.start // unit,
        DAY // unit,
        rule.interval,
    )
    if not phases:
        return ()
    return tuple(day for day in _days(rule, year) if (start - day * of_day) % interval in phases)


@lru_cache(maxsize=64)
def _phases(rule: Rule, unit: int) -> frozenset[int]:
    """Return the phases of days with at least one step at the times of the rule; none if no day can
    have such a phase.
    """
    hours, minutes, seconds = (
        rule.hours or range(24),
        rule.minutes or range(60),
        rule.seconds or range(60),
    )
    fields = (hours, minutes if unit <= 60 else (0,), seconds if unit == 1 else (0,))
    steps = (
        (hour * 3600 + minute * 60 + second) // unit for hour, minute, second in product(*fields)
    )
    divisor = gcd(rule.interval, DAY // unit)
    offset = rule.start // unit % divisor
    return frozenset(step % rule.interval for step in steps if step % divisor == offset)


@lru_cache(maxsize=64)
def _phased(rule: Rule, phase: int) -> Sequence[int]:
    """Return the times of a day whose first step is at this offset, in units after midnight."""
    unit = _UNITS[rule.frequency]
    hours, minutes, seconds = (
        rule.hours or range(24),
        rule.minutes or range(60),
        rule.seconds or range(60),
    )
    inside: Sequence[int] = [0]
    if unit == 60:
        inside = sorted(seconds)
    elif unit == 3600:
        inside = [minute * 60 + second for minute in minutes for second in seconds]
    steps = range(phase * unit, DAY, rule.interval * unit)
    times = sorted(step + offset for step in steps if step // 3600 in hours for offset in inside)
    return spaced([time for time in times if time // 60 % 60 in minutes and time % 60 in seconds])


@lru_cache(maxsize=1024)
def _days(rule: Rule, year: int) -> tuple[int, ...]:
    """Return the days of a year on which the rule's steps can fall, as ordinals."""
    start, new_year = date.fromordinal(rule.start // DAY), date(year, 1, 1).toordinal()
    if rule.frequency == "YEARLY" and (year - start.year) % rule.interval:
        return ()
    months = rule.months or frozenset(range(1, 13))
    if rule.frequency == "MONTHLY":
        behind = (year - start.year) * 12 - start.month
        months = frozenset(month for month in months if not (behind + month) % rule.interval)
    if not months:
        return ()
    # The year matters only for the selection of whole periods by the interval.
    pattern = _pattern(
        replace(rule, start=0, interval=1, count=None, until=None), months, _year_like(rule, year)
    )
    days = tuple(new_year + place for place in pattern)
    if rule.interval == 1 or rule.frequency not in {"WEEKLY", "DAILY"}:
        return days
    period = partial(_week, rule) if rule.frequency == "WEEKLY" else int
    first = period(rule.start // DAY)
    return tuple(day for day in days if (period(day) - first) % rule.interval == 0)


def _year_like(rule: Rule, year: int) -> int:
    """Return a year with the same calendar as far as the rule depends on it.

    A year's weekdays and the lengths of it and of its neighbours have at most 28 combinations. So
    a rule without a match examines the days of 28 years instead of 400.
    """
    if not (rule.weekdays or rule.nth or rule.weeks):
        return 2000 if isleap(year) else 2001
    return _same_calendar(
        date(year, 1, 1).weekday(), (isleap(year - 1), isleap(year), isleap(year + 1))
    )


@cache
def _same_calendar(weekday: int, leaps: tuple[bool, bool, bool]) -> int:
    return next(
        year
        for year in range(2000, 2400)
        if date(year, 1, 1).weekday() == weekday
        and (isleap(year - 1), isleap(year), isleap(year + 1)) == leaps
    )


@lru_cache(maxsize=2048)
def _pattern(rule: Rule, months: frozenset[int], year: int) -> tuple[int, ...]:
    """Return the days of a year that the BY parts select, counted from 0, whatever the interval."""
    days, year_length, new_year = list[int](), 365 + isleap(year), date(year, 1, 1).toordinal()
    by_month = rule.frequency == "MONTHLY" or bool(rule.months)
    for month in sorted(months):
        length, first = monthrange(year, month)[1], date(year, month, 1).toordinal()
        for number in range(1, length + 1):
            day = first + number - 1
            of_year = day - new_year + 1
            weekday = (day - 1) % 7
            place, last = (number, length) if by_month else (of_year, year_length)
            ahead, behind = (place - 1) // 7 + 1, -((last - place) // 7 + 1)
            if (
                _fits(rule.month_days, number, length)
                and _fits(rule.year_days, of_year, year_length)
                and (not rule.weeks or _in_weeks(rule, day))
                and (
                    not (rule.weekdays or rule.nth)
                    or weekday in rule.weekdays
                    or (weekday, ahead) in rule.nth
                    or (weekday, behind) in rule.nth
                )
            ):
                days.append(day - new_year)
    return tuple(days)


def _fits(numbers: frozenset[int], number: int, length: int) -> bool:
    return not numbers or number in numbers or number - length - 1 in numbers


def _in_weeks(rule: Rule, day: int) -> bool:
    """Return whether the day's week is selected: a week belongs to the year that contains its
    fourth day.
    """
    fourth = date.fromordinal(day - (day - 1 - rule.week_start) % 7 + 3)
    of_year = fourth.timetuple().tm_yday
    ahead, behind = (of_year - 1) // 7 + 1, -((365 + isleap(fourth.year) - of_year) // 7 + 1)
    return ahead in rule.weeks or behind in rule.weeks


def _week(rule: Rule, day: int) -> int:
    return (day - 1 - rule.week_start) // 7


@lru_cache(maxsize=1024)
def _selected(rule: Rule, year: int) -> dict[int, tuple[int, ...]]:
    """Return the days of a year with the times that BYSETPOS selects from each period.

    A position is computed from the numbers of days and times. The set of a period is never
    expanded: a year can have 31 million members.
    """
    fields = (
        tuple(sorted(rule.hours)),
        tuple(sorted(rule.minutes)),
        tuple(sorted(rule.seconds)),
    )
    longest = {"DAILY": 1, "WEEKLY": len(rule.weekdays) or 7, "MONTHLY": 31, "YEARLY": 366}
    if not _places(rule.positions, longest[rule.frequency], fields):
        return {}
    days: Sequence[int] = _days(rule, year)
    if rule.frequency == "DAILY":  # every day selects the same times
        return dict.fromkeys(days, _places(rule.positions, 1, fields)[0])
    if rule.frequency == "WEEKLY":  # its first and last period reach into the neighbouring years
        days = (*_days(rule, year - 1)[-6:], *days, *_days(rule, year + 1)[:6])
    periods = [list(period) for _, period in groupby(days, key=_period(rule, year))]
    places = {size: _places(rule.positions, size, fields) for size in set(map(len, periods))}
    first, last = date(year, 1, 1).toordinal(), date(year, 12, 31).toordinal()
    return {
        period[index]: times
        for period in periods
        for index, times in places[len(period)].items()
        if first <= period[index] <= last
    }


@lru_cache(maxsize=64)
def _places(
    positions: frozenset[int],
    days: int,
    fields: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]],
) -> dict[int, tuple[int, ...]]:
    """Return the selected times of a period with this number of days, by the index of the day."""
    hours, minutes, seconds = fields
    size = len(hours) * len(minutes) * len(seconds)
    picked = dict[int, list[int]]()
    chosen = {place - 1 if place > 0 else days * size + place for place in positions}
    for place in sorted(place for place in chosen if 0 <= place < days * size):
        index, time = divmod(place, size)
        whole_minutes, second = divmod(time, len(seconds))
        hour, minute = divmod(whole_minutes, len(minutes))
        picked.setdefault(index, []).append(
            hours[hour] * 3600 + minutes[minute] * 60 + seconds[second]
        )
    return {index: tuple(times) for index, times in picked.items()}


def _period(rule: Rule, year: int) -> Callable[[int], int]:
    """Return the function that numbers the periods of a rule, for the days of a year."""
    if rule.frequency == "WEEKLY":
        return partial(_week, rule)
    if rule.frequency == "MONTHLY":
        starts = [date(year, month, 1).toordinal() for month in range(1, 13)]
        return partial(bisect_right, starts)
    return lambda day: year


# Recurrences (RFC 5545): rules and single dates minus exceptions, as wall times of the schedule's
# zone.
#
# dateutil parses the same texts, but iterates a rule from its start, and without end if nothing
# matches. Therefore only the tests use it, as a reference. A rule without a match within 400 years
# counts as finished.


_MOST = 10_000


def _steps(sources: int) -> int:
    """Return how many consecutive exceptions are passed: 10,000 look-ups in all
    sources, and at least all single dates."""
    return max(_MOST // sources, MOST_DATES + 1)


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


class Combined:
    """The wall times of all ``included``, without those of any exception; distinct."""

    def __init__(self, included: tuple[WallTimes, ...], excluded: tuple[WallTimes, ...]) -> None:
        self.included, self.excluded = included, excluded
        self._following, self._previous = _searches(included)
        self._excluded_following, self._excluded_previous = _searches(excluded)
        self._steps = _steps(len(included) + len(excluded))

    def first(self, start: int) -> int | None:
        """Return the first wall time at or after; raises InvalidSchedule after too many
        exceptions.
        """
        for _ in range(self._steps):
            seconds = [
                second for search in self._following if (second := search(start - 1)) is not None
            ]
            first = min(seconds, default=None)
            if first is None or all(
                search(first - 1) != first for search in self._excluded_following
            ):
                return first
            start = first + 1
        raise _too_many(self._steps)

    def last(self, end: int) -> int | None:
        """Return the last wall time before; raises InvalidSchedule after too many exceptions."""
        for _ in range(self._steps):
            seconds = [second for search in self._previous if (second := search(end)) is not None]
            last = max(seconds, default=None)
            if last is None or all(search(last + 1) != last for search in self._excluded_previous):
                return last
            end = last
        raise _too_many(self._steps)

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


_Searches = list[Remembered[int, int]]


def _searches(sources: Iterable[WallTimes]) -> tuple[_Searches, _Searches]:
    """Return the searches for the next and for the previous wall time of each source."""

    def following(source: WallTimes) -> Remembered[int, int]:
        return Remembered(lambda second: source.first(second + 1), int, Direction.FORWARD)

    sources = list(sources)
    return (
        [following(source) for source in sources],
        [Remembered(source.last, int, Direction.BACK) for source in sources],
    )


def _too_many(steps: int) -> InvalidSchedule:
    return InvalidSchedule(
        f"rrule: {steps} consecutive times are excluded; write the rule without EXRULE, or"
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
    """Return why the rule has no fire at all, or an empty text.

    Without DTSTART an INTERVAL counts from the start of the schedule, which need not be that of
    ``setting``: every second hour reaches BYHOUR=3 from an odd one only.
    """
    text = part["rrule"]
    depends = "DTSTART" not in text.upper() and any(
        rule.interval > 1 for rule in parsed(text, setting).rules
    )
    if depends or _wall_times(part, setting).first(0) is not None:
        return ""
    return f"rrule={text!r} can never fire."


def _wall_times(part: Mapping[str, Any], setting: TimetableContext) -> WallTimes:
    recurrence = parsed(part["rrule"], setting)
    included = _all(recurrence.rules, recurrence.dates)
    excluded = _all(recurrence.excluded_rules, recurrence.excluded_dates)
    return included[0] if len(included) == 1 and not excluded else Combined(included, excluded)


def _all(rules: Iterable[Rule], dates: set[int]) -> tuple[WallTimes, ...]:
    single: tuple[WallTimes, ...] = (Dates(tuple(sorted(dates))),) if dates else ()
    # Equal rules fire at the same times.
    return (*map(rule_wall_times, dict.fromkeys(rules)), *single)
