"""Cron: the parser of expressions, and their wall times with the rules of Debian's cron(8) for
clock changes.
"""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import lru_cache, partial
from typing import Any

from croniter import CroniterError, croniter

from django_durable_tasks.exceptions import InvalidSchedule
from django_durable_tasks.schedules.timetables.types import (
    SOME_START,
    DstGap,
    DstOverlap,
    TimetableContext,
)
from django_durable_tasks.schedules.timetables.wall_times import (
    DailyWallTimes,
    WallTimetable,
    spaced,
)

# Parser of cron expressions: on which days, at which times of day.
#
# Dialect: crontab(5) of Debian (five fields, names, lists, ranges, steps, nicknames), and in
# addition ``L`` in day of month, ``5L`` or ``L5`` (last Friday), ``5#3`` (third Friday), ``15W``
# (nearest weekday), ``?``, ``H`` (derived from the seed; in day of month from 1 to 28), and an
# optional sixth field for seconds. ``a/b`` is a to the end of the field (of weekdays: Saturday) in
# steps of b, a range may wrap (``22-2``). ``R`` is refused, because it would give another time on
# every node. croniter parses the fields.


MOST_CHARACTERS = 1_000
MOST_ITEMS = 200
LAST = 0  # in place of the number of a weekday in its month: the last one

NICKNAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_NOT_NICKNAMES = {
    "@reboot": "nothing reboots here; call the task where the process starts",
    "@every": "give a fixed interval instead: interval=3600",
}
_FIELDS = ("minute", "hour", "day of month", "month", "day of week", "second")
_DAY, _MONTH, _WEEKDAY, _SECOND = 2, 3, 4, 5
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_NAMES = {
    _MONTH: {name: number for number, name in enumerate(_MONTHS, 1)},
    _WEEKDAY: {name: number for number, name in enumerate(_WEEKDAYS)},
}
_LEGAL = re.compile(r"[A-Za-z0-9*/,\-#?()@ \t]+", re.ASCII)
_RANDOM = re.compile(r"r(\([^)]*\))?(/.*)?", re.ASCII)
_ONE_VALUE = re.compile(r"(\w+)-(\w+)(/0*[1-9]\d*)?", re.ASCII)
_NEAREST = re.compile(r"(\d+)w|w(\d+)", re.ASCII)
_LAST_WEEKDAY = re.compile(r"l([a-z]{3}|\d)|([a-z]{3}|\d)l", re.ASCII)
_FROM_THE_END = re.compile(r"l-\d+|lw|wl", re.ASCII)


@dataclass(frozen=True, slots=True)
class DayPattern:
    """The days: numbers 1-31 (``last`` adds the month's last), months 1-12, weekdays 0-6 from
    Sunday.

    ``nearest``: the weekday nearest to these dates, in their month. ``nth``: (weekday, which one in
    its month). ``either``: day of month and day of week are both restricted, so one of them
    suffices (crontab(5)). A field that begins with a star is not restricted, and then both must
    match.
    """

    months: frozenset[int]
    dates: frozenset[int]
    last: bool
    nearest: frozenset[int]
    weekdays: frozenset[int]
    nth: frozenset[tuple[int, int]]
    either: bool


@dataclass(frozen=True, slots=True)
class CronRule:
    """A parsed cron expression. ``real_clock``: minute or hour begin with a star (cron(8): wildcard
    jobs).
    """

    days: DayPattern
    hours: tuple[int, ...]
    minutes: tuple[int, ...]
    seconds: tuple[int, ...]
    real_clock: bool


@lru_cache(maxsize=4096)
def parsed(text: str, seconds: str = "", seed: str = "") -> CronRule:
    """Return the rule of an expression; ``seconds`` is FIRST or LAST for six fields. Raises
    InvalidSchedule.
    """
    written = fields(text, seconds)
    items = [
        [_item(text, number, item) for item in field.split(",")]
        for number, field in enumerate(written)
    ]
    nearest = _nearest(text, items[_DAY])
    read = [",".join(field) for field in items]
    if nearest:
        read[_DAY] = str(nearest)
    try:
        expanded: list[list[Any]]
        nth: dict[int, set[Any]]
        expanded, nth = croniter.expand(" ".join(read), hash_id=seed.encode())
    except (CroniterError, ValueError, LookupError) as error:
        fault = "it"  # the name and text of the first invalid field, if one alone is invalid
        for number, field in enumerate(read):
            alone = ["*"] * len(read)
            alone[number] = field
            if not croniter.is_valid(" ".join(alone), hash_id=seed.encode()):
                fault = f"{_FIELDS[number]} {field!r}"
                break
        raise InvalidSchedule.of("cron", text, f"{fault} cannot be read ({error}).") from error
    values = [_values(number, field) for number, field in enumerate(expanded)]
    pattern = DayPattern(
        months=values[_MONTH],
        dates=frozenset() if nearest else values[_DAY],
        last="l" in expanded[_DAY],
        nearest=frozenset({nearest} - {0}),
        weekdays=values[_WEEKDAY].difference(nth),
        nth=frozenset(
            (day, LAST if which == "l" else which) for day, all_ in nth.items() for which in all_
        ),
        either=not any(written[number].startswith(("*", "?")) for number in (_DAY, _WEEKDAY)),
    )
    minutes, hours = (tuple(sorted(values[number])) for number in (0, 1))
    second = tuple(sorted(values[_SECOND])) if len(values) > _SECOND else (0,)
    real_clock = written[0].startswith("*") or written[1].startswith("*")
    return CronRule(pattern, hours, minutes, second, real_clock)


