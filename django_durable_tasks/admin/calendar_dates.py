"""The dates of a calendar as editable text lines, ``2026-12-24 HALF 14:00 Christmas Eve``, and as a
table of a year.

Without a kind a date is CLOSED. A half day contains its last open wall time.
"""

from __future__ import annotations

from calendar import Calendar as Months
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, time
from typing import Any

from django.utils.dates import MONTHS
from django.utils.translation import gettext as _

from django_durable_tasks.exceptions import InvalidCalendar
from django_durable_tasks.rules.recurring.calendars import BusinessDays, DayKind, SpecialDay

FIRST_YEAR, LAST_YEAR = 1900, 2200


def written(days: Sequence[SpecialDay]) -> str:
    """Return one line of text for each date, in their order."""
    return "\n".join(_line(one) for one in sorted(days, key=lambda one: one.day))


def _line(one: SpecialDay) -> str:
    unmistaken = one.kind == DayKind.CLOSED and one.name.partition(" ")[0] not in set(DayKind)
    kind = "" if unmistaken else one.kind.value
    until = f"{one.until:%H:%M}" if one.until else ""
    return " ".join(part for part in (one.day.isoformat(), kind, until, one.name) if part)


def read(text: str) -> list[SpecialDay]:
    """Return the dates of these lines; raises InvalidCalendar with the line and the remedy."""
    lines = ((number, line.split()) for number, line in enumerate(text.splitlines(), 1))
    return [_read(number, words) for number, words in lines if words]


def _read(number: int, words: list[str]) -> SpecialDay:
    try:
        day, rest = date.fromisoformat(words[0]), words[1:]
        kind = DayKind(rest.pop(0)) if rest and rest[0] in set(DayKind) else DayKind.CLOSED
        until = time.fromisoformat(rest.pop(0)) if kind == DayKind.HALF else None
    except (ValueError, IndexError):
        message = _(
            "Line %(number)d, %(line)r: write 2026-12-25 Christmas, 2026-12-24 HALF 14:00 or"
            " 2026-05-02 OPEN."
        )
        raise InvalidCalendar(message % {"number": number, "line": " ".join(words)[:60]}) from None
    return SpecialDay(day, kind, " ".join(rest)[:200], until)


@dataclass(frozen=True, slots=True)
class MergedDates:
    """The merged dates, and which of the imported ones are new or differ from the previous date."""

    days: tuple[SpecialDay, ...]
    added: tuple[SpecialDay, ...]
    changed: tuple[SpecialDay, ...]


def taken_in(known: Sequence[SpecialDay], others: Sequence[SpecialDay]) -> MergedDates:
    """Return the known dates merged with the others, which replace those of the same day."""
    by_day = {one.day: one for one in known}
    added = tuple(one for one in others if one.day not in by_day)
    changed = tuple(one for one in others if one.day in by_day and by_day[one.day] != one)
    by_day |= {one.day: one for one in others}
    return MergedDates(tuple(by_day[day] for day in sorted(by_day)), added, changed)


# The table of a year ------------------------------------------------------------------------------


def months_of(days: BusinessDays, year: int) -> list[dict[str, Any]]:
    """Return the months of a year: their names and weeks of cells; a cell outside of the month is
    None.
    """
    special = {one.day: one for one in days.special if one.day.year == year}
    return [
        {
            "name": f"{MONTHS[month]} {year}",
            "weeks": [
                [_cell(days, special.get(day), day) if day.month == month else None for day in week]
                for week in Months().monthdatescalendar(year, month)
            ],
        }
        for month in range(1, 13)
    ]


def _cell(days: BusinessDays, special: SpecialDay | None, day: date) -> dict[str, Any]:
    if special is None:
        open_ = days.is_open(day)
        return {
            "number": day.day,
            "mark": "open" if open_ else "off",
            "title": "" if open_ else _("closed"),
        }
    kinds = {DayKind.CLOSED: ("closed", _("closed")), DayKind.OPEN: ("extra", _("open"))}
    mark, word = kinds.get(
        special.kind, ("half", f"{_('open until')} {special.until:%H:%M}" if special.until else "")
    )
    return {
        "number": day.day,
        "mark": mark,
        "title": f"{word}: {special.name}" if special.name else word,
    }


def year_of(text: str, otherwise: int) -> int:
    """Return the year in the query string, otherwise the default."""
    year = int(text) if text.isdecimal() and len(text) == 4 else otherwise
    return min(max(year, FIRST_YEAR), LAST_YEAR)
