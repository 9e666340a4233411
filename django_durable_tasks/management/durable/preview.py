"""``durable preview``: the next fires of a schedule. It is given by options alone, or it is a
stored schedule before and after an edit.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import Any

from django_durable_tasks.host_clock import host_now
from django_durable_tasks.management.durable.output import Output, plain, table
from django_durable_tasks.management.durable.schedule_arguments import (
    ScheduleDraft,
    add_schedule,
    add_stored,
    draft,
    edited,
    moment,
    stored,
)
from django_durable_tasks.management.durable.selectors import count
from django_durable_tasks.management.durable.subcommand import OK, Options, Subcommand, refuse
from django_durable_tasks.rules.recurring.effective import PlannedRun
from django_durable_tasks.rules.recurring.effective.types import TICK
from django_durable_tasks.rules.recurring.jitter import effective
from django_durable_tasks.rules.recurring.policies import RecurringStatus
from django_durable_tasks.rules.recurring.timetables.zones import zone

_FEW, _MOST = 10, 10_000
_SHOWN = ("nominal", "effective", "local", "dst")
_COMPARED = ("change", *_SHOWN)
_BADGES = {"DST gap": "GAP", "DST overlap": "TWICE"}

Fires = list[dict[str, Any]]


def arguments(parser: ArgumentParser) -> None:
    """Declare the schedule, the start and the number of fires."""
    add_stored(parser, optional=True)
    add_schedule(parser)
    parser.add_argument("--start", type=moment, help="the first instant, included (default: now)")
    parser.add_argument("--end", type=moment, help="the last instant, included")
    parser.add_argument(
        "--count", type=count, help=f"how many fires at most (default: {_FEW}, with --end {_MOST})"
    )
    parser.add_argument(
        "--previous", action="store_true", help="the fires before --start, the latest first"
    )
    parser.add_argument(
        "--anchor",
        type=moment,
        help=(
            "where elapsed time and recurrences are counted from "
            "(default: --start; with --previous: the year 2000)"
        ),
    )


def run(options: Options, out: Output) -> int:
    """Show the fires; of a stored schedule also those after the edit that the options describe."""
    start = options["start"] or host_now()
    if options["end"] is not None and options["end"] < start and not options["previous"]:
        refuse(f"--end {plain(options['end'])} is before --start {plain(start)}.")
    if options["name"] is None:
        now = draft(options, start, anchored=options["anchor"], backwards=options["previous"])
        return _show(now, start, options, out)
    if options["anchor"] is not None:
        refuse("--anchor goes with a description; a stored schedule has its start_time.")
    before = stored(options)
    if before.row.status != RecurringStatus.ACTIVE:
        out.note(
            f"{before.row.name} is {before.row.status}: it does not fire."
            f" {before.row.status_reason}".rstrip()
        )
    after = edited(before, options, start)
    return (
        _show(before, start, options, out)
        if after is None
        else _compare(before, after, start, options, out)
    )


def planned(
    schedule_draft: ScheduleDraft, start: datetime, options: Options
) -> Iterator[PlannedRun]:
    """Yield the runs from ``start`` on, ascending, or those before it, descending."""
    end, backwards = options["end"], options["previous"]
    ask, cursor = (
        (schedule_draft.agenda.previous, start)
        if backwards
        else (schedule_draft.agenda.next, start - TICK)
    )
    while (run := ask(cursor)) is not None and (end is None or backwards or run.at <= end):
        yield run
        cursor = run.at


def fires(schedule_draft: ScheduleDraft, start: datetime, options: Options) -> Fires:
    """Return the fires as they are printed: nominal and effective in UTC, local time with its
    offset, remarks.
    """
    most = min(options["count"] or (_FEW if options["end"] is None else _MOST), _MOST)
    return [
        fire(schedule_draft, run) for run in islice(planned(schedule_draft, start, options), most)
    ]


def fire(schedule_draft: ScheduleDraft, run: PlannedRun) -> dict[str, Any]:
    """Return one fire as it is printed. The jitter of a schedule that is not stored yet is an
    example.
    """
    row, at = schedule_draft.row, run.at
    if row.jitter or row.jitter_percent:
        following = schedule_draft.agenda.next(run.at)
        seed = row.name if row._state.adding else str(row.pk)
        at = effective(
            run, None if following is None else following.at, seed, row.jitter, row.jitter_percent
        )
    local = at.astimezone(zone(row.time_zone)).isoformat()
    return {"nominal": run.nominal, "effective": at, "local": local, "remarks": list(run.remarks)}


def badge(remarks: Sequence[str]) -> str:
    """Return GAP or TWICE for a fire that a clock change affects."""
    return " ".join(
        dict.fromkeys(
            word
            for remark in remarks
            for start, word in _BADGES.items()
            if remark.startswith(start)
        )
    )


def listed(columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> str:
    """Return the fires as a table, with their remarks in full below it."""
    shown = [{**row, "dst": badge(row["remarks"])} for row in rows]
    remarks = [f"  {plain(row['nominal'])}  {remark}" for row in rows for remark in row["remarks"]]
    return "\n".join(
        [table(columns, shown, "no fire"), *(["", "remarks:", *remarks] if remarks else [])]
    )


def _show(schedule_draft: ScheduleDraft, start: datetime, options: Options, out: Output) -> int:
    found = fires(schedule_draft, start, options)
    out.emit(found, listed(_SHOWN, found))
    if found and not options["previous"]:
        for stretch in schedule_draft.agenda.closed(start - TICK, found[-1]["nominal"]):
            many = f"{'' if stretch.exact else 'at least '}{stretch.count}"
            out.note(
                f"left out: {many} from {plain(stretch.first)} to {plain(stretch.last)}:"
                f" {stretch.reason}"
            )
    return OK


def _compare(
    before: ScheduleDraft, after: ScheduleDraft, start: datetime, options: Options, out: Output
) -> int:
    old, new = fires(before, start, options), fires(after, start, options)
    times = {one["effective"] for one in old}, {one["effective"] for one in new}
    rows = [{**one, "change": "same" if one["effective"] in times[0] else "new"} for one in new]
    rows += [{**one, "change": "gone"} for one in old if one["effective"] not in times[1]]
    rows.sort(key=lambda one: one["effective"], reverse=options["previous"])
    out.emit({"before": old, "after": new}, listed(_COMPARED, rows))
    return OK


PREVIEW = Subcommand(
    name="preview",
    summary=(
        "show the next fires of a schedule, described or stored, and what an edit would change;"
        " writes nothing"
    ),
    examples=(
        (
            'preview --cron "30 2 * * *" --timezone America/New_York --start 2026-03-07T00:00:00Z'
            " --count 5 --format json"
        ),
        (
            'preview --cron "0 9 * * *" --timezone Europe/Berlin --calendar holidays:DE-BY --roll'
            " FOLLOWING"
        ),
        (
            'preview --rrule "FREQ=MONTHLY;BYDAY=-1FR" --start 2026-01-01T09:00:00Z --end'
            " 2026-12-31T00:00:00Z"
        ),
        'preview --every month --day "last working" --time 18:00 --calendar office.ics',
        "preview --every 15m --jitter 10% --start 2026-01-01T00:00:00Z",
        "preview --solar sunset --latitude 51.5 --longitude=-0.1 --offset=-600",
        'preview --cron "0 12 * * MON" --previous --count 3',
        "preview nightly-report",
        'preview nightly-report --cron "15 3 * * *"',
    ),
    arguments=arguments,
    run=run,
)
