"""Converts schedules from user input to the JSON parts of a row, these to timetables, and
timetables to short descriptions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from django_durable_tasks.exceptions import InvalidSchedule
from django_durable_tasks.schedules.timetables import cron, intervals, rrule, solar
from django_durable_tasks.schedules.timetables.types import (
    SOME_START,
    WEEKDAYS,
    DstGap,
    DstOverlap,
    OpenDays,
    Timetable,
    TimetableContext,
    Union,
)
from django_durable_tasks.schedules.timetables.wall_times import WallTimetable
from django_durable_tasks.schedules.timetables.zones import zone_name

# A schedule is a list of one or more parts, combined by OR: ``[{"cron": "30 2 * * *"},
# {"interval": 3600.0}]``.


MOST_PARTS = 50
Part = Mapping[str, Any]


class _Kind(NamedTuple):
    keys: frozenset[str]
    checked: Callable[[Part, TimetableContext], dict[str, Any]]
    build: Callable[[Part, TimetableContext], Timetable]
    never: Callable[[Part, TimetableContext], str] = lambda part, setting: ""
    read: Callable[[Part, TimetableContext], TimetableContext] = lambda part, setting: setting
    """Returns the setting without what the timetable of the part does not depend on, so that
    schedules with equal parts share one timetable.
    """


_KINDS = {
    "interval": _Kind(
        frozenset(), intervals.checked_interval, intervals.build_interval, lambda part, setting: ""
    ),
    "cron": _Kind(frozenset({"seconds"}), cron.checked, cron.build, cron.never, cron.read),
    "rrule": _Kind(frozenset(), rrule.checked, rrule.build, rrule.never),
    "solar": _Kind(
        frozenset({"latitude", "longitude", "offset"}), solar.checked, solar.build, solar.never
    ),
    "every": _Kind(
        frozenset({"count", "day", "month", "time"}),
        intervals.checked_calendar_interval,
        intervals.build_calendar_interval,
        intervals.never,
    ),
    "at": _Kind(frozenset(), intervals.checked_instants, intervals.build_instants),
}


def checked(
    parts: Sequence[Part],
    *,
    zone: object = "UTC",
    anchor: datetime = SOME_START,
    seed: str = "",
    allow_never: bool = False,
) -> list[dict[str, Any]]:
    """Return the canonical parts as JSON values; raises InvalidSchedule with the part and the
    remedy.

    A part that can never fire is refused, because ``0 0 31 2 *`` is a common way to disable a job.
    ``allow_never`` accepts it, for a row that is paused.
    """
    if not isinstance(parts, list | tuple) or not parts:
        raise InvalidSchedule(
            f"A schedule is a list of at least one part, and not {str(parts)[:60]!r}."
        )
    if len(parts) > MOST_PARTS:
        raise InvalidSchedule(
            f"{len(parts)} parts; a schedule can have {MOST_PARTS}. Give several schedules."
        )
    setting = TimetableContext(zone_name(zone), _utc(anchor), seed=seed)
    canonical = [_kind(part).checked(part, setting) for part in parts]
    if not allow_never and (
        why := never_fires(canonical, zone=setting.zone, anchor=anchor, seed=seed)
    ):
        raise InvalidSchedule(why)
    return canonical


def never_fires(
    parts: Sequence[Part], *, zone: str = "UTC", anchor: datetime = SOME_START, seed: str = ""
) -> str:
    """Return why one of the checked parts can never fire and the remedy; an empty text if each of
    them can.
    """
    setting = TimetableContext(zone, _utc(anchor), seed=seed)
    for part in parts:
        if why := _kind(part).never(part, setting):
            return f"{why} To switch a schedule off, pause it instead: pause(reason)."
    return ""


def timetable(
    parts: Sequence[Part],
    *,
    zone: str,
    anchor: datetime,
    dst_gap: DstGap | str = DstGap.RUN_AFTER,
    dst_overlap: DstOverlap | str = DstOverlap.FIRST,
    seed: str = "",
    days: OpenDays | None = None,
) -> Timetable:
    """Return the timetable of checked parts, from a cache; ``anchor`` is the start of the schedule,
    aware.

    Raises InvalidSchedule for an unknown zone or policy. ``days`` must be hashable and must not
    change.
    """
    setting = TimetableContext(
        zone_name(zone),
        _utc(anchor),
        _policy("dst_gap", DstGap, dst_gap),
        _policy("dst_overlap", DstOverlap, dst_overlap),
        seed,
        WEEKDAYS if days is None else days,
    )
    built = [_built(part, setting) for part in parts]
    return built[0] if len(built) == 1 else Union(tuple(built))


def alternatives(times: Timetable) -> list[Timetable]:
    """Return the timetables of which at least one fires whenever this one does: its parts, and the
    single rules of a recurrence, each with the exceptions of all.
    """
    if isinstance(times, Union):
        return [each for part in times.parts for each in alternatives(part)]
    if isinstance(times, WallTimetable) and isinstance(times.wall_times, rrule.Combined):
        return [
            replace(times, wall_times=rrule.Combined((source,), times.wall_times.excluded))
            for source in times.wall_times.included
        ]
    return [times]


def _built(part: Part, setting: TimetableContext) -> Timetable:
    kind = _kind(part)
    if "interval" in part:  # no two starts are equal, and it is built faster than found
        return kind.build(part, setting)
    frozen = tuple(
        (key, tuple(value) if isinstance(value, list) else value) for key, value in part.items()
    )
    return _shared(frozen, kind.read(part, setting))


@lru_cache(maxsize=16_384)
def _shared(part: tuple[tuple[str, Any], ...], setting: TimetableContext) -> Timetable:
    return _kind(dict(part)).build(dict(part), setting)


def _kind(part: object) -> _Kind:
    names = [name for name in _KINDS if name in part] if isinstance(part, Mapping) else []
    if not isinstance(part, Mapping) or len(names) != 1:
        raise InvalidSchedule(
            f"{str(part)[:80]!r}: a part has one of the keys {', '.join(_KINDS)}."
        )
    kind = _KINDS[names[0]]
    if unknown := [str(key) for key in part if key != names[0] and key not in kind.keys]:
        known = f"only {', '.join(sorted(kind.keys))} can" if kind.keys else "nothing can"
        raise InvalidSchedule(f"{', '.join(unknown)[:80]} beside {names[0]}: {known} stand there.")
    return kind


def _utc(anchor: datetime) -> datetime:
    if anchor.tzinfo is None:
        raise InvalidSchedule(
            f"anchor={anchor!r} is naive: give the start of a schedule a time zone."
        )
    return anchor.astimezone(UTC)


_Policy = TypeVar("_Policy", bound=StrEnum)


def _policy(name: str, kind: type[_Policy], value: str) -> _Policy:
    try:
        return kind(value)
    except ValueError as error:
        raise InvalidSchedule.of(name, value, f"give {' or '.join(kind)}.") from error


# A short description of a timetable, for lists and pages. A timetable without a short description
# is shown as it was written.


_UNITS = ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second"))
_MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
_DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_DAY_NAMES = {name[:3].upper(): number for number, name in reversed(list(enumerate(_DAYS)))}
_STEP = re.compile(r"\*/(\d+)")
_MOST_TIMES = 4


def words(parts: Sequence[Part]) -> str:
    """Return the parts of a timetable as one line; an invalid part is shown as it is stored."""
    return "; ".join(_part(part) for part in parts)


def _part(part: Part) -> str:
    try:
        if "interval" in part:
            return f"every {span(float(part['interval']))}"
        if "cron" in part:
            return _cron(part)
        if "rrule" in part:
            return " ".join(str(part["rrule"]).split())
        if "solar" in part:
            event, offset = str(part["solar"]).replace("_", " "), float(part.get("offset", 0))
            way = "before" if offset < 0 else "after"
            when = f"{span(abs(offset))} {way}" if offset else "at"
            when = f"1 {when}" if offset and not when[0].isdigit() else when
            return f"{when} {event} at {part['latitude']:g}, {part['longitude']:g}"
        if "at" in part:
            instants = [str(instant) for instant in part["at"]]
            if len(instants) == 1:
                return f"once, at {instants[0]}"
            return f"at {len(instants)} instants from {min(instants)} on"
        if "every" in part:
            return _every(part)
    except (LookupError, TypeError, ValueError, AttributeError):
        pass
    return str(part)


def span(seconds: float) -> str:
    """Return a span of time in its largest whole unit: "minute", "90 minutes", "2.5 seconds"."""
    for size, unit in _UNITS:
        if seconds >= size and seconds % size == 0:
            return _many(int(seconds // size), unit)
    return f"{seconds:g} seconds"


def _many(number: int, unit: str) -> str:
    return unit if number == 1 else f"{number} {unit}s"


def _every(part: Part) -> str:
    day, unit = part.get("day"), _many(part.get("count", 1), part["every"])
    month = f" in its month {part['month']}" if "month" in part else ""
    time = f" at {part['time']}" if "time" in part else ""
    if day is None:
        return f"every {unit}{month}{time}"
    if str(day).isdigit() or isinstance(day, int):
        named = f"day {day}"
    else:
        last_word = str(day).rpartition(" ")[2]
        named = f"{day} day" if last_word in ("working", "first", "last") else str(day)
    return f"{named} of every {unit}{month}{time}"


# Cron ---------------------------------------------------------------------------------------------


def _cron(part: Part) -> str:
    text = str(part["cron"])
    if part.get("seconds"):
        return f"cron {text} (seconds {part['seconds'].lower()})"
    fields = cron.NICKNAMES.get(text.lower(), text).split()
    if len(fields) != 5:
        return f"cron {text}"
    time, day = _time(*fields[:2]), _day(*fields[2:])
    if time is None or day is None:
        return f"cron {text}"
    if time.startswith("at "):
        return f"{day or 'every day'} {time}"
    return f"{time}, {day}" if day else time


def _time(minute: str, hour: str) -> str | None:
    """Return "at 02:30", "every 5 minutes"; None if there is no short description."""
    if (minute, hour) == ("*", "*"):
        return "every minute"
    if hour == "*" and (step := _STEP.fullmatch(minute)):
        return f"every {_many(int(step[1]), 'minute')}" if 60 % int(step[1]) == 0 else None
    if hour == "*":
        return f"every hour at minute {int(minute)}" if minute.isdigit() else None
    if not minute.isdigit():
        return None
    if step := _STEP.fullmatch(hour):
        return (
            f"every {_many(int(step[1]), 'hour')} at minute {int(minute)}"
            if 24 % int(step[1]) == 0
            else None
        )
    hours = hour.split(",")
    if len(hours) > _MOST_TIMES or not all(hour_text.isdigit() for hour_text in hours):
        return None
    return "at " + _listed([f"{int(hour_text):02}:{int(minute):02}" for hour_text in hours])


def _day(date: str, month: str, weekday: str) -> str | None:
    """Return "" for every day, "on the 1st", "Monday to Friday"; None if there is no short
    description.
    """
    if (date, month, weekday) == ("*", "*", "*"):
        return ""
    if (date, month) == ("*", "*"):
        first, dash, last = weekday.partition("-")
        names = []
        for text in (first, last) if dash else weekday.split(","):
            number = int(text) if text.isdigit() else _DAY_NAMES.get(text.upper())
            if number is None or number >= len(_DAYS):
                return None
            names.append(_DAYS[number])
        return f"{names[0]} to {names[1]}" if dash else _listed(names)
    if weekday != "*" or not (date.isdigit() or date == "L"):
        return None
    which = "the last day" if date == "L" else f"day {int(date)}"
    if month == "*":
        return f"{which} of every month"
    return (
        f"{which} of {_MONTHS[int(month) - 1]}"
        if month.isdigit() and 1 <= int(month) <= 12
        else None
    )


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
