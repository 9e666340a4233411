"""A schedule that is described on the command line: an unsaved RecurringTask, or a stored one with
an edit.
"""

from __future__ import annotations

import copy
import re
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django_durable_tasks import conf, ports
from django_durable_tasks.engine.recurring.schedule_cache import (
    agenda_from,
    agenda_of,
)
from django_durable_tasks.management.durable.calendar_sources import WAYS, days_of
from django_durable_tasks.management.durable.subcommand import Options, refuse
from django_durable_tasks.models import RecurringTask
from django_durable_tasks.rules.recurring.calendars import BusinessDays, Roll
from django_durable_tasks.rules.recurring.effective import Agenda, agenda
from django_durable_tasks.rules.recurring.options import KINDS, columns
from django_durable_tasks.rules.recurring.policies import CatchUp, CatchUpOrder
from django_durable_tasks.rules.recurring.timetables.builder import timetable
from django_durable_tasks.rules.recurring.timetables.types import DstGap, DstOverlap

DRAFT = "preview"
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_INTERVAL = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")
_PERIOD = re.compile(r"(?:(\d+) )?(day|week|month|quarter|year)s?")
_YEARS_AHEAD = 12
_FIRST_YEAR, _LAST_YEAR = 1900, 2500
_LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
_KEYWORDS = (
    "cron",
    "rrule",
    "solar",
    "at",
    "seconds",
    "latitude",
    "longitude",
    "offset",
    "day",
    "month",
    "time",
    "timezone",
    "dst_gap",
    "dst_overlap",
    "roll",
    "jitter",
    "catch_up_mode",
    "misfire_grace",
    "catchup_window",
    "max_catchup_runs",
    "catchup_order",
    "catchup_pace",
    "expires_in",
)


@dataclass(frozen=True, slots=True)
class ScheduleDraft:
    """An unsaved or stored RecurringTask with the timetable that its fields describe."""

    row: RecurringTask
    agenda: Agenda


