"""One recurrence rule (RFC 5545), evaluated year by year on the calendar, with bounded work per
call.
"""

from __future__ import annotations

from calendar import isleap, monthrange
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import date
from functools import lru_cache, partial
from itertools import groupby, product

from django_durable_tasks.rules.recurring.timetables.rrule_syntax import Rule
from django_durable_tasks.rules.recurring.timetables.wall_times import (
    BoundedWallTimes,
    DailyWallTimes,
    spaced,
)
from django_durable_tasks.rules.recurring.timetables.zone_offsets import DAY

_UNITS = {"HOURLY": 3600, "MINUTELY": 60, "SECONDLY": 1}


def rule_wall_times(rule: Rule) -> BoundedWallTimes:
    """Return the wall times of one rule, from its start to its end."""
    unbounded = BoundedWallTimes(_unbounded(replace(rule, count=None, until=None)), rule.start)
    if rule.until is not None:
        return replace(unbounded, end=rule.until + 1)
    if rule.count is None:
        return unbounded
    last: int | None = rule.start - 1
    for _ in range(rule.count):
        last = None if last is None else unbounded.first(last + 1)
    return unbounded if last is None else replace(unbounded, end=last + 1)


def _unbounded(rule: Rule) -> DailyWallTimes:
    if rule.positions:
        return DailyWallTimes(
            lambda year: tuple(_selected(rule, year)), partial(_selected_on, rule), uniform=False
        )
    if rule.frequency not in _UNITS:
        times = _times_of_day(rule)
        return DailyWallTimes(partial(_days, rule), lambda day: times)
    unit = _UNITS[rule.frequency]
    same = (DAY // unit) % rule.interval == 0
    if same and not _phased(rule, _phase(rule, 0, unit)):
        return DailyWallTimes(lambda year: (), lambda day: ())  # the steps never match the hours
    return DailyWallTimes(
        partial(_days, rule), lambda day: _phased(rule, _phase(rule, day, unit)), uniform=same
    )


def _times_of_day(rule: Rule) -> Sequence[int]:
    times = product(sorted(rule.hours), sorted(rule.minutes), sorted(rule.seconds))
    return spaced([hour * 3600 + minute * 60 + second for hour, minute, second in times])


def _phase(rule: Rule, day: int, unit: int) -> int:
    """Return the offset of the day's first step of the interval, in units."""
    return (rule.start // unit - day * DAY // unit) % rule.interval


@lru_cache(maxsize=64)
def _phased(rule: Rule, phase: int) -> Sequence[int]:
    """Return the times of a day whose first step is at this offset, in units after midnight."""
    unit = _UNITS[rule.frequency]
    hours, minutes, seconds = (
        rule.hours or range(24),
        rule.minutes or range(60),
        rule.seconds or range(60),
    )
    inside = {
        3600: [minute * 60 + second for minute in minutes for second in seconds],
        60: sorted(seconds),
        1: [0],
    }
    steps = range(phase * unit, DAY, rule.interval * unit)
    times = sorted(step + rest for step in steps if step // 3600 in hours for rest in inside[unit])
    return spaced([time for time in times if time // 60 % 60 in minutes and time % 60 in seconds])


@lru_cache(maxsize=1024)
def _days(rule: Rule, year: int) -> tuple[int, ...]:
    """Return the days of a year on which the rule's steps can fall, as ordinals."""
    start = date.fromordinal(rule.start // DAY)
    if rule.frequency == "YEARLY" and (year - start.year) % rule.interval:
        return ()
    months = [month for month in range(1, 13) if not rule.months or month in rule.months]
    if rule.frequency == "MONTHLY":
        months = [
            month
            for month in months
            if not ((year - start.year) * 12 + month - start.month) % rule.interval
        ]
    year_length = 365 + isleap(year)
    return tuple(
        day
        for month in months
        for day in _days_of_month(rule, year, month, year_length)
        if _in_step(rule, day)
    )


def _days_of_month(rule: Rule, year: int, month: int, year_length: int) -> Iterator[int]:
    length = monthrange(year, month)[1]
    first, new_year = date(year, month, 1).toordinal(), date(year, 1, 1).toordinal()
    by_month = rule.frequency == "MONTHLY" or bool(rule.months)
    for number in range(1, length + 1):
        day = first + number - 1
        of_year = day - new_year + 1
        place = (number, length) if by_month else (of_year, year_length)
        if (
            _fits(rule.month_days, number, length)
            and _fits(rule.year_days, of_year, year_length)
            and (not rule.weeks or _in_weeks(rule, day))
            and _on_weekday(rule, (day - 1) % 7, *place)
        ):
            yield day


def _fits(wanted: frozenset[int], number: int, length: int) -> bool:
    return not wanted or number in wanted or number - length - 1 in wanted


def _on_weekday(rule: Rule, weekday: int, number: int, length: int) -> bool:
    if not rule.weekdays and not rule.nth:
        return True
    ahead, behind = (number - 1) // 7 + 1, -((length - number) // 7 + 1)
    return weekday in rule.weekdays or (weekday, ahead) in rule.nth or (weekday, behind) in rule.nth


def _in_weeks(rule: Rule, day: int) -> bool:
    """Return whether the day's week is selected: a week belongs to the year that contains its
    fourth day.
    """
    fourth = date.fromordinal(day - (day - 1 - rule.week_start) % 7 + 3)
    of_year = fourth.timetuple().tm_yday
    ahead, behind = (of_year - 1) // 7 + 1, -((365 + isleap(fourth.year) - of_year) // 7 + 1)
    return ahead in rule.weeks or behind in rule.weeks


def _in_step(rule: Rule, day: int) -> bool:
    start = rule.start // DAY
    if rule.frequency == "WEEKLY":
        return (_week(rule, day) - _week(rule, start)) % rule.interval == 0
    return rule.frequency != "DAILY" or (day - start) % rule.interval == 0


def _week(rule: Rule, day: int) -> int:
    return (day - 1 - rule.week_start) // 7


@lru_cache(maxsize=1024)
def _selected(rule: Rule, year: int) -> dict[int, tuple[int, ...]]:
    """Return the days of a year with the times that BYSETPOS selects from each period."""
    times, picked = _times_of_day(rule), dict[int, list[int]]()
    days = [day for number in (year - 1, year, year + 1) for day in _days(rule, number)]
    for _, period in groupby(days, key=partial(_period, rule)):
        members = list(product(period, times))
        wanted = {place - 1 if place > 0 else len(members) + place for place in rule.positions}
        for place in sorted(wanted.intersection(range(len(members)))):
            picked.setdefault(members[place][0], []).append(members[place][1])
    return {
        day: tuple(found) for day, found in picked.items() if date.fromordinal(day).year == year
    }


def _selected_on(rule: Rule, day: int) -> tuple[int, ...]:
    return _selected(rule, date.fromordinal(day).year).get(day, ())


def _period(rule: Rule, day: int) -> object:
    moment = date.fromordinal(day)
    if rule.frequency == "WEEKLY":
        return _week(rule, day)
    return {"YEARLY": moment.year, "MONTHLY": (moment.year, moment.month)}.get(rule.frequency, day)
