"""Working days: weekly working days, closed days, extra open days and half days; also from
iCalendar.
"""

from __future__ import annotations

import importlib
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from functools import lru_cache
from itertools import chain, pairwise, takewhile
from typing import Any, NamedTuple, NoReturn

from django_durable_tasks.choices import DayKind, SpecialDay
from django_durable_tasks.exceptions import InvalidCalendar, InvalidSchedule
from django_durable_tasks.schedules.timetables.builder import checked, timetable
from django_durable_tasks.schedules.timetables.types import walk

# A calendar is a snapshot of dates. A new release of the ``holidays`` package changes no schedule
# until the calendar is imported again.


FARTHEST = 3_660  # a search covers at most this many days: ten years
ONE_DAY = timedelta(days=1)
_REMEMBERED = 50_000
"""The wall times for which a calendar keeps the next open day; about 10 MB."""
MOST_DAYS = 20_000
MOST_YEARS = 100
_NAMES_IN = "en_US"
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


class Roll(StrEnum):
    """What happens to a fire time on a closed day: skipped, or moved to the next open day, to the
    previous one, or to the next within the month, otherwise the previous one (ISDA's business day
    conventions).
    """

    SKIP = "SKIP"
    FOLLOWING = "FOLLOWING"
    PRECEDING = "PRECEDING"
    MODIFIED_FOLLOWING = "MODIFIED_FOLLOWING"


class _Found(NamedTuple):
    day: date | None
    closes: time | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BusinessDays:
    """The open days of one calendar, or of several combined; an immutable value that is compared by
    content.

    ``working_days`` are ISO weekdays, Monday is 1. Raises InvalidCalendar for invalid days, for a
    date that occurs twice, and for a calendar without any working day.
    """

    name: str = ""
    working_days: tuple[int, ...] = (1, 2, 3, 4, 5)
    special: tuple[SpecialDay, ...] = ()
    _by_date: dict[date, SpecialDay] = field(init=False, repr=False, compare=False)
    _hash: int = field(init=False, repr=False, compare=False)
    _next_open: dict[tuple[date, time, timedelta], _Found] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )
    """What ``next_open`` has found, so that a walk over closed days costs each of them once."""

    def __post_init__(self) -> None:
        working = tuple(sorted(set(self.working_days)))
        special = tuple(sorted(self.special, key=lambda day: day.day))
        _check(self.name, working, special)
        object.__setattr__(self, "working_days", working)
        object.__setattr__(self, "special", special)
        object.__setattr__(self, "_by_date", {day.day: day for day in special})
        object.__setattr__(self, "_hash", hash((self.name, working, special)))

    def __hash__(self) -> int:
        return self._hash

    def is_open(self, day: date) -> bool:
        """Return whether anything is open on this date; a half day is open."""
        special = self._by_date.get(day)
        return (
            day.isoweekday() in self.working_days
            if special is None
            else special.kind is not DayKind.CLOSED
        )

    def closes(self, day: date) -> time | None:
        """Return the last open wall time of a half day; None for other days."""
        special = self._by_date.get(day)
        return None if special is None else special.until

    def open_at(self, day: date, hour: time) -> bool:
        """Return whether this wall time of this date is open."""
        until = self.closes(day)
        return self.is_open(day) if until is None else hour <= until

    def why_closed(self, local: datetime) -> str:
        """Return why this wall time is closed: a holiday's name, a weekday, or the time of a half
        day; "" if it is open.
        """
        day = local.date()
        if self.open_at(day, local.time()):
            return ""
        special = self._by_date.get(day)
        if special is None:
            return _WEEKDAYS[day.weekday()]
        if special.until is None:
            return special.name or f"{day} is closed"
        return f"after {special.until:%H:%M} on {special.name or day} (half day)"

    def next_open(self, day: date, hour: time, step: timedelta) -> tuple[date | None, time | None]:
        """Return the first date after this one, or before it with a negative step, on which this
        wall time is open, None if there is none within ten years; and the latest wall time at which
        a half day in between closes.
        """
        passed, found = list[date](), _Found(None, None)
        for passing in chain([day], self._may_open(day, step)):
            known = self._next_open.get((passing, hour, step))
            if passing != day and self.open_at(passing, hour):
                found = _Found(passing, None)
                break
            if known is not None:
                found = known if passing == day else self._past(passing, known)
                break
            passed.append(passing)
        if len(self._next_open) > _REMEMBERED:
            self._next_open.clear()
        answer = found
        for passing in reversed(passed):
            answer = self._next_open[passing, hour, step] = found
            found = self._past(passing, found)
        found = answer
        is_far = found.day is None or abs(found.day - day) > FARTHEST * ONE_DAY
        return (None if is_far else found.day), found.closes

    def _past(self, passed: date, found: _Found) -> _Found:
        """Return what is found before a day that is not open at the wall time."""
        closes = self.closes(passed)
        if closes is None:
            return found
        return _Found(found.day, max(closes, found.closes or closes))

    def _may_open(self, day: date, step: timedelta) -> Iterator[date]:
        """Yield a superset of the open days; the work depends on the number of special days."""
        if self.working_days:
            while day not in (date.min, date.max):
                day += step
                yield day
        elif step > timedelta(0):
            yield from map(_day, self.special[bisect_right(self.special, day, key=_day) :])
        else:
            yield from map(_day, reversed(self.special[: bisect_left(self.special, day, key=_day)]))


