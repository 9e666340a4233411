"""Fire times on the command line: ``preview``, ``simulate``, ``dst-report``, ``tzdata``,
``explain`` and ``ledger``.
"""

from __future__ import annotations

import copy
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from django_durable_tasks import conf
from django_durable_tasks.choices import FireOutcome, RecurringStatus
from django_durable_tasks.command.arguments import (
    ScheduleDraft,
    add_catch_up,
    add_schedule,
    add_stored,
    count,
    draft,
    edited,
    moment,
    stored,
)
from django_durable_tasks.command.recurring import (
    LEDGER_COLUMNS,
    LEDGER_SHOWN,
    add_name,
    ledger_of,
    named,
)
from django_durable_tasks.command.subcommand import (
    OK,
    Options,
    Output,
    Subcommand,
    clean,
    plain,
    refuse,
    table,
)
from django_durable_tasks.exceptions import InvalidCalendar, InvalidSchedule
from django_durable_tasks.host_clock import host_now
from django_durable_tasks.models import RecurringTask
from django_durable_tasks.models.schedules import RecurringTaskQuerySet
from django_durable_tasks.schedules import recompute
from django_durable_tasks.schedules.agenda import TICK, Agenda, PlannedRun
from django_durable_tasks.schedules.misfires import Choice, ChosenFire, choose, effective
from django_durable_tasks.schedules.schedule_cache import Calendars, agenda_of, calendars_of
from django_durable_tasks.schedules.tick_plan import policy_of
from django_durable_tasks.schedules.timetables.types import DstGap, DstOverlap
from django_durable_tasks.schedules.timetables.zones import (
    ClockChange,
    clock_changes,
    tzdata_version,
    zone,
)

# ``durable preview``: the next fires of a schedule. It is given by options alone, or it is a
# stored schedule before and after an edit.


_FEW, _PREVIEW_MOST = 10, 10_000
_SHOWN = ("nominal", "effective", "local", "dst")
_COMPARED = ("change", *_SHOWN)
_BADGES = {"DST gap": "GAP", "DST overlap": "TWICE"}

Fires = list[dict[str, Any]]


def preview_arguments(parser: ArgumentParser) -> None:
    """Declare the schedule, the start and the number of fires."""
    add_stored(parser, optional=True)
    add_schedule(parser)
    parser.add_argument("--start", type=moment, help="the first instant, included (default: now)")
    parser.add_argument("--end", type=moment, help="the last instant, included")
    parser.add_argument(
        "--count",
        type=count,
        help=f"how many fires at most (default: {_FEW}, with --end {_PREVIEW_MOST})",
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


def preview(options: Options, out: Output) -> int:
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
    most = min(
        options["count"] or (_FEW if options["end"] is None else _PREVIEW_MOST), _PREVIEW_MOST
    )
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
    arguments=preview_arguments,
    run=preview,
)


# ``durable simulate``: shows which fires an outage of all schedulers would miss, and which of them
# catch-up would run afterwards.


_TICKS = 20  # maximum number of rounds of the trigger
_RUNS = ("nominal", "effective", "starts", "caught_up")
_LEFT_OUT_COLUMNS = ("outcome", "count", "first", "last", "reason")


def simulate_arguments(parser: ArgumentParser) -> None:
    """Declare the schedule and the range of the outage."""
    add_stored(parser, optional=True)
    parser.add_argument(
        "--outage",
        nargs=2,
        type=moment,
        metavar=("FROM", "TO"),
        required=True,
        help="when no scheduler ran, and when one runs again",
    )
    parser.add_argument(
        "--anchor", type=moment, help="where elapsed time is counted from (default: FROM)"
    )
    add_schedule(parser)
    add_catch_up(parser)
    parser.set_defaults(end=None)