def fields(text: object, seconds: str = "") -> list[str]:
    """Return the fields in lower case, seconds last; raises InvalidSchedule for an invalid text."""
    if not isinstance(text, str) or not text.strip():
        raise InvalidSchedule.of("cron", text, "give five fields, for example '30 2 * * *'.")
    if len(text) > MOST_CHARACTERS or text.count(",") >= MOST_ITEMS:
        raise InvalidSchedule(
            f"cron={text[:40]!r}...: {len(text)} characters and {text.count(',') + 1} items; at"
            f" most {MOST_CHARACTERS} characters and {MOST_ITEMS} items are read. Split it into"
            " several parts, or give an rrule.",
            option="cron",
        )
    if not _LEGAL.fullmatch(text):
        raise InvalidSchedule.of(
            "cron", text, "only letters, digits and * / , - # ? ( ) are allowed."
        )
    word = text.strip().lower()
    if word.startswith("@"):
        if word not in NICKNAMES:
            known = f"known are {', '.join(sorted(NICKNAMES))}"
            why = _NOT_NICKNAMES.get(word.split(maxsplit=1)[0], known)
            raise InvalidSchedule.of("cron", text, f"{why}.")
        word, seconds = NICKNAMES[word], ""
    if seconds not in ("", "FIRST", "LAST"):
        raise InvalidSchedule.of(
            "seconds", seconds, "write FIRST or LAST for the position of the seconds field."
        )
    words = word.split()
    if len(words) != (6 if seconds else 5):
        hint = ""
        if len(words) == 6:
            position = "seconds='FIRST' or seconds='LAST'"
            hint = f" If one of them is seconds, give its position: {position}."
        raise InvalidSchedule.of(
            "cron", text, f"{len(words)} fields; {('six' if seconds else 'five')} are needed.{hint}"
        )
    return [*words[1:], words[0]] if seconds == "FIRST" else words


def _item(text: str, number: int, item: str) -> str:
    """Return one item of a list in the form that croniter parses correctly; raises InvalidSchedule
    for unsupported items.
    """
    if _RANDOM.fullmatch(item):
        raise InvalidSchedule.of(
            "cron", text, "R is another time on every node; write H, which is drawn once and stays."
        )
    if number == _DAY and _FROM_THE_END.fullmatch(item):
        day = "'last working'" if "w" in item else f"-{int(item[2:]) + 1}"
        raise InvalidSchedule.of(
            "cron", text, f"{item.upper()} is not read; give {{'every': 'month', 'day': {day}}}."
        )
    if number == _DAY and (item == "h" or item.startswith("h/")):
        return item.replace("h", "h(1-28)")  # every month has these
    if number == _WEEKDAY and (match := _LAST_WEEKDAY.fullmatch(item)):
        return f"l{_number(number, match[1] or match[2])}"
    if (match := _ONE_VALUE.fullmatch(item)) and _number(number, match[1]) == _number(
        number, match[2]
    ):
        return match[1]  # croniter parses 23-23/24 as the whole field
    return item


def _number(number: int, word: str) -> str:
    value = str(_NAMES.get(number, {}).get(word, word))
    return value.lstrip("0") or "0"


def _nearest(text: str, items: list[str]) -> int:
    """Return the date of ``15W``, or 0."""
    matches = [match for item in items if (match := _NEAREST.fullmatch(item))]
    if not matches:
        return 0
    date = int(matches[0][1] or matches[0][2])
    if len(items) > 1 or not 1 <= date <= 31:
        raise InvalidSchedule.of(
            "cron", text, "W stands with one date from 1 to 31 and alone, for example 15W."
        )
    return date


def _values(number: int, field: list[Any]) -> frozenset[int]:
    if "*" in field:
        low, high = croniter.RANGES[number]
        return frozenset(range(low, high + 1)) - ({7} if number == _WEEKDAY else set())
    return frozenset(value for value in field if isinstance(value, int))


# A job whose minute or hour begins with a star follows elapsed time: a wall time in a gap does not
# fire, a repeated one fires twice, so the interval stays constant. Other jobs have fixed wall
# times, to which the gap and repeat policies apply.


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
    days, join = list[int](), any if pattern.either else all
    for month in sorted(pattern.months):
        length = monthrange(year, month)[1]
        first = date(year, month, 1).toordinal()
        dates = pattern.dates | {_nearest_weekday(first, length, day) for day in pattern.nearest}
        dates |= {length} if pattern.last else set()
        for number in range(1, length + 1):
            weekday = (first + number - 1) % 7  # ordinal 7 was a Sunday
            is_named = (
                weekday in pattern.weekdays
                or (weekday, (number - 1) // 7 + 1) in pattern.nth
                or (number + 7 > length and (weekday, LAST) in pattern.nth)
            )
            if join((number in dates, is_named)):
                days.append(first + number - 1)
    return tuple(days)


def _nearest_weekday(first: int, length: int, day: int) -> int:
    """Return the date of the working day nearest to the given date, within its month
    (Quartz's W).
    """
    number = min(day, length)
    weekday = (first + number - 1) % 7
    if weekday == 6:
        return number - 1 if number > 1 else number + 2
    if weekday == 0:
        return number + 1 if number < length else number - 2
    return number
