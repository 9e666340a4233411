"""Cron: the wall times of an expression, with the rules of Debian's cron(8) for clock changes.

A job whose minute or hour begins with a star follows elapsed time: a wall time in a gap does not
fire, a repeated one fires twice, so the interval stays constant. Other jobs have fixed wall times,
to which the gap and repeat policies apply.
"""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from functools import lru_cache, partial
from typing import Any

from django_durable_tasks.rules.recurring.timetables.cron_syntax import (
    LAST,
    CronRule,
    DayPattern,
    fields,
    parsed,
)
from django_durable_tasks.rules.recurring.timetables.types import (
    SOME_START,
    DstGap,
    DstOverlap,
    TimetableContext,
)
from django_durable_tasks.rules.recurring.timetables.wall_times import DailyWallTimes, spaced
from django_durable_tasks.rules.recurring.timetables.wall_timetable import WallTimetable

_EVERY_KIND_OF_YEAR = range(2001, 2029)  # leap or not, for each first weekday


def checked(part: Mapping[str, Any], setting: TimetableContext) -> dict[str, Any]:
    """Return the canonical part, its fields separated by one space; raises InvalidSchedule."""
    seconds = part.get("seconds", "")
    fields(part["cron"], seconds)
    parsed(part["cron"], seconds, setting.seed)
    text = " ".join(part["cron"].split())
    return (
        {"cron": text, "seconds": seconds}
        if seconds and not text.startswith("@")
        else {"cron": text}
    )


def build(part: Mapping[str, Any], setting: TimetableContext) -> WallTimetable:
    """Return the timetable of a checked part."""
    rule = parsed(part["cron"], part.get("seconds", ""), setting.seed)
    if rule.real_clock:
        return WallTimetable(rule_wall_times(rule), setting.zone, DstGap.SKIP, DstOverlap.BOTH)
    return WallTimetable(rule_wall_times(rule), setting.zone, setting.gap, setting.overlap)


def read(part: Mapping[str, Any], setting: TimetableContext) -> TimetableContext:
    """Return the setting without the start and the working days, and without the seed unless the
    part may contain ``H``.
    """
    seed = setting.seed if "h" in f"{part['cron']}{part.get('seconds', '')}".lower() else ""
    return TimetableContext(setting.zone, SOME_START, setting.gap, setting.overlap, seed)


def never(part: Mapping[str, Any], setting: TimetableContext) -> str:
    """Return why no day can match, or an empty text."""
    rule = parsed(part["cron"], part.get("seconds", ""), setting.seed)
    if any(_days(rule.days, year) for year in _EVERY_KIND_OF_YEAR):
        return ""
    return f"cron={part['cron']!r} can never fire: no year has such a day."


def rule_wall_times(rule: CronRule) -> DailyWallTimes:
    """Return the wall times of a cron expression."""
    times = _times(rule.hours, rule.minutes, rule.seconds)
    return DailyWallTimes(partial(_days, rule.days), lambda day: times)


@lru_cache(maxsize=1024)
def _times(
    hours: tuple[int, ...], minutes: tuple[int, ...], seconds: tuple[int, ...]
) -> Sequence[int]:
    """Return the seconds of a day, as a range if they are evenly spaced."""
    times = [
        hour * 3600 + minute * 60 + second
        for hour in hours
        for minute in minutes
        for second in seconds
    ]
    return spaced(times)


@lru_cache(maxsize=1024)
def _days(pattern: DayPattern, year: int) -> tuple[int, ...]:
    """Return the days of a year that match, as ordinals."""
    return tuple(
        day for month in sorted(pattern.months) for day in _days_of_month(pattern, year, month)
    )


def _days_of_month(pattern: DayPattern, year: int, month: int) -> Iterator[int]:
    length = monthrange(year, month)[1]
    first = date(year, month, 1).toordinal()
    dates = pattern.dates | {_nearest_weekday(first, length, wanted) for wanted in pattern.nearest}
    dates |= {length} if pattern.last else set()
    join = any if pattern.either else all
    for number in range(1, length + 1):
        weekday = (first + number - 1) % 7  # ordinal 7 was a Sunday
        if join((number in dates, _is_weekday(pattern, weekday, number, length))):
            yield first + number - 1


def _is_weekday(pattern: DayPattern, weekday: int, number: int, length: int) -> bool:
    if weekday in pattern.weekdays:
        return True
    which = (number - 1) // 7 + 1
    return (weekday, which) in pattern.nth or (
        number + 7 > length and (weekday, LAST) in pattern.nth
    )


def _nearest_weekday(first: int, length: int, wanted: int) -> int:
    """Return the date of the working day nearest to the given date, within its month
    (Quartz's W).
    """
    number = min(wanted, length)
    weekday = (first + number - 1) % 7
    if weekday == 6:
        return number - 1 if number > 1 else number + 2
    if weekday == 0:
        return number + 1 if number < length else number - 2
    return number