@lru_cache(maxsize=200)
def longest_closure(days: BusinessDays) -> int:
    """Return the most days from one whole open day to the next: 1 for a calendar without any closed
    day. Closures that begin before the first or end after the last open day do not count.
    """
    longest = 1
    if days.working_days:
        weekdays = [*days.working_days, days.working_days[0] + 7]
        longest = max(later - earlier for earlier, later in pairwise(weekdays))
    for special in days.special:
        following, _ = days.next_open(special.day, time.max, ONE_DAY)
        before, _ = days.next_open(special.day, time.max, -ONE_DAY)
        if special.kind is DayKind.OPEN:
            before = special.day
        if following is not None and before is not None:
            longest = max(longest, (following - before).days)
    return longest


def _day(special: SpecialDay) -> date:
    return special.day


def days_from(day: date, step: timedelta) -> Iterator[date]:
    """Yield the days after this one, or before it with a negative step, for ten years and within
    datetime's range.
    """
    for _ in range(FARTHEST):
        if day in (date.min, date.max):
            return
        day += step
        yield day


def combined(calendars: Sequence[BusinessDays]) -> BusinessDays:
    """Return the calendar that is closed where any of these is closed; raises InvalidCalendar if no
    day is left.
    """
    if not calendars:
        raise InvalidCalendar("Give at least one calendar to combine.")
    if len(calendars) == 1:
        return calendars[0]
    working = set(calendars[0].working_days).intersection(
        *(calendar.working_days for calendar in calendars[1:])
    )
    dates = sorted({special.day for calendar in calendars for special in calendar.special})
    return BusinessDays(
        name=" + ".join(calendar.name for calendar in calendars),
        working_days=tuple(working),
        special=tuple(_joined(day, calendars) for day in dates),
    )


def from_holidays(
    country: str, subdivision: str | None, years: Iterable[int]
) -> tuple[SpecialDay, ...]:
    """Return the public holidays of a country (ISO 3166) or an exchange (ISO 10383) as a snapshot.

    The names are in English if the package has them, independent of the locale of the process.
    Requires the extra ``[calendars]``. Raises InvalidCalendar for an unknown country or
    subdivision, or if the package is not installed.
    """
    chosen_years = sorted(set(years))
    if not 1 <= len(chosen_years) <= MOST_YEARS:
        raise InvalidCalendar.of("years", chosen_years, f"give 1 to {MOST_YEARS} years.")
    try:
        package: Any = importlib.import_module("holidays")
    except ImportError as error:
        raise InvalidCalendar(
            f"country={country!r} needs the package holidays: pip install"
            " 'django-durable-tasks[calendars]'."
        ) from error
    exchange = country in package.list_supported_financial()
    source = package.financial_holidays if exchange else package.country_holidays
    try:
        holidays = source(country, subdiv=subdivision, years=chosen_years, language=_NAMES_IN)
    except NotImplementedError as error:
        raise InvalidCalendar(
            f"country={country!r}, subdivision={subdivision!r}: {error}"
        ) from error
    return tuple(
        SpecialDay(day, DayKind.CLOSED, name)
        for day, name in sorted(holidays.items())
        if day.year in chosen_years
    )


def _joined(day: date, calendars: Sequence[BusinessDays]) -> SpecialDay:
    """Return the exception for this date in the combination of all calendars."""
    shut = [
        calendar.why_closed(datetime.combine(day, time.min))
        for calendar in calendars
        if not calendar.is_open(day)
    ]
    if shut:
        return SpecialDay(day, DayKind.CLOSED, " / ".join(dict.fromkeys(shut)))
    specials = [
        special for calendar in calendars if (special := calendar._by_date.get(day)) is not None
    ]
    name = " / ".join(dict.fromkeys(special.name for special in specials if special.name))
    hours = [special.until for special in specials if special.until is not None]
    return SpecialDay(day, DayKind.HALF if hours else DayKind.OPEN, name, min(hours, default=None))


def _check(name: str, working: tuple[object, ...], special: tuple[SpecialDay, ...]) -> None:
    calendar = f"calendar {name!r}"
    wrong = [
        day
        for day in working
        if isinstance(day, bool) or not isinstance(day, int) or not 1 <= day <= 7
    ]
    if wrong:
        raise InvalidCalendar(
            f"{calendar}: working_days has {wrong[0]!r}; weekdays are 1 (Monday) to 7 (Sunday)."
        )
    if len(special) > MOST_DAYS:
        raise InvalidCalendar(f"{calendar}: {len(special)} dates; it can hold {MOST_DAYS}.")
    for before, after in pairwise(special):
        if before.day == after.day:
            raise InvalidCalendar(
                f"{calendar}: {after.day} is given twice; a date can have only one kind."
            )
    for date_given in special:
        if (date_given.kind is DayKind.HALF) != (date_given.until is not None):
            raise InvalidCalendar(
                f"{calendar}: {date_given.day} is {date_given.kind}: a half day, and no other, has"
                " `until`."
            )
    if not working and all(date_given.kind is DayKind.CLOSED for date_given in special):
        raise InvalidCalendar(f"{calendar} has no working day: give it weekdays or open dates.")


