"""Parser of recurrences in RFC 5545: RRULE, RDATE, EXRULE, EXDATE and DTSTART, one per line.

A bare ``FREQ=...`` is an RRULE. Times are wall times of the schedule's zone; times that end in Z
are converted. Parts that a rule does not define come from DTSTART, as in dateutil. UNTIL without a
time is midnight at the start of its day.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from django_durable_tasks.exceptions import InvalidSchedule
from django_durable_tasks.rules.recurring.timetables.types import TimetableContext
from django_durable_tasks.rules.recurring.timetables.zone_offsets import reading
from django_durable_tasks.rules.recurring.timetables.zones import zone

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
    start = next((_starting(line, setting) for line in lines if line.startswith("DTSTART")), None)
    if start is None:
        start = setting.anchor.astimezone(zone(setting.zone)).replace(tzinfo=None, microsecond=0)
    found = Recurrence()
    for line in lines:
        head, _, value = line.rpartition(":")
        name, _, parameters = head.partition(";")
        if name in {"RRULE", "EXRULE", ""} and not parameters:
            (found.excluded_rules if name == "EXRULE" else found.rules).append(
                _rule(value, start, setting)
            )
        elif name in {"RDATE", "EXDATE"}:
            (found.excluded_dates if name == "EXDATE" else found.dates).update(
                _dates(line, parameters, value, setting)
            )
        elif name != "DTSTART":
            raise InvalidSchedule(
                f"rrule: {line[:80]!r}: a line begins with RRULE, RDATE, EXRULE, EXDATE or DTSTART."
            )
    if not found.rules and not found.dates:
        raise InvalidSchedule(
            "rrule: no line defines when it fires; give for example 'FREQ=MONTHLY;BYDAY=-1FR'."
        )
    return found


def _lines(text: object) -> list[str]:
    if not isinstance(text, str) or not text.strip():
        raise InvalidSchedule(
            f"rrule={text!r}: give a text, for example 'FREQ=MONTHLY;BYDAY=-1FR'."
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
            " Give instants or several parts."
        )
    return lines


def _starting(line: str, setting: TimetableContext) -> datetime:
    head, _, value = line.rpartition(":")
    if value.endswith("Z") and setting.zone != "UTC":
        raise InvalidSchedule(
            f"rrule: {line!r} is in UTC and the schedule in {setting.zone}; leave the Z out, or use"
            " UTC."
        )
    _own_zone(line, head.partition(";")[2], setting)
    return _stamp("DTSTART", value, setting)


def _own_zone(line: str, parameters: str, setting: TimetableContext) -> None:
    for parameter in filter(None, parameters.split(";")):
        if parameter not in {f"TZID={setting.zone}", "VALUE=DATE-TIME", "VALUE=DATE"}:
            raise InvalidSchedule(
                f"rrule: {line[:80]!r}: {parameter[:40]} does not fit timezone={setting.zone!r}."
            )


def _dates(line: str, parameters: str, value: str, setting: TimetableContext) -> set[int]:
    _own_zone(line, parameters, setting)
    return {reading(_stamp(line.partition(":")[0], stamp, setting)) for stamp in value.split(",")}


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
    given = dict(pairs)
    if len(given) < len(pairs) or not given.get("FREQ"):
        raise InvalidSchedule(f"rrule={text[:80]!r}: each key once, and FREQ among them.")
    values: dict[str, Any] = {"start": reading(start)}
    for key, value in given.items():
        values |= _read(key, value, setting)
    rule = Rule(**values)
    _check_together(text, rule)
    return _completed(rule, start)


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
        return _weekdays(value)
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


def _weekdays(value: str) -> Mapping[str, Any]:
    plain, nth = set(), set()
    for word in value.split(","):
        found = _BYDAY.fullmatch(word)
        if not found or (found[1] and not 1 <= abs(int(found[1])) <= 53):
            raise InvalidSchedule(f"rrule: BYDAY={word[:40]!r}: give for example MO, 2TU or -1FR.")
        weekday = _WEEKDAYS.index(found[2])
        if found[1]:
            nth.add((weekday, int(found[1])))
        else:
            plain.add(weekday)
    return {"weekdays": frozenset(plain), "nth": frozenset(nth)}


def _check_together(text: str, rule: Rule) -> None:
    """Raise InvalidSchedule for keys that RFC 5545 does not allow together."""
    several = rule.count is not None and rule.until is not None
    faults = {
        "COUNT and UNTIL exclude each other": several,
        "BYDAY with a number needs FREQ=MONTHLY or YEARLY, without BYWEEKNO": (
            rule.nth and (rule.rank > 1 or rule.weeks)
        ),
        "BYWEEKNO needs FREQ=YEARLY": rule.weeks and rule.rank > 0,
        "BYSETPOS needs FREQ=DAILY or longer": (
            rule.positions and rule.rank > FREQUENCIES.index("DAILY")
        ),
    }
    for fault, found in faults.items():
        if found:
            raise InvalidSchedule(f"rrule={text[:80]!r}: {fault}.")


def _completed(rule: Rule, start: datetime) -> Rule:
    """Return the rule with its missing parts derived from its start."""
    values: dict[str, Any] = {}
    if not (rule.weeks or rule.year_days or rule.month_days or rule.weekdays or rule.nth):
        if rule.frequency == "YEARLY" and not rule.months:
            values["months"] = frozenset({start.month})
        if rule.frequency in {"YEARLY", "MONTHLY"}:
            values["month_days"] = frozenset({start.day})
        if rule.frequency == "WEEKLY":
            values["weekdays"] = frozenset({start.weekday()})
    for name, finest in (("hour", "HOURLY"), ("minute", "MINUTELY"), ("second", "SECONDLY")):
        if not getattr(rule, f"{name}s") and rule.rank < FREQUENCIES.index(finest):
            values[f"{name}s"] = frozenset({getattr(start, name)})
    return replace(rule, **values)
