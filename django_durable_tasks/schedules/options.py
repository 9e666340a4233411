"""The options of a schedule, among them the schedule objects of Celery, and declarations in code
that are merged into rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Protocol, TypedDict

from django_durable_tasks.choices import CatchUp, CatchUpOrder, Overlap
from django_durable_tasks.exceptions import InvalidOption, InvalidSchedule
from django_durable_tasks.option_values import (
    checked_count,
    checked_key,
    checked_name,
    instant,
    one_of,
    seconds,
)
from django_durable_tasks.schedules.business_days import Roll
from django_durable_tasks.schedules.timetables.builder import checked as checked_parts
from django_durable_tasks.schedules.timetables.types import DstGap, DstOverlap
from django_durable_tasks.schedules.timetables.zones import zone_name
from django_durable_tasks.texts import did_you_mean

# Reads the schedule objects of Celery: ``crontab``, ``schedule`` and ``solar``.
#
# They are recognised by their class and its module, because this package does not import Celery.


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
    fields = [getattr(crontab, f"_orig_{name}") for name in _NAMES]
    return tuple(
        _listed(sorted(field))
        if isinstance(field, Iterable) and not isinstance(field, str)
        else str(field)
        for field in fields
    )


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


# Checks the options of a schedule: from the keyword arguments of ``upsert`` to the columns of a
# RecurringTask.


KINDS = ("interval", "cron", "rrule", "solar", "at", "every")
"""The keywords that define a part of the timetable; ``parts`` is a list of parts in their stored
form.
"""

_BESIDE = {
    "cron": ("seconds",),
    "solar": ("latitude", "longitude", "offset"),
    "every": ("count", "day", "month", "time"),
}


def _text(most: int) -> Callable[[str, Any], str]:
    def text(option: str, value: Any) -> str:
        if not isinstance(value, str) or len(value) > most:
            raise InvalidOption.of(
                option, str(value)[:50], f"give a text of at most {most} characters."
            )
        return value

    return text


_OWN = ("task_id", "run_at", "expires_at", "key", "idempotency_key", "tenant", "queue", "priority")


def _call_options(option: str, value: Any) -> dict[str, Any]:
    """Return the options of each run's call; raises an error for options that the schedule itself
    sets.
    """
    options = _dict(option, value)
    for name in _OWN:
        if name in options:
            raise InvalidOption(
                f"{option} holds {name!r}: each run has its own from the schedule; leave it out.",
                option=option,
            )
    return options


def _dict(option: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidOption.of(option, value, "give a mapping.")
    return dict(value)


COLUMNS = {"timezone": "time_zone", "calendar": "calendars"}
"""The columns of options that have another name; the others are columns of the same name."""
CHOICES: dict[str, type[StrEnum]] = {
    "roll": Roll,
    "dst_gap": DstGap,
    "dst_overlap": DstOverlap,
    "catch_up_mode": CatchUp,
    "catchup_order": CatchUpOrder,
    "overlap": Overlap,
}
"""The options that are one of several names."""
COUNTS = {"max_runs": (1, 10**12), "max_catchup_runs": (1, 1_000), "priority": (0, 9)}
"""The options that are whole numbers, with the least and the greatest one."""
SECONDS = ("expires_in", "misfire_grace", "catchup_window", "catchup_pace")
"""The options that are durations."""
NULLABLE = frozenset(
    {"end_time", "max_runs", "expires_in", "catchup_window", "priority", "idempotency_key"}
)
"""The options of which None is a value."""


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(CHOICES, lambda option, value: one_of(option, value, CHOICES[option]).value),
    **dict.fromkeys(COUNTS, lambda option, value: checked_count(option, value, *COUNTS[option])),
    **dict.fromkeys(SECONDS, seconds),
    "timezone": lambda option, value: zone_name(value),
    "calendar": lambda option, value: [
        checked_key(option, name) for name in ([value] if isinstance(value, str) else value)
    ],
    "start_time": instant,
    "end_time": instant,
    "overlap_key": _text(200),
    "queue": lambda option, value: checked_name(option, value) if value else "",
    "description": _text(500),
    "options": _call_options,
    "kwargs": _dict,
    "args": lambda option, value: list(value),
    "idempotency_key": checked_key,
}


def columns(
    name: str, options: Mapping[str, Any], *, may_never_fire: bool = False
) -> dict[str, Any]:
    """Return the columns that these keywords set; raises InvalidSchedule or InvalidOption with
    keyword and remedy.

    Keywords that are absent set nothing: an upsert leaves these columns unchanged, or at their
    defaults in a new row. A timetable that can never fire is refused, unless ``may_never_fire`` is
    set because the row is paused.
    """
    known = {
        *_CHECKS,
        *KINDS,
        "parts",
        "jitter",
        *(extra for extras in _BESIDE.values() for extra in extras),
    }
    for option in options:
        if option not in known:
            hint = did_you_mean(option, known) or f"It has: {', '.join(sorted(known))}."
            raise InvalidOption(f"A recurring task has no option {option!r}. {hint}")
    values: dict[str, Any] = {}
    for option, check in _CHECKS.items():
        if option in options:
            value, column = options[option], COLUMNS.get(option, option)
            values[column] = None if value is None and option in NULLABLE else check(option, value)
    if "jitter" in options:
        jitter: Any = options["jitter"]
        values |= {"jitter": 0.0, "jitter_percent": 0.0}
        if isinstance(jitter, str) and jitter.endswith("%"):
            try:
                values["jitter_percent"] = float(jitter[:-1])
            except ValueError:
                values["jitter_percent"] = -1.0
            if not 0 <= values["jitter_percent"] <= 100:
                raise InvalidOption.of(
                    "jitter", jitter, "give seconds, or '0%' to '100%' of the way to the next fire."
                )
        else:
            values["jitter"] = seconds("jitter", jitter)
    parts = _parts(options)
    if parts is not None:
        zone = values.get("time_zone", "UTC")
        timetable = checked_parts(parts, zone=zone, seed=name, allow_never=may_never_fire)
        alone = timetable[0].get("interval") if len(timetable) == 1 else None
        values |= {"timetable": timetable, "interval_seconds": alone}
    return values


def _parts(options: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    parts = [dict(part) for part in options.get("parts") or ()]
    for kind in KINDS:
        if options.get(kind) is not None:
            extras = {
                extra: options[extra]
                for extra in _BESIDE.get(kind, ())
                if options.get(extra) is not None
            }
            for value in _values(kind, options[kind]):
                keywords = keywords_of(kind, value)
                parts.append({kind: value, **extras} if keywords is None else keywords | extras)
    if not parts and any(kind in options for kind in (*KINDS, "parts")):
        raise InvalidSchedule(f"A schedule needs one of {', '.join(KINDS)}.")
    return parts or None


def _values(kind: str, value: Any) -> list[Any]:
    """Return the value of each part: several crons or rules are several parts, several instants are
    one part.
    """
    several = list(value) if isinstance(value, list | tuple) else [value]
    if kind == "at":
        return [
            [moment.isoformat() if isinstance(moment, datetime) else moment for moment in several]
        ]
    return several


# Declared schedules: merges a declaration in code or settings into a row that an operator may have
# changed since.
#
# A three-way merge like that of ``kubectl apply``: of the last declaration, the present
# declaration, and the row. A change of the declaration wins. A value that only the operator
# changed stays. A column that is no longer declared returns to its default, unless the operator
# has set it.


CODE, SETTINGS, BEAT, API = "code", "settings", "beat", "api"
"""Where a row is declared (``RecurringTask.source``); an empty text means that an operator, or code
that calls ``upsert``, has created it.
"""
UNDECLARED = "UNDECLARED"
"""The status reason of a schedule that was paused or ended because its declaration was removed."""


class SyncAction(StrEnum):
    """The action of a sync for one row."""

    CREATE = "CREATE"
    CHANGE = "CHANGE"
    ADOPT = "ADOPT"
    REVIVE = "REVIVE"
    PAUSE = "PAUSE"
    CANCEL = "CANCEL"
    CLASH = "CLASH"
    REFUSE = "REFUSE"


class ScheduleOptions(TypedDict, total=False):
    """The keywords of ``@recurring``, those of ``RecurringTask.objects.upsert`` without name and
    task.
    """

    interval: float | timedelta | CeleryInterval
    cron: str | CeleryCrontab | Sequence[str | CeleryCrontab]
    seconds: str
    rrule: str | Sequence[str]
    solar: str | CelerySolar
    latitude: float
    longitude: float
    offset: float | timedelta
    at: Sequence[datetime | str]
    every: str
    count: int
    day: str | int
    month: int
    time: str
    parts: Sequence[Mapping[str, Any]]
    timezone: Any
    dst_gap: str
    dst_overlap: str
    calendar: str | Sequence[str]
    roll: str
    start_time: datetime
    end_time: datetime | None
    max_runs: int | None
    jitter: float | timedelta | str
    expires_in: float | timedelta | None
    catch_up_mode: str
    misfire_grace: float | timedelta
    catchup_window: float | timedelta | None
    max_catchup_runs: int
    catchup_order: str
    catchup_pace: float | timedelta
    overlap: str
    overlap_key: str
    priority: int | None
    queue: str
    description: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    options: Mapping[str, Any]
    idempotency_key: str | None


@dataclass(frozen=True, slots=True)
class Merge:
    """The columns to write, and the declared columns that keep an operator's value."""

    changes: dict[str, Any]
    edited: tuple[str, ...]


def kept(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return columns in their JSON form: instants in ISO 8601 (UTC), tuples as lists."""
    return {column: _plain(value) for column, value in values.items()}


def _plain(value: Any) -> Any:
    match value:
        case datetime():
            return value.astimezone(UTC).isoformat()
        case Mapping():
            return {str(key): _plain(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_plain(inner) for inner in value]
        case str():
            return str(value)
    return value


def merged(
    row: Mapping[str, Any],
    before: Mapping[str, Any] | None,
    declared: Mapping[str, Any],
    defaults: Mapping[str, Any],
) -> Merge:
    """Return the changes of a row by its declaration; all columns in the form of ``kept``.

    ``before`` is the last declaration; None applies the whole declaration.
    """
    last = before or {}
    differing = {column: value for column, value in declared.items() if row[column] != value}
    edited = tuple(
        column for column, value in differing.items() if column in last and last[column] == value
    )
    changes = {column: value for column, value in differing.items() if column not in edited}
    for column, value in last.items():
        if (
            column not in declared
            and column in defaults
            and row[column] == value != defaults[column]
        ):
            changes[column] = defaults[column]
    return Merge(changes, edited)
