"""A short description of a timetable, for lists and pages. A timetable without a short description
is shown as it was written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Part = Mapping[str, Any]

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
_NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_STEP = re.compile(r"\*/(\d+)")
_MOST_TIMES = 4


def words(parts: Sequence[Part]) -> str:
    """Return the parts of a timetable as one line; an invalid part is shown as it is stored."""
    return "; ".join(_part(part) for part in parts)


def _part(part: Part) -> str:
    try:
        kind = next(kind for kind in _BY_KIND if kind in part)
        return _BY_KIND[kind](part)
    except (StopIteration, LookupError, TypeError, ValueError, AttributeError):
        return str(part)


def span(seconds: float) -> str:
    """Return a span of time in its largest whole unit: "minute", "90 minutes", "2.5 seconds"."""
    for size, unit in _UNITS:
        if seconds >= size and seconds % size == 0:
            return _many(int(seconds // size), unit)
    return f"{seconds:g} seconds"


def _many(number: int, unit: str) -> str:
    return unit if number == 1 else f"{number} {unit}s"


def _interval(part: Part) -> str:
    return f"every {span(float(part['interval']))}"


def _rrule(part: Part) -> str:
    return " ".join(str(part["rrule"]).split())


def _solar(part: Part) -> str:
    event, offset = str(part["solar"]).replace("_", " "), float(part.get("offset", 0))
    when = "at" if not offset else f"{span(abs(offset))} {'before' if offset < 0 else 'after'}"
    when = f"1 {when}" if offset and not when[0].isdigit() else when
    return f"{when} {event} at {part['latitude']:g}, {part['longitude']:g}"


def _at(part: Part) -> str:
    instants = [str(one) for one in part["at"]]
    return (
        f"once, at {instants[0]}"
        if len(instants) == 1
        else f"at {len(instants)} instants from {min(instants)} on"
    )


def _every(part: Part) -> str:
    day, unit = part.get("day"), _many(part.get("count", 1), part["every"])
    month = f" in its month {part['month']}" if "month" in part else ""
    time = f" at {part['time']}" if "time" in part else ""
    if day is None:
        return f"every {unit}{month}{time}"
    named = f"day {day}" if isinstance(day, int) else _named_day(str(day))
    return f"{named} of every {unit}{month}{time}"


def _named_day(day: str) -> str:
    if day.isdigit():
        return f"day {day}"
    last = day.rpartition(" ")[2]
    return f"{day} day" if last in ("working", "first", "last") else day


# Cron ---------------------------------------------------------------------------------------------


def _cron(part: Part) -> str:
    text = str(part["cron"])
    fields = _NICKNAMES.get(text.lower(), text).split()
    described = None if part.get("seconds") or len(fields) != 5 else _five(*fields)
    beside = f" (seconds {part['seconds'].lower()})" if part.get("seconds") else ""
    return described or f"cron {text}{beside}"


def _five(minute: str, hour: str, date: str, month: str, weekday: str) -> str | None:
    time, day = _time(minute, hour), _day(date, month, weekday)
    if time is None or day is None:
        return None
    at_times = time.startswith("at ")
    if not day:
        return f"every day {time}" if at_times else time
    return f"{day} {time}" if at_times else f"{time}, {day}"


def _time(minute: str, hour: str) -> str | None:
    """Return "at 02:30", "every 5 minutes"; None if there is no short description."""
    if hour == "*":
        return _within_the_hour(minute)
    if not minute.isdigit():
        return None
    if step := _STEP.fullmatch(hour):
        return (
            f"every {_many(int(step[1]), 'hour')} at minute {int(minute)}"
            if 24 % int(step[1]) == 0
            else None
        )
    hours = hour.split(",")
    if len(hours) > _MOST_TIMES or not all(one.isdigit() for one in hours):
        return None
    return "at " + _listed([f"{int(one):02}:{int(minute):02}" for one in hours])


def _within_the_hour(minute: str) -> str | None:
    if minute == "*":
        return "every minute"
    if step := _STEP.fullmatch(minute):
        return f"every {_many(int(step[1]), 'minute')}" if 60 % int(step[1]) == 0 else None
    return f"every hour at minute {int(minute)}" if minute.isdigit() else None


def _day(date: str, month: str, weekday: str) -> str | None:
    """Return "" for every day, "on the 1st", "Monday to Friday"; None if there is no short
    description.
    """
    if (date, month, weekday) == ("*", "*", "*"):
        return ""
    if (date, month) == ("*", "*"):
        return _weekdays(weekday)
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


def _weekdays(field: str) -> str | None:
    first, dash, last = field.partition("-")
    numbers = [_weekday(one) for one in ((first, last) if dash else field.split(","))]
    if any(number is None for number in numbers):
        return None
    names = [_DAYS[number] for number in numbers if number is not None]
    return f"{names[0]} to {names[1]}" if dash else _listed(names)


def _weekday(text: str) -> int | None:
    if text.isdigit():
        return int(text) if int(text) < len(_DAYS) else None
    return _DAY_NAMES.get(text.upper())


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


_BY_KIND: dict[str, Callable[[Part], str]] = {
    "interval": _interval,
    "cron": _cron,
    "rrule": _rrule,
    "solar": _solar,
    "at": _at,
    "every": _every,
}