def simulate(options: Options, out: Output) -> int:
    """Show which fires are missed and which run. For a stored schedule, also show both after the
    edit that the options describe.
    """
    start, end = options["outage"]
    if end < start:
        refuse(f"--outage: its end {plain(end)} is before its begin {plain(start)}.")
    if options["name"] is None:
        schedules = {"schedule": draft(options, start, anchored=options["anchor"])}
    else:
        before = stored(options)
        after = edited(before, options, start)
        schedules = {"schedule": before} if after is None else {"before": before, "after": after}
    results = {title: _simulated(one, start, end) for title, one in schedules.items()}
    out.emit(
        {"outage": {"from": start, "to": end}, **results},
        "\n\n".join(_text(title, one, schedules[title]) for title, one in results.items()),
    )
    return OK


def _simulated(schedule_draft: ScheduleDraft, start: datetime, end: datetime) -> dict[str, Any]:
    choices = list(_ticks(schedule_draft, start - TICK, end))
    missed = schedule_draft.agenda.count(start - TICK, end)
    runs = [_run(schedule_draft, chosen, end) for choice in choices for chosen in choice.runs]
    closed = schedule_draft.agenda.closed(start - TICK, choices[-1].through)
    following = choices[-1].following
    return {
        "due": {"count": missed.number, "exact": missed.exact},
        "runs": [run for run in runs if not run.pop("expired")][: _remaining_runs(schedule_draft)],
        "left_out": [
            *({**plain(one), "outcome": one.outcome} for one in closed),
            *(
                {**plain(one), "outcome": str(FireOutcome.MISSED)}
                for choice in choices
                for one in choice.missed
            ),
            *_expired(schedule_draft, choices, end),
        ],
        "next": None if following is None else fire(schedule_draft, following),
        "complete": choices[-1].through >= end,
    }


def _remaining_runs(schedule_draft: ScheduleDraft) -> int | None:
    return (
        None
        if schedule_draft.row.max_runs is None
        else max(0, schedule_draft.row.max_runs - schedule_draft.row.runs_count)
    )


def _ticks(schedule_draft: ScheduleDraft, watermark: datetime, now: datetime) -> Iterator[Choice]:
    """Yield the decisions of the trigger, one per round, from the end of the outage on."""
    policy = policy_of(schedule_draft.row)
    for _ in range(_TICKS):
        choice = choose(schedule_draft.agenda, watermark, now, policy)
        yield choice
        if choice.through >= now:
            return
        watermark = choice.through


def _too_late(schedule_draft: ScheduleDraft, chosen: ChosenFire, now: datetime) -> bool:
    expires_in = schedule_draft.row.expires_in
    return expires_in is not None and chosen.planned.at + timedelta(seconds=expires_in) <= now


def _run(schedule_draft: ScheduleDraft, chosen: ChosenFire, now: datetime) -> dict[str, Any]:
    found = fire(schedule_draft, chosen.planned)
    starts = max(found["effective"], now + timedelta(seconds=chosen.delay))
    return {
        **found,
        "starts": starts,
        "caught_up": chosen.caught_up,
        "expired": _too_late(schedule_draft, chosen, now),
    }


def _expired(
    schedule_draft: ScheduleDraft, choices: list[Choice], now: datetime
) -> list[dict[str, Any]]:
    late = [
        one.planned.nominal
        for choice in choices
        for one in choice.runs
        if _too_late(schedule_draft, one, now)
    ]
    if not late:
        return []
    reason = f"expires_in {schedule_draft.row.expires_in:g} s"
    return [
        {
            "first": min(late),
            "last": max(late),
            "count": len(late),
            "exact": True,
            "reason": reason,
            "outcome": str(FireOutcome.EXPIRED),
        }
    ]


