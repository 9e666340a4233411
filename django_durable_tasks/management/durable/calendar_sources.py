"""Calendars that are named on the command line, without a database."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from django_durable_tasks.management.durable.subcommand import refuse
from django_durable_tasks.rules.recurring.calendars import BusinessDays, combined, from_holidays
from django_durable_tasks.rules.recurring.icalendar import MOST_CHARACTERS, from_ics

_HOLIDAYS = re.compile(r"holidays:([A-Za-z0-9]+)(?:-([A-Za-z0-9]+))?")
WAYS = "weekdays, holidays:DE-BY (a country, or an exchange as XNYS), or the path of an .ics file"


def days_of(sources: Sequence[str], years: range) -> BusinessDays | None:
    """Return the dates on which all these calendars are open; None if no calendar is named.
    Holidays and files are read for these years; outside them only the weekend is closed.
    """
    return combined([_days(source, years) for source in sources]) if sources else None


def _days(source: str, years: range) -> BusinessDays:
    if source == "weekdays":
        return BusinessDays(name=source)
    found = _HOLIDAYS.fullmatch(source)
    if found:
        return BusinessDays(name=source, special=from_holidays(found[1].upper(), found[2], years))
    if not source.lower().endswith(".ics"):
        refuse(f"--calendar {source!r}: give {WAYS}.")
    return BusinessDays(name=Path(source).stem, special=from_ics(_text(Path(source)), years))


def _text(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return file.read(MOST_CHARACTERS + 1)
    except (OSError, UnicodeDecodeError) as error:
        refuse(f"--calendar {path}: it cannot be read: {error}.")
