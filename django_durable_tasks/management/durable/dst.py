"""``durable dst-report`` and ``durable tzdata``."""

from __future__ import annotations

import copy
from argparse import ArgumentParser
from collections.abc import Iterator
from datetime import timedelta
from itertools import islice
from typing import Any

from django_durable_tasks import conf
from django_durable_tasks.engine.recurring import tzdata as recurring_tzdata
from django_durable_tasks.engine.recurring.schedule_cache import (
    Calendars,
    agenda_of,
    calendars_of,
)
from django_durable_tasks.exceptions import InvalidCalendar, InvalidSchedule
from django_durable_tasks.host_clock import host_now
from django_durable_tasks.management.durable.output import Output, plain, table
from django_durable_tasks.management.durable.preview import badge
from django_durable_tasks.management.durable.schedule_arguments import moment
from django_durable_tasks.management.durable.selectors import count
from django_durable_tasks.management.durable.subcommand import OK, Options, Subcommand
from django_durable_tasks.models import RecurringTask
from django_durable_tasks.models.recurring_task import RecurringTaskQuerySet
from django_durable_tasks.rules.recurring.effective import Agenda, PlannedRun
from django_durable_tasks.rules.recurring.effective.types import TICK
from django_durable_tasks.rules.recurring.timetables.clock_changes import ClockChange, clock_changes
from django_durable_tasks.rules.recurring.timetables.types import DstGap, DstOverlap
from django_durable_tasks.rules.recurring.timetables.zones import tzdata_version, zone

_MOST = 20  # fires shown of one schedule at one change
_DST_SHOWN = ("name", "zone", "change", "local", "dst", "runs")
_MOVED_SHOWN = ("name", "zone", "stored", "by", "found")


def dst_arguments(parser: ArgumentParser) -> None:
    """Declare the length of the range."""
    parser.add_argument("--weeks", type=count, default=8, help="how far to look (default: 8)")
    parser.add_argument("--start", type=moment, help="from when on (default: now)")


def dst_report(options: Options, out: Output) -> int:
    """Show each fire time that a clock change moves, drops or repeats, and whether it runs."""
    start = options["start"] or host_now()
    end = start + timedelta(weeks=options["weeks"])
    changes = {name: found for name in _zones() if (found := list(clock_changes(name, start, end)))}
    rows = [
        found_fire
        for row, calendars in _wall_rows(changes)
        for found_fire in _touched(row, changes[row.time_zone], calendars, out)
    ]
    remarks = [f"  {row['name']}: {row['remark']}" for row in rows]
    out.emit(
        rows,
        "\n".join(
            [
                table(_DST_SHOWN, rows, "no schedule is touched"),
                *(["", *remarks] if remarks else []),
            ]
        ),
    )
    return OK


def tzdata_arguments(parser: ArgumentParser) -> None:
    """Declare the number of schedules to compare."""
    parser.add_argument(
        "--limit",
        type=count,
        default=10_000,
        help="how many schedules are compared (default: 10000)",
    )


def tzdata(options: Options, out: Output) -> int:
    """Show the schedules whose stored next fire time differs from the one that the time zone
    database of this process gives.
    """
    rows = [
        {
            "name": one.row.name,
            "zone": one.row.time_zone,
            "stored": one.stored,
            "by": one.row.tzdata_version,
            "found": one.found,
        }
        for one in recurring_tzdata.moved(options["limit"])
    ]
    text = f"tzdata {tzdata_version()}\n" + table(_MOVED_SHOWN, rows, "no stored fire moves")
    out.emit({"tzdata": tzdata_version(), "moved": rows}, text)
    return OK


def _active() -> RecurringTaskQuerySet:
    rows: RecurringTaskQuerySet = RecurringTask.objects.using(conf.settings().DATABASE).active()
    return rows.filter(interval_seconds__isnull=True)


def _zones() -> list[str]:
    return list(_active().order_by("time_zone").values_list("time_zone", flat=True).distinct())


def _wall_rows(zones: Any) -> Iterator[tuple[RecurringTask, Calendars]]:
    """Yield the recurring tasks whose timetables use the wall clock of these zones, in pages of
    some hundred, with their calendars.
    """
    rows = (
        _active()
        .filter(time_zone__in=list(zones))
        .order_by("pk")
        .iterator(conf.settings().BATCH_SIZE)
    )
    while batch := list(islice(rows, conf.settings().BATCH_SIZE)):
        calendars = calendars_of(batch)
        yield from ((row, calendars) for row in batch)


def _touched(
    row: RecurringTask, changes: list[ClockChange], calendars: Calendars, out: Output
) -> Iterator[dict[str, Any]]:
    running_all = copy.copy(row)
    running_all.dst_gap, running_all.dst_overlap = DstGap.RUN_AFTER, DstOverlap.BOTH
    try:
        every, real = agenda_of(running_all, calendars), agenda_of(row, calendars)
    except (InvalidSchedule, InvalidCalendar) as error:
        out.note(f"{row.name} cannot be computed: {error}")
        return
    for change in changes:
        for run in islice(_with_remarks(every, change), _MOST):
            remark = next(remark for remark in run.remarks if badge([remark]))
            yield {
                "name": row.name,
                "zone": row.time_zone,
                "change": f"{plain(change.at)} {change.shift.total_seconds() / 60:+g} min",
                "nominal": run.nominal,
                "local": run.nominal.astimezone(zone(row.time_zone)).isoformat(),
                "dst": badge(run.remarks),
                "runs": real.at_nominal(run.nominal) is not None,
                "remark": remark,
            }


def _with_remarks(every: Agenda, change: ClockChange) -> Iterator[PlannedRun]:
    """Yield the fires that a clock change affects."""
    cursor = change.at - abs(change.shift) - TICK
    while (run := every.next(cursor)) is not None and run.at <= change.at + abs(change.shift):
        if badge(run.remarks):
            yield run
        cursor = run.at


DST_REPORT = Subcommand(
    name="dst-report",
    summary="show the fires of the next weeks that a change of clocks moves, drops or repeats",
    examples=(
        "dst-report",
        "dst-report --weeks 52",
        "dst-report --start 2026-03-01T00:00:00Z --weeks 5 --format json",
    ),
    arguments=dst_arguments,
    run=dst_report,
)
TZDATA = Subcommand(
    name="tzdata",
    summary="show the schedules whose stored next fire moves by the zone tables of this process",
    examples=("tzdata", "tzdata --format json"),
    arguments=tzdata_arguments,
    run=tzdata,
)
