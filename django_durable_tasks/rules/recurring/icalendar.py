"""The closed days of an iCalendar file (RFC 5545): its all-day events, with their recurrences,
within given years.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple, NoReturn

from django_durable_tasks.exceptions import InvalidCalendar, InvalidSchedule
from django_durable_tasks.rules.recurring.calendars import (
    FARTHEST,
    MOST_DAYS,
    MOST_YEARS,
    DayKind,
    SpecialDay,
)
from django_durable_tasks.rules.recurring.timetables.builder import checked, timetable

MOST_CHARACTERS, MOST_EVENTS = 2_000_000, 5_000
_ONE = timedelta(days=1)
_LINE = re.compile(r'([A-Za-z0-9-]+)((?:;[A-Za-z0-9-]+=(?:"[^"]*"|[^";:])*)*):(.*)', re.DOTALL)
_STAMP = re.compile(r"(\d{8})(?:T(\d{6})Z?)?", re.ASCII)
_DURATION = re.compile(r"\+?P(?:(\d{1,4})W|(\d{1,4})D)", re.ASCII)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_RECURRENCE = ("RRULE", "RDATE", "EXDATE", "EXRULE")


class _Property(NamedTuple):
    number: int
    name: str
    value: str


@dataclass(slots=True)
class _Event:
    number: int
    properties: list[_Property] = field(default_factory=list)

    def get(self, name: str) -> _Property | None:
        return next((one for one in self.properties if one.name == name), None)

    def text(self, name: str) -> str:
        found = self.get(name)
        return (
            ""
            if found is None
            else _ESCAPED.sub(lambda one: " " if one[1] in "nN" else one[1], found.value).strip()
        )


def from_ics(text: str, years: Sequence[int]) -> tuple[SpecialDay, ...]:
    """Return the days of these years that the events of the file close, each once, with their
    names.

    An event must last whole days: dates, or midnight to midnight. Cancelled events are ignored.
    Raises InvalidCalendar with the number of the line.
    """
    if not 1 <= len(years) <= MOST_YEARS:
        raise InvalidCalendar(f"years={years!r}: give 1 to {MOST_YEARS} years.")
    first, last = date(min(years), 1, 1), date(max(years), 12, 31)
    events = [event for event in _events(text) if event.text("STATUS").upper() != "CANCELLED"]
    replaced = {
        (event.text("UID"), _day(found))
        for event in events
        if (found := event.get("RECURRENCE-ID"))
    }
    names: dict[date, list[str]] = {}
    for event in events:
        for day in _days(event, first, last, replaced):
            if len(names) >= MOST_DAYS:
                _refuse(event.number, f"more than {MOST_DAYS} days are closed within the years")
            if day.year in years:
                names.setdefault(day, []).append(event.text("SUMMARY"))
    return tuple(
        SpecialDay(day, DayKind.CLOSED, " / ".join(dict.fromkeys(filter(None, texts)))[:200])
        for day, texts in sorted(names.items())
    )


def _days(
    event: _Event, first: date, last: date, replaced: set[tuple[str, date]]
) -> Iterator[date]:
    length = _length(event)
    own = event.get("RECURRENCE-ID") is not None
    for start in _starts(event, first - length * _ONE, last):
        if own or (event.text("UID"), start) not in replaced:
            yield from (
                start + number * _ONE
                for number in range(length)
                if first <= start + number * _ONE <= last
            )


def _starts(event: _Event, first: date, last: date) -> Iterator[date]:
    start = _day(_start(event))
    lines = [one for one in event.properties if one.name in _RECURRENCE]
    if event.get("RECURRENCE-ID") is not None or not lines:
        yield start
        return
    rule = [f"DTSTART:{start:%Y%m%d}", f"RDATE:{start:%Y%m%d}", *map(_recurrence, lines)]
    try:
        parts = checked([{"rrule": "\n".join(rule)}])
    except InvalidSchedule as error:
        raise InvalidCalendar(f"line {lines[0].number}: {error}") from error
    recurring = timetable(parts, zone="UTC", anchor=_midnight(start))
    fire = recurring.next(_midnight(first) - timedelta(seconds=1))
    while fire is not None and fire.nominal.date() <= last:
        yield fire.nominal.date()
        fire = recurring.next(fire.nominal)


def _recurrence(line: _Property) -> str:
    """Return a recurrence line with dates instead of times."""
    if line.name not in {"RDATE", "EXDATE"}:
        return f"{line.name}:{line.value}"
    return f"{line.name}:" + ",".join(
        f"{_day(line._replace(value=one)):%Y%m%d}" for one in line.value.split(",")
    )


def _length(event: _Event) -> int:
    """Return how many days the event lasts."""
    begin, end, duration = _start(event), event.get("DTEND"), event.get("DURATION")
    _check_whole(begin)
    if duration is not None:
        found = _DURATION.fullmatch(duration.value)
        days = (int(found[1]) * 7 if found[1] else int(found[2])) if found else 0
        number = duration.number
    elif end is not None:
        _check_whole(end)
        days, number = (_day(end) - _day(begin)).days, end.number
    else:
        days, number = int("T" not in begin.value), begin.number
    if not 1 <= days <= FARTHEST:
        _refuse(
            number, f"an event lasts 1 to {FARTHEST} whole days; DTEND is the day after the last"
        )
    return days


def _start(event: _Event) -> _Property:
    return event.get("DTSTART") or _refuse(event.number, "this event has no DTSTART")


def _check_whole(line: _Property) -> None:
    found = _STAMP.fullmatch(line.value)
    if found and found[2] not in {None, "000000"}:
        _refuse(
            line.number,
            f"{line.name}:{line.value} has a time of day; only events of whole days close a day",
        )


def _day(line: _Property) -> date:
    found = _STAMP.match(line.value)
    try:
        if found is None:
            raise ValueError("it is written as 20261225")
        return datetime.strptime(found[1], "%Y%m%d").replace(tzinfo=UTC).date()
    except ValueError as error:
        raise InvalidCalendar(
            f"line {line.number}: {line.name}:{line.value[:40]} is no date ({error})."
        ) from error


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


def _events(text: str) -> list[_Event]:
    if len(text) > MOST_CHARACTERS:
        raise InvalidCalendar(f"The file has {len(text)} characters; {MOST_CHARACTERS} are read.")
    events: list[_Event] = []
    inside: list[_Property] = []
    for line in _lines(text):
        if line.name == "BEGIN":
            _begin(line, inside, events)
        elif line.name == "END":
            if not inside or inside.pop().value != line.value.upper():
                _refuse(line.number, f"END:{line.value[:40]} ends nothing that began")
        elif inside and inside[-1].value == "VEVENT":
            events[-1].properties.append(line)
    if inside:
        _refuse(inside[-1].number, f"BEGIN:{inside[-1].value[:40]} has no end")
    return events


def _begin(line: _Property, inside: list[_Property], events: list[_Event]) -> None:
    inside.append(line._replace(value=line.value.upper()))
    if inside[0].value != "VCALENDAR":
        _refuse(line.number, "an iCalendar file begins with BEGIN:VCALENDAR")
    if inside[-1].value == "VEVENT":
        events.append(_Event(line.number))
    if len(events) > MOST_EVENTS:
        _refuse(line.number, f"more than {MOST_EVENTS} events")


def _lines(text: str) -> Iterator[_Property]:
    """Yield the unfolded content lines, each with the number of its first line."""
    folded: list[tuple[int, list[str]]] = []
    for number, line in enumerate(re.split(r"\r\n|\n|\r", text.removeprefix("\ufeff")), 1):
        if line[:1] in {" ", "\t"} and folded:
            folded[-1][1].append(line[1:])
        elif line.strip():
            folded.append((number, [line]))
    if not folded or folded[0][1][0].strip().upper() != "BEGIN:VCALENDAR":
        _refuse(folded[0][0] if folded else 1, "an iCalendar file begins with BEGIN:VCALENDAR")
    for number, parts in folded:
        found = _LINE.fullmatch("".join(parts))
        if found is None:
            _refuse(number, f"{parts[0][:40]!r} is no line of an iCalendar file (NAME:value)")
        yield _Property(number, found[1].upper(), found[3].strip())


def _refuse(number: int, why: str) -> NoReturn:
    raise InvalidCalendar(f"line {number}: {why}.")