def _text(title: str, result: dict[str, Any], schedule: ScheduleDraft) -> str:
    row, due = schedule.row, result["due"]
    following = result["next"]
    lines = [
        (
            f"{title}: {row.name}, {row.catch_up_mode}, grace {row.misfire_grace:g} s, overlap"
            f" {row.overlap}"
        ),
        f"due in the outage: {'' if due['exact'] else 'at least '}{due['count']}",
        "",
        f"runs at its end: {len(result['runs'])}",
        table(_RUNS, result["runs"], "none"),
        "",
        "left out:",
        table(_LEFT_OUT_COLUMNS, result["left_out"]),
        "",
        f"next: {'never again' if following is None else plain(following['effective'])}",
    ]
    if not result["complete"]:
        lines.append(f"More follows: the trigger takes more than {_TICKS} rounds for all of it.")
    return "\n".join(lines)


SIMULATE = Subcommand(
    name="simulate",
    summary=(
        "show which fires an outage would miss and what catch-up would do, before and after an"
        " edit; writes nothing"
    ),
    examples=(
        "simulate nightly-report --outage 2026-03-07T00:00:00Z 2026-03-10T12:00:00Z",
        (
            "simulate nightly-report --outage 2026-03-07T00:00:00Z 2026-03-10T12:00:00Z"
            " --catch-up-mode RUN_ALL_MISSED"
        ),
        (
            'simulate --cron "0 * * * *" --outage 2026-03-07T00:00:00Z 2026-03-07T06:10:00Z'
            " --catch-up-mode SKIP_MISSED"
        ),
    ),
    arguments=simulate_arguments,
    run=simulate,
)


_DST_MOST = 20  # fires shown of one schedule at one change
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
        for one in recompute.moved_fire_times(options["limit"])
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
        for run in islice(_with_remarks(every, change), _DST_MOST):
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


# ``explain`` and ``ledger``: the result of each fire time of a recurring task, and its reason.


def explain(options: Options, out: Output) -> int:
    """Show the result or the expected result of one fire time."""
    row = named(options["name"], options["tenant"])
    account = clean(row.explain(options["at"]))
    out.emit({"name": row.name, "at": options["at"], "account": account}, account)
    return OK


def ledger(options: Options, out: Output) -> int:
    """Show the ledger entries, the newest first."""
    entries = ledger_of(named(options["name"], options["tenant"]))
    if options["outcome"]:
        entries = entries.filter(outcome=options["outcome"])
    if options["before"] is not None:
        entries = entries.filter(fire_time__lt=options["before"])
    rows = list(entries.values(*LEDGER_COLUMNS)[: options["limit"]])
    out.emit(rows, table(LEDGER_SHOWN, rows, "no ledger entries"))
    if len(rows) == options["limit"]:
        out.note(f"There may be more: add --before {rows[-1]['fire_time'].isoformat()}")
    return OK


def _explain_arguments(parser: ArgumentParser) -> None:
    add_name(parser)
    parser.add_argument(
        "at", metavar="AT", type=moment, help="any instant, ISO 8601 with its offset"
    )


def _ledger_arguments(parser: ArgumentParser) -> None:
    add_name(parser)
    parser.add_argument(
        "--outcome",
        choices=[one.value for one in FireOutcome],
        help="only entries with this outcome",
    )
    parser.add_argument(
        "--before", metavar="INSTANT", type=moment, help="only fire times before this instant"
    )
    parser.add_argument(
        "--limit", type=count, default=50, help="maximum number of entries (default: 50)"
    )


EXPLAIN = (
    Subcommand(
        name="explain",
        summary="explain why a schedule did or did not run at an instant, or what it will do",
        examples=(
            "explain nightly-report 2026-11-20T02:30:00Z",
            "explain nightly-report 2026-11-20T02:30:00+01:00",
        ),
        arguments=_explain_arguments,
        run=explain,
    ),
    Subcommand(
        name="ledger",
        summary="list what became of the fire times of a recurring task, the newest first",
        examples=(
            "ledger nightly-report",
            "ledger nightly-report --outcome MISSED --limit 20 --format json",
        ),
        arguments=_ledger_arguments,
        run=ledger,
    ),
)