# The closed days of an iCalendar file (RFC 5545): its all-day events, with their recurrences,
# within given years.


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
        return next((line for line in self.properties if line.name == name), None)

    def text(self, name: str) -> str:
        line = self.get(name)
        if line is None:
            return ""
        return _ESCAPED.sub(lambda match: " " if match[1] in "nN" else match[1], line.value).strip()


def from_ics(text: str, years: Sequence[int]) -> tuple[SpecialDay, ...]:
    """Return the days of these years that the events of the file close, each once, with their
    names.

    An event must last whole days: dates, or midnight to midnight. Cancelled events are ignored.
    Raises InvalidCalendar with the number of the line.
    """
    if not 1 <= len(years) <= MOST_YEARS:
        raise InvalidCalendar.of("years", years, f"give 1 to {MOST_YEARS} years.")
    first, last = date(min(years), 1, 1), date(max(years), 12, 31)
    events = [event for event in _events(text) if event.text("STATUS").upper() != "CANCELLED"]
    replaced = {
        (event.text("UID"), _day_of_property(recurrence_id))
        for event in events
        if (recurrence_id := event.get("RECURRENCE-ID"))
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
    is_override = event.get("RECURRENCE-ID") is not None
    for start in _starts(event, first - length * _ONE, last):
        if is_override or (event.text("UID"), start) not in replaced:
            days = (start + number * _ONE for number in range(length))
            yield from (day for day in days if first <= day <= last)


def _starts(event: _Event, first: date, last: date) -> Iterator[date]:
    start = _day_of_property(_start(event))
    lines = [
        property_line for property_line in event.properties if property_line.name in _RECURRENCE
    ]
    if event.get("RECURRENCE-ID") is not None or not lines:
        yield start
        return
    rule = [f"DTSTART:{start:%Y%m%d}", f"RDATE:{start:%Y%m%d}"]
    for line in lines:
        value = line.value
        if line.name in {"RDATE", "EXDATE"}:  # with dates instead of times
            dates = (_day_of_property(line._replace(value=text)) for text in value.split(","))
            value = ",".join(f"{day:%Y%m%d}" for day in dates)
        rule.append(f"{line.name}:{value}")
    try:
        parts = checked([{"rrule": "\n".join(rule)}])
    except InvalidSchedule as error:
        raise InvalidCalendar(f"line {lines[0].number}: {error}") from error
    recurring = timetable(parts, zone="UTC", anchor=_midnight(start))
    fires = walk(recurring, _midnight(first) - timedelta(seconds=1))
    yield from takewhile(lambda day: day <= last, (fire.nominal.date() for fire in fires))


def _length(event: _Event) -> int:
    """Return how many days the event lasts."""
    begin, end, duration = _start(event), event.get("DTEND"), event.get("DURATION")
    _check_whole(begin)
    if duration is not None:
        match = _DURATION.fullmatch(duration.value)
        days = (int(match[1]) * 7 if match[1] else int(match[2])) if match else 0
        number = duration.number
    elif end is not None:
        _check_whole(end)
        days, number = (_day_of_property(end) - _day_of_property(begin)).days, end.number
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
    match = _STAMP.fullmatch(line.value)
    if match and match[2] not in {None, "000000"}:
        _refuse(
            line.number,
            f"{line.name}:{line.value} has a time of day; only events of whole days close a day",
        )


def _day_of_property(line: _Property) -> date:
    match = _STAMP.match(line.value)
    try:
        if match is None:
            raise ValueError("it is written as 20261225")
        return datetime.strptime(match[1], "%Y%m%d").replace(tzinfo=UTC).date()
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
            inside.append(line._replace(value=line.value.upper()))
            if inside[0].value != "VCALENDAR":
                _refuse(line.number, "an iCalendar file begins with BEGIN:VCALENDAR")
            if inside[-1].value == "VEVENT":
                events.append(_Event(line.number))
            if len(events) > MOST_EVENTS:
                _refuse(line.number, f"more than {MOST_EVENTS} events")
        elif line.name == "END":
            if not inside or inside.pop().value != line.value.upper():
                _refuse(line.number, f"END:{line.value[:40]} ends nothing that began")
        elif inside and inside[-1].value == "VEVENT":
            events[-1].properties.append(line)
    if inside:
        _refuse(inside[-1].number, f"BEGIN:{inside[-1].value[:40]} has no end")
    return events


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
    for number, pieces in folded:
        match = _LINE.fullmatch("".join(pieces))
        if match is None:
            _refuse(number, f"{pieces[0][:40]!r} is no line of an iCalendar file (NAME:value)")
        yield _Property(number, match[1].upper(), match[3].strip())


def _refuse(number: int, why: str) -> NoReturn:
    raise InvalidCalendar(f"line {number}: {why}.")
