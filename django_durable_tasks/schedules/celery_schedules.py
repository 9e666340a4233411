"""Reads the schedule objects of Celery: ``crontab``, ``schedule`` and ``solar``.

They are recognised by their class and its module, because this package does not import Celery.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, Protocol

from django_durable_tasks.exceptions import InvalidSchedule

Fields = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""The numbers that Celery's parser gives for the five fields, ascending; weekdays from Sunday, 0.
"""
WHOLE: Fields = (
    tuple(range(60)),
    tuple(range(24)),
    tuple(range(1, 32)),
    tuple(range(1, 13)),
    tuple(range(7)),
)
_NAMES = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")
_STARRED = re.compile(r"\*(/[1-9]\d*)?", re.ASCII)
_WEEKDAYS = ("SU", "MO", "TU", "WE", "TH", "FR", "SA")


class CeleryInterval(Protocol):
    """``celery.schedules.schedule``, for type checkers."""

    run_every: Any


class CeleryCrontab(Protocol):
    """``celery.schedules.crontab``, for type checkers."""

    minute: Any
    hour: Any
    day_of_week: Any


class CelerySolar(Protocol):
    """``celery.schedules.solar``, for type checkers."""

    event: Any
    lat: Any
    lon: Any


_KEYWORDS = {"crontab": "cron", "schedule": "interval", "solar": "solar"}
_MODULE = "celery.schedules"


def kind_of(value: object) -> str | None:
    """Return ``crontab``, ``schedule`` or ``solar`` for a schedule of Celery, else None.

    Raises InvalidSchedule for a class of its own that is derived from one of them.
    """
    for kind in type(value).__mro__:
        if kind.__module__ == _MODULE:
            if kind is not type(value) or kind.__name__ not in _KEYWORDS:
                raise InvalidSchedule(
                    f"{type(value).__qualname__} is a schedule class of its own, whose fire times"
                    f" only Celery knows: give one of {', '.join(_KEYWORDS.values())}."
                )
            return kind.__name__
    return None


def keywords_of(keyword: str, value: Any) -> dict[str, Any] | None:
    """Return the keywords of a part with the fire times of a schedule of Celery that was given as
    ``keyword``; None for any other value. Raises InvalidSchedule.
    """
    kind = kind_of(value)
    if kind is None:
        return None
    if _KEYWORDS[kind] != keyword:
        raise InvalidSchedule(
            f"{keyword}={value!r}: give a {kind} of Celery as {_KEYWORDS[kind]}=..."
        )
    if kind == "schedule":
        return {"interval": interval_of(value)}
    if kind == "solar":
        return {"solar": value.event, "latitude": float(value.lat), "longitude": float(value.lon)}
    return cron_keywords(texts_of(value), fields_of(value))


def interval_of(schedule: Any) -> timedelta:
    """Return the interval of Celery's ``schedule``; raises InvalidSchedule if it has none."""
    interval = schedule.run_every
    if not isinstance(interval, timedelta):
        raise InvalidSchedule("The schedule of Celery has no run_every: give a timedelta.")
    return interval


def texts_of(crontab: Any) -> tuple[str, ...]:
    """Return the five fields of Celery's ``crontab`` in the order of crontab(5)."""
    return tuple(_text(getattr(crontab, f"_orig_{name}")) for name in _NAMES)


def _text(value: Any) -> str:
    if isinstance(value, Iterable) and not isinstance(value, str):
        return ",".join(map(str, sorted(value)))
    return str(value)


def fields_of(crontab: Any) -> Fields:
    """Return the numbers that Celery parsed from the five fields of its ``crontab``."""
    minute, hour, day, month, weekday = (tuple(sorted(getattr(crontab, name))) for name in _NAMES)
    return minute, hour, day, month, weekday


def cron_keywords(texts: Sequence[str], fields: Fields) -> dict[str, Any]:
    """Return a cron with the fire times of Celery's crontab, or a rule of RFC 5545 if day of month
    and day of week are both given: Celery requires both, crontab(5) either.
    """
    minutes, hours, days, months, weekdays = fields
    if len(days) == len(WHOLE[2]) or len(weekdays) == len(WHOLE[4]):
        return {"cron": " ".join(map(_field, texts, fields, WHOLE))}
    rule_parts = {
        "BYMONTH": months,
        "BYMONTHDAY": days,
        "BYDAY": [_WEEKDAYS[day] for day in weekdays],
        "BYHOUR": hours,
        "BYMINUTE": minutes,
        "BYSECOND": (0,),
    }
    rule = [f"{key}={_listed(values)}" for key, values in rule_parts.items()]
    return {"rrule": ";".join(["FREQ=DAILY", *rule])}


def _field(text: str, values: tuple[int, ...], whole: tuple[int, ...]) -> str:
    """Keep a star, because it makes a job follow elapsed time; everything else becomes the numbers
    that Celery parsed.
    """
    if len(values) == len(whole):
        return "*"
    written = "".join(text.split())
    is_kept = _STARRED.fullmatch(written) and len(whole) > len(WHOLE[4])
    return written if is_kept else _listed(values)


def _listed(values: Any) -> str:
    return ",".join(map(str, values))
