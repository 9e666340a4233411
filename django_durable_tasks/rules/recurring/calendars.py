"""Working days: weekly working days, closed days, extra open days and half days.

A calendar is a snapshot of dates. A new release of the ``holidays`` package changes no schedule
until the calendar is imported again.
"""

from __future__ import annotations

import importlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from enum import StrEnum
from itertools import pairwise, takewhile
from typing import Any

from django_durable_tasks.exceptions import InvalidCalendar

FARTHEST = 3_660  # a search covers at most this many days: ten years
MOST_DAYS = 20_000
MOST_YEARS = 100
_NAMES_IN = "en_US"
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


class DayKind(StrEnum):
    """How a date differs from its weekday: closed, open all day, or open until a time."""

    CLOSED = "CLOSED"
    OPEN = "OPEN"
    HALF = "HALF"


class Roll(StrEnum):
    """What happens to a fire time on a closed day: skipped, or moved to the next open day, to the
    previous one, or to the next within the month, otherwise the previous one (ISDA's business day
    conventions).
    """

    SKIP = "SKIP"
    FOLLOWING = "FOLLOWING"
    PRECEDING = "PRECEDING"
    MODIFIED_FOLLOWING = "MODIFIED_FOLLOWING"


@dataclass(frozen=True, slots=True)
class SpecialDay:
    """One date that differs from its weekday; ``until`` is the last open minute of a half day,
    local wall time.
    """

    day: date
    kind: DayKind = DayKind.CLOSED
    name: str = ""
    until: time | None = None


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

    def __post_init__(self) -> None:
        working = tuple(sorted(set(self.working_days)))
        special = tuple(sorted(self.special, key=lambda one: one.day))
        _check(self.name, working, special)
        object.__setattr__(self, "working_days", working)
        object.__setattr__(self, "special", special)
        object.__setattr__(self, "_by_date", {one.day: one for one in special})
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

    def may_open(self, day: date, step: timedelta) -> Iterator[date]:
        """Yield a superset of the open days of ``days_from``; the work depends on the number of
        dates in the calendar.
        """
        if self.working_days:
            return days_from(day, step)
        farthest = FARTHEST * abs(step)
        at = (
            bisect_right(self.special, day, key=_day)
            if step > timedelta(0)
            else bisect_left(self.special, day, key=_day)
        )
        named = self.special[at:] if step > timedelta(0) else reversed(self.special[:at])
        return takewhile(lambda one: abs(one - day) <= farthest, map(_day, named))


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
        *(one.working_days for one in calendars[1:])
    )
    dates = sorted({special.day for one in calendars for special in one.special})
    return BusinessDays(
        name=" + ".join(one.name for one in calendars),
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
    wanted = sorted(set(years))
    if not 1 <= len(wanted) <= MOST_YEARS:
        raise InvalidCalendar(f"years={wanted!r}: give 1 to {MOST_YEARS} years.")
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
        found = source(country, subdiv=subdivision, years=wanted, language=_NAMES_IN)
    except NotImplementedError as error:
        raise InvalidCalendar(
            f"country={country!r}, subdivision={subdivision!r}: {error}"
        ) from error
    return tuple(
        SpecialDay(day, DayKind.CLOSED, name)
        for day, name in sorted(found.items())
        if day.year in wanted
    )


def _joined(day: date, calendars: Sequence[BusinessDays]) -> SpecialDay:
    """Return the exception for this date in the combination of all calendars."""
    shut = [
        one.why_closed(datetime.combine(day, time.min)) for one in calendars if not one.is_open(day)
    ]
    if shut:
        return SpecialDay(day, DayKind.CLOSED, " / ".join(dict.fromkeys(shut)))
    specials = [special for one in calendars if (special := one._by_date.get(day)) is not None]
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
    for one in special:
        if (one.kind is DayKind.HALF) != (one.until is not None):
            raise InvalidCalendar(
                f"{calendar}: {one.day} is {one.kind}: a half day, and no other, has `until`."
            )
    if not working and all(one.kind is DayKind.CLOSED for one in special):
        raise InvalidCalendar(f"{calendar} has no working day: give it weekdays or open dates.")