def moment(text: str) -> datetime:
    """Read an instant in ISO 8601 with its offset."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ArgumentTypeError(
            f"{text!r} is no instant; write it as 2026-03-07T00:00:00Z"
        ) from None
    if found.tzinfo is None:
        raise ArgumentTypeError(
            f"{text!r} has no offset; write it as {found.isoformat()}Z, or with +01:00"
        )
    if not _FIRST_YEAR <= found.year <= _LAST_YEAR:
        raise ArgumentTypeError(f"{text!r} is not within the years {_FIRST_YEAR} to {_LAST_YEAR}")
    return found.astimezone(UTC)


def _number_or_text(text: str) -> int | str:
    return int(text) if re.fullmatch(r"[+-]?\d+", text) else text


def add_schedule(parser: ArgumentParser) -> None:
    """Declare the options that describe a schedule."""
    when = parser.add_argument_group("schedule", "several may be given; they are combined by OR")
    when.add_argument(
        "--cron", action="append", metavar="EXPR", help="five fields, or @daily and the like"
    )
    when.add_argument(
        "--seconds",
        choices=("FIRST", "LAST"),
        help="--cron has six fields; where the seconds stand",
    )
    when.add_argument("--rrule", action="append", metavar="TEXT", help="a recurrence of RFC 5545")
    when.add_argument(
        "--every",
        metavar="SPAN",
        help="90, 15m, 2h, 1d of elapsed time; or day, week, '2 months', year",
    )
    when.add_argument(
        "--day",
        type=_number_or_text,
        help="of --every month: 15, -1, 'last working', '2nd tuesday'",
    )
    when.add_argument(
        "--month", type=int, help="of --every year or quarter: the month in it, from 1"
    )
    when.add_argument("--time", metavar="HH:MM", help="of --every day, week, month, quarter, year")
    when.add_argument("--solar", metavar="EVENT", help="sunrise, sunset, dusk_civil, ...")
    when.add_argument("--latitude", type=float, help="of --solar, degrees north")
    when.add_argument("--longitude", type=float, help="of --solar, degrees east")
    when.add_argument("--offset", type=float, help="of --solar, seconds after the event")
    when.add_argument("--at", action="append", metavar="INSTANT", help="a single instant, ISO 8601")
    _add_zone_and_calendars(when)


def _add_zone_and_calendars(when: Any) -> None:
    when.add_argument(
        "--timezone", metavar="ZONE", help="of the wall clock (default: that of new schedules)"
    )
    when.add_argument(
        "--dst-gap", choices=[*DstGap], help="a time that the clock jumps over (default: RUN_AFTER)"
    )
    when.add_argument(
        "--dst-overlap", choices=[*DstOverlap], help="a time that comes twice (default: FIRST)"
    )
    when.add_argument("--calendar", action="append", metavar="SOURCE", help=WAYS)
    when.add_argument(
        "--roll", choices=[*Roll], help="what becomes of fires on closed days (default: SKIP)"
    )
    when.add_argument(
        "--jitter", metavar="SPREAD", help="seconds, or percent of the way to the next fire"
    )


def add_catch_up(parser: ArgumentParser) -> None:
    """Declare the options for missed fires."""
    late = parser.add_argument_group("catch-up", "options of the schedule; durations in seconds")
    late.add_argument(
        "--catch-up-mode", choices=[*CatchUp], help="what becomes of them (default: RUN_ONE_NOW)"
    )
    late.add_argument(
        "--misfire-grace", type=float, metavar="SECONDS", help="late, but not missed (default: 60)"
    )
    late.add_argument(
        "--catchup-window", type=float, metavar="SECONDS", help="what is older is not caught up"
    )
    late.add_argument(
        "--max-catchup-runs",
        type=int,
        metavar="N",
        help="run at most the N newest missed fire times (default: 100)",
    )
    late.add_argument(
        "--catchup-order", choices=[*CatchUpOrder], help="which runs first (default: OLDEST)"
    )
    late.add_argument(
        "--catchup-pace", type=float, metavar="SECONDS", help="between two runs that are caught up"
    )
    late.add_argument(
        "--expires-in", type=float, metavar="SECONDS", help="after its fire time a run is too late"
    )


def add_stored(parser: ArgumentParser, *, optional: bool) -> None:
    """Declare the name of a stored schedule."""
    parser.add_argument(
        "name",
        nargs="?" if optional else None,
        metavar="NAME",
        help="a recurring task, by its name",
    )
    parser.add_argument("--tenant", help="of this tenant (its slug)")


def given(options: Options) -> dict[str, Any]:
    """Return the options of the schedule as keyword arguments of ``upsert``; exits if a duration
    cannot be parsed.
    """
    found = {name: options[name] for name in _KEYWORDS if options.get(name) is not None}
    return found if options["every"] is None else found | _every(options["every"])


def _every(text: str) -> dict[str, Any]:
    if found := _INTERVAL.fullmatch(text):
        return {"interval": float(found[1]) * _UNITS[found[2]]}
    if found := _PERIOD.fullmatch(text):
        return {"every": found[2], "count": int(found[1] or 1)}
    return refuse(
        f"--every {text!r}: give 90, 15m, 2h or 1d for elapsed time, or day, week, '2 months',"
        " quarter, year."
    )


def draft(
    options: Options, start: datetime, *, anchored: datetime | None, backwards: bool = False
) -> ScheduleDraft:
    """Return the schedule that the options alone describe; does not use the database.

    Intervals and recurrence rules are counted from ``anchored``. Without it they are counted from
    ``start``, or with ``backwards`` from the year 2000.
    """
    keywords = given(options)
    if not set(KINDS) & keywords.keys():
        refuse(
            "Give the name of a recurring task, or one of --cron, --rrule, --every, --solar, --at."
        )
    anchor = anchored or (_LONG_AGO if backwards else start)
    values = {"time_zone": ports.schedule_zone(), **columns(DRAFT, keywords)}
    row = RecurringTask(name=DRAFT, start_time=anchor, end_time=options["end"], **values)
    days = calendar(options, start)
    times = timetable(
        row.timetable,
        zone=row.time_zone,
        anchor=anchor,
        dst_gap=row.dst_gap,
        dst_overlap=row.dst_overlap,
        seed=DRAFT,
        days=days,
    )
    return ScheduleDraft(
        row, agenda(times, zone=row.time_zone, days=days, roll=Roll(row.roll), end=row.end_time)
    )


def calendar(options: Options, start: datetime) -> BusinessDays | None:
    """Return the open days of --calendar, from the year before ``start``."""
    return days_of(options["calendar"] or [], range(start.year - 1, start.year + _YEARS_AHEAD))


def stored(options: Options) -> ScheduleDraft:
    """Return the recurring task with this name. Exits if the name is unknown or used by several
    tenants.
    """
    rows = RecurringTask.objects.using(conf.settings().DATABASE).filter(name=options["name"])
    if options["tenant"] is not None:
        rows = rows.filter(tenant__slug=options["tenant"])
    found = list(rows[:2])
    if not found:
        refuse(f"There is no recurring task {options['name']!r}.")
    if len(found) > 1:
        refuse(f"Several tenants have a recurring task {options['name']!r}: give --tenant.")
    return ScheduleDraft(found[0], agenda_of(found[0]))


def edited(before: ScheduleDraft, options: Options, start: datetime) -> ScheduleDraft | None:
    """Return the stored schedule as these options would change it; None if they change nothing."""
    keywords = given(options)
    days = calendar(options, start)
    if not keywords and days is None:
        return None
    row = copy.copy(before.row)
    if set(KINDS) & keywords.keys():
        keywords = {"timezone": row.time_zone, **keywords}
    _set(row, columns(row.name, keywords))
    return ScheduleDraft(row, agenda_of(row) if days is None else agenda_from(row, days))


def _set(row: RecurringTask, values: Mapping[str, Any]) -> None:
    for column, value in values.items():
        setattr(row, column, value)
