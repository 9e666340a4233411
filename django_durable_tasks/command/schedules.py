"""Schedules and calendars: operations on them, the sync of declared schedules, and fire times.

The subcommands of fire times write nothing. Their schedule is described by options alone, without a
database, or it is a stored one before and after an edit.
"""

from __future__ import annotations

import copy
import dataclasses
import re
import uuid
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from django.db import connections
from django.db.migrations.executor import MigrationExecutor
from django.db.models import Count, FloatField, IntegerField

from django_durable_tasks import conf, ports
from django_durable_tasks.audit import acting
from django_durable_tasks.celery import inspect
from django_durable_tasks.choices import Action, AuditSource, FireOutcome, RecurringStatus
from django_durable_tasks.command.subcommand import (
    OK,
    REFUSED,
    UNHEALTHY,
    Options,
    Output,
    argument,
    cell,
    count,
    filtered,
    hidden,
    moment,
    one_of,
    perform,
    plain,
    refuse,
    subcommand,
    table,
    tenant_named,
    weekdays,
)
from django_durable_tasks.exceptions import DurableTasksError, InvalidCalendar, InvalidSchedule
from django_durable_tasks.models import DEFAULT_TENANT_ID, Calendar, RecurringTask
from django_durable_tasks.models.schedules import RecurringTaskQuerySet
from django_durable_tasks.schedules import business_days, lifecycle, manual_runs, writes
from django_durable_tasks.schedules import calendars as calendar_operations
from django_durable_tasks.schedules import sync as sync_schedules
from django_durable_tasks.schedules.agenda import Agenda, PlannedRun, agenda
from django_durable_tasks.schedules.manual_runs import BackfillReport
from django_durable_tasks.schedules.misfires import Choice, choose, effective
from django_durable_tasks.schedules.options import CHOICES, COLUMNS, KINDS, columns
from django_durable_tasks.schedules.schedule_cache import agenda_from, agenda_of, calendars_of
from django_durable_tasks.schedules.sync import NOTHING_DONE, SyncStep
from django_durable_tasks.schedules.timetables import types, zones
from django_durable_tasks.schedules.timetables.builder import timetable
from django_durable_tasks.schedules.trigger import policy_of
from django_durable_tasks.store.clock import database_now, host_now
from django_durable_tasks.store.tables import database

# Selecting a schedule -----------------------------------------------------------------------------


tenant_of_schedule = argument(
    "--tenant", help="of this tenant (its slug), where several have one of that name"
)
_name = argument("name", metavar="NAME", help="the name of the recurring task, or its id")
NAMED = (_name, tenant_of_schedule)
"""The arguments that name a schedule."""


def schedules() -> RecurringTaskQuerySet:
    """Return all recurring tasks."""
    queryset: RecurringTaskQuerySet = RecurringTask.objects.using(database())
    return queryset


def find_schedule(name: str, tenant: str | None) -> RecurringTask | None:
    """Return the recurring task with this name or id; None if it does not exist. Exits if several
    tenants have a schedule of this name.
    """
    queryset = schedules().select_related("tenant")
    try:
        queryset = queryset.filter(pk=uuid.UUID(name))
    except ValueError:
        queryset = queryset.filter(name=name)
    if tenant is not None:
        queryset = queryset.filter(tenant__slug=tenant)
    rows = list(queryset.order_by("pk")[:2])
    if len(rows) > 1:
        refuse(f"Several tenants have a recurring task {name!r}: add --tenant.")
    return rows[0] if rows else None


def schedule_named(name: str, tenant: str | None) -> RecurringTask:
    """Return the recurring task with this name or id; exits if it does not exist."""
    return find_schedule(name, tenant) or refuse(
        f"There is no recurring task {name!r}; `durable list recurring` shows them."
    )


def named(options: Options) -> RecurringTask:
    """Return the schedule that the arguments name; exits if it does not exist."""
    return schedule_named(options["name"], options["tenant"])


# Operations on one schedule -----------------------------------------------------------------------


@subcommand(*NAMED, operations=(manual_runs.trigger_now,))
def run_now(options: Options, out: Output) -> int:
    """Run a schedule once now, in addition to its timetable.

    Examples:
        run-now nightly-report
        run-now nightly-report --request-id deploy-17 --format json
    """
    row = named(options)
    task = perform(manual_runs.trigger_now, row, options).value
    waits = ", waiting until earlier runs with its overlap key have ended"
    return out.report(
        f"{row.name} runs as task {task.pk} ({task.status}{waits if task.is_waiting else ''})",
        name=row.name,
        task=task.pk,
        status=task.status,
        held=task.is_waiting,
    )


@subcommand(*NAMED, operations=(lifecycle.snooze,))
def snooze(options: Options, out: Output) -> int:
    """Skip the fire times up to an instant.

    Examples:
        snooze nightly-report 2026-12-27T00:00:00Z
    """
    row = named(options)
    outcome = perform(lifecycle.snooze, row, options)
    return out.report(f"{row.name}: {outcome.message}", name=row.name, until=row.paused_until)


@subcommand(
    *NAMED,
    argument(
        "fire_time", metavar="AT", type=moment, help="The fire time, ISO 8601 with its UTC offset."
    ),
    one_of(
        argument(
            "--skip", action="store_const", const=Action.SKIP, dest="action", help="Do not run it."
        ),
        argument(
            "--move", metavar="INSTANT", type=moment, dest="move_to", help="Run it at this time."
        ),
        argument(
            "--add",
            action="store_const",
            const=Action.ADD,
            dest="action",
            help="Run at this time, too.",
        ),
        argument("--remove", action="store_true", help="Remove the override."),
        required=True,
    ),
    operations=(lifecycle.override, lifecycle.withdraw_override),
)
def override(options: Options, out: Output) -> int:
    """Override one fire time, or remove the override.

    Examples:
        override nightly-report 2026-12-25T02:30:00Z --skip --reason Christmas
        override nightly-report 2026-12-24T02:30:00Z --move 2026-12-23T22:00:00Z
        override nightly-report 2026-12-31T12:00:00Z --add
        override nightly-report 2026-12-25T02:30:00Z --remove
    """
    row, when = named(options), options["fire_time"]
    data = {"name": row.name, "fire_time": when}
    if options["remove"]:
        outcome = perform(lifecycle.withdraw_override, row, options)
        removed, text = bool(outcome.changed), f"{row.name}: {outcome.message}"
        return out.report(text, OK if removed else REFUSED, **data, removed=removed)
    options = {**options, "action": options["action"] or Action.MOVE}
    made = perform(lifecycle.override, row, options).value
    where = f" to {plain(made.move_to)}" if made.move_to else ""
    data |= {"action": made.action, "move_to": made.move_to, "next_run_at": row.next_run_at}
    text = f"{row.name}: {made.action} {plain(when)}{where}. Next run: {plain(row.next_run_at)}"
    return out.report(text, **data)


_BACKFILLED = ("fire_time", "action", "why", "task_id")


@subcommand(*NAMED, operations=(manual_runs.backfill,))
def backfill(options: Options, out: Output) -> int:
    """Run the fire times of a range that have no run.

    Examples:
        backfill nightly-report 2026-11-01T00:00:00Z 2026-11-20T00:00:00Z --dry-run
        backfill nightly-report 2026-11-01T00:00:00Z 2026-11-20T00:00:00Z --reprocess FAILED
            --concurrency 4
    """
    row = named(options)
    report: BackfillReport = perform(
        manual_runs.backfill, row, options, dry_run=options["dry_run"]
    ).value
    counts = {"created": report.created, "replayed": report.replayed, "left": report.left}
    steps = [{name: getattr(step, name) for name in _BACKFILLED} for step in report.steps]
    data = {"name": row.name, "dry_run": report.dry_run, **counts, "steps": steps}
    text = ", ".join(f"{number} {word}" for word, number in counts.items())
    lines = [f"{'would be: ' if report.dry_run else ''}{text}"]
    lines += [table(_BACKFILLED, steps)] if steps else []
    lines += [report.remark] if report.remark else []
    return out.report("\n".join(lines), **data, remark=report.remark)


@subcommand(*NAMED, operations=(lifecycle.cancel,))
def end_schedule(options: Options, out: Output) -> int:
    """End a schedule permanently.

    Examples:
        end-schedule nightly-report --reason 'replaced by hourly-report'
    """
    row = named(options)
    outcome = perform(lifecycle.cancel, row, options)
    return out.report(f"{row.name}: {outcome.message}", name=row.name, status=row.status)


# Calendars ----------------------------------------------------------------------------------------


CALENDAR_SOURCES = (
    "weekdays, holidays:DE-BY (a country, or an exchange as XNYS), or the path of an .ics file"
)
_HOLIDAYS = re.compile(r"holidays:([A-Za-z0-9]+)(?:-([A-Za-z0-9]+))?")


def _days(source: str, years: range) -> business_days.BusinessDays:
    if source == "weekdays":
        return business_days.BusinessDays(name=source)
    if holidays := _HOLIDAYS.fullmatch(source):
        special = business_days.from_holidays(holidays[1].upper(), holidays[2], years)
        return business_days.BusinessDays(name=source, special=special)
    if not source.lower().endswith(".ics"):
        refuse(f"--calendar {source!r}: give {CALENDAR_SOURCES}.")
    path = Path(source)
    try:
        with path.open(encoding="utf-8", newline="") as file:
            text = file.read(business_days.MOST_CHARACTERS + 1)
    except (OSError, UnicodeDecodeError) as error:
        refuse(f"--calendar {path}: it cannot be read: {error}.")
    return business_days.BusinessDays(name=path.stem, special=business_days.from_ics(text, years))


_CALENDAR = ("name", "working_days", "dates", "origin", "updated_at", "description")
# Years of which an import reads the holidays, if --years does not say.
_YEARS = 3


@subcommand(
    argument(
        "act",
        choices=("list", "import", "delete"),
        nargs="?",
        default="list",
        help="What to do. Default: list.",
    ),
    argument("source", nargs="?", help=f"For import: {CALENDAR_SOURCES}."),
    argument("--name", help="For import and delete: the name of the calendar."),
    argument("--year", type=int, help="For import: the first year. Default: this year."),
    argument(
        "--years",
        type=int,
        default=_YEARS,
        help=f"For import: the number of years. Default: {_YEARS}.",
    ),
    argument(
        "--working-days",
        metavar="1,2,3,4,5",
        type=weekdays,
        help="For import: ISO weekdays, 1 is Monday. Default: unchanged.",
    ),
    argument("--tenant", help="The slug of the tenant."),
    operations=(calendar_operations.upsert, calendar_operations.delete),
)
def calendars(options: Options, out: Output) -> int:
    """List calendars, import one, or delete one.

    Examples:
        calendars
        calendars import holidays:DE-BY --name office --year 2026 --years 3
        calendars import company.ics --name office --working-days 1,2,3,4,5,6
        calendars delete --name office
    """
    act, name = options["act"], options["name"]
    queryset = Calendar.objects.using(database())
    if act == "list":
        queryset = filtered(queryset, options, {"tenant": "tenant__slug"})
        queryset = queryset.annotate(dates=Count("days")).order_by("name", "pk")
        rows = list(queryset.values("id", *_CALENDAR))
        return out.emit(rows, table(_CALENDAR, rows))
    if act == "import":
        source = options["source"] or refuse(f"import needs a source: {CALENDAR_SOURCES}.")
        name = options["name"] or refuse("import needs --name.")
        first = options["year"] or database_now().year
        special = _days(source, range(first, first + options["years"])).special
        outcome = perform(
            calendar_operations.upsert,
            name,
            options,
            days=special,
            working_days=options["working_days"],
            origin=source,
            tenant=tenant_named(options["tenant"]) if options["tenant"] else None,
        )
        years = f"{first} to {first + options['years'] - 1}"
        return out.report(
            f"{name} has {len(special)} dates of {years}. Import it again before they run out.",
            act="import",
            name=name,
            dates=len(special),
            revision=outcome.value.revision,
        )
    if not name:
        refuse("delete needs --name.")
    tenant = tenant_named(options["tenant"]) if options["tenant"] else DEFAULT_TENANT_ID
    row = queryset.filter(name=name, tenant=tenant).first()
    text, deleted = f"There is no calendar {name}.", False
    if row is not None:
        outcome = perform(calendar_operations.delete, row, options)
        text, deleted = outcome.message, bool(outcome.changed)
    code = OK if deleted else REFUSED
    return out.report(text, code, act="delete", name=name, deleted=deleted)


# ``durable sync``, and the sync of declared schedules after ``migrate`` ---------------------------


_APP = "django_durable_tasks"
_SYNC = ("name", "act", "source", "what")


class TasksNotLoaded(DurableTasksError):
    """The task modules cannot be imported, so their declared schedules are unknown."""


def load_declarations() -> None:
    """Import the task modules. Raises TasksNotLoaded if that fails, because schedules that were not
    imported would appear to be undeclared.
    """
    problem = inspect.load_tasks()
    if problem is not None:
        raise TasksNotLoaded(
            f"The modules of tasks cannot be imported, so nothing is compared: {problem}"
        )


@subcommand(
    argument(
        "--check", action="store_true", help="Change nothing and exit with 1 if something differs."
    ),
    operations=(sync_schedules.apply,),
)
def sync(options: Options, out: Output) -> int:
    """Change stored schedules to what code and settings declare, or show the differences.

    Examples:
        sync --dry-run
        sync
        sync --check
        sync --prune
        sync --adopt --format json
    """
    load_declarations()
    only_shown = options["dry_run"] or options["check"]
    steps = perform(sync_schedules.apply, None, options, dry_run=only_shown).value
    rows = [{**dataclasses.asdict(step), "what": _what(step)} for step in steps]
    done = [not only_shown and step.act not in NOTHING_DONE for step in steps]
    data = [
        {**dataclasses.asdict(step), "changes": hidden(dict(step.changes)), "done": is_done}
        for step, is_done in zip(steps, done, strict=True)
    ]
    cut = [f"\n{row['name']}\n  {row['what']}" for row in rows if cell(row["what"]).endswith("...")]
    out.emit(data, "\n".join([table(_SYNC, rows, "every schedule is as it is declared"), *cut]))
    if any(step.act in NOTHING_DONE for step in steps):
        return REFUSED
    return UNHEALTHY if options["check"] and steps else OK


def _what(step: SyncStep) -> str:
    remarks = [
        f"{column}: {old!r} -> {new!r}" for column, (old, new) in hidden(dict(step.changes)).items()
    ]
    remarks += [f"{', '.join(step.edited)}: an operator's own value stays"] if step.edited else []
    return "; ".join([*([step.reason] if step.reason else []), *remarks])


def after_migrate(*, using: str, verbosity: int = 1, stdout: Any = None, **_: Any) -> None:
    """Receiver of ``post_migrate``: sync if SYNC_SCHEDULES_ON_MIGRATE is set and all migrations of
    this package are applied. They are not after a migration back to an older release.
    """
    settings = conf.settings()
    if not settings.SYNC_SCHEDULES_ON_MIGRATE or using != settings.DATABASE:
        return
    executor = MigrationExecutor(connections[using])
    newest = [node for node in executor.loader.graph.leaf_nodes() if node[0] == _APP]
    if executor.migration_plan(newest):
        return
    load_declarations()
    with acting(AuditSource.SYNC, "migrate"):
        steps = sync_schedules.apply(by="migrate")
    for step in steps:
        if verbosity and stdout is not None:
            stdout.write(f"  Recurring task {step.name}: {step.act} {_what(step)}".rstrip() + "\n")


# A schedule on the command line ------------------------------------------------------------------


class ScheduleDraft(NamedTuple):
    """An unsaved or stored RecurringTask with the timetable that its fields describe."""

    row: RecurringTask
    agenda: Agenda


_DRAFT = "preview"
# Seconds of the units of --every.
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_INTERVAL = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")
_PERIOD = re.compile(r"(?:(\d+) )?(day|week|month|quarter|year)s?")
# Years of which the holidays of --calendar are read: more than a preview shows.
_YEARS_AHEAD = 12
# Intervals and recurrences of a preview of the past are counted from here.
_LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
_TIMETABLE = (
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
)
# The help of options that are columns of RecurringTask; type, choices and default are those of the
# column.
_CLOCK = {
    "timezone": "of the wall clock (default: that of new schedules)",
    "dst_gap": "a time that the clock jumps over",
    "dst_overlap": "a time that comes twice",
    "roll": "what becomes of fires on closed days",
}
_CATCH_UP = {
    "catch_up_mode": "what becomes of missed fires",
    "misfire_grace": "late, but not missed",
    "catchup_window": "what is older is not caught up",
    "max_catchup_runs": "run at most the N newest missed fire times",
    "catchup_order": "which runs first",
    "catchup_pace": "between two runs that are caught up",
    "expires_in": "after its fire time a run is too late",
}


def _columns_of(group: Any, texts: Mapping[str, str]) -> None:
    """Declare options of schedules that are columns."""
    for option, text in texts.items():
        column: Any = RecurringTask._meta.get_field(COLUMNS.get(option, option))
        described: dict[str, Any] = {"choices": CHOICES.get(option) and [*CHOICES[option]]}
        if isinstance(column, FloatField):
            described |= {"type": float, "metavar": "SECONDS"}
        elif isinstance(column, IntegerField):
            described |= {"type": int, "metavar": "N"}
        if column.has_default() and "default:" not in text:
            default = column.default
            text += f" (default: {f'{default:g}' if isinstance(default, float) else default})"
        group.add_argument(f"--{option.replace('_', '-')}", help=text, **described)


def _schedule(parser: ArgumentParser) -> None:
    """Declare a stored schedule, and the options that describe a schedule or an edit."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="a recurring task, by its name")
    parser.add_argument("--tenant", help="of this tenant (its slug)")
    group = parser.add_argument_group("schedule", "several may be given; they are combined by OR")
    add = group.add_argument
    add("--cron", action="append", metavar="EXPR", help="five fields, or @daily and the like")
    seconds = "--cron has six fields; where the seconds stand"
    add("--seconds", choices=("FIRST", "LAST"), help=seconds)
    add("--rrule", action="append", metavar="TEXT", help="a recurrence of RFC 5545")
    every = "90, 15m, 2h, 1d of elapsed time; or day, week, '2 months', year"
    add("--every", metavar="SPAN", help=every)
    day = "of --every month: 15, -1, 'last working', '2nd tuesday'"
    add("--day", type=lambda text: int(text) if re.fullmatch(r"[+-]?\d+", text) else text, help=day)
    add("--month", type=int, help="of --every year or quarter: the month in it, from 1")
    add("--time", metavar="HH:MM", help="of --every day, week, month, quarter, year")
    add("--solar", metavar="EVENT", help="sunrise, sunset, dusk_civil, ...")
    add("--latitude", type=float, help="of --solar, degrees north")
    add("--longitude", type=float, help="of --solar, degrees east")
    add("--offset", type=float, help="of --solar, seconds after the event")
    add("--at", action="append", metavar="INSTANT", help="a single instant, ISO 8601")
    _columns_of(group, _CLOCK)
    add("--calendar", action="append", metavar="SOURCE", help=CALENDAR_SOURCES)
    jitter = "seconds, or percent of the way to the next fire"
    add("--jitter", metavar="SPREAD", help=jitter)


def _keywords(options: Options) -> dict[str, Any]:
    """Return the options of the schedule as keyword arguments of ``upsert``; exits if a duration
    cannot be parsed.
    """
    names = (*_TIMETABLE, *_CLOCK, "jitter", *_CATCH_UP)
    keywords = {name: options[name] for name in names if options.get(name) is not None}
    every = options["every"]
    if every is None:
        return keywords
    if interval := _INTERVAL.fullmatch(every):
        return {**keywords, "interval": float(interval[1]) * _UNITS[interval[2]]}
    if period := _PERIOD.fullmatch(every):
        return {**keywords, "every": period[2], "count": int(period[1] or 1)}
    return refuse(
        f"--every {every!r}: give 90, 15m, 2h or 1d for elapsed time, or day, week, '2 months',"
        " quarter, year."
    )


def _calendar(options: Options, start: datetime) -> business_days.BusinessDays | None:
    """Return the dates on which all calendars of --calendar are open, from the year before
    ``start``; None if no calendar is named. Uses no database. Outside of the years of which
    holidays and files are read, only the weekend is closed.
    """
    years = range(start.year - 1, start.year + _YEARS_AHEAD)
    calendars = [_days(source, years) for source in options["calendar"] or ()]
    return business_days.combined(calendars) if calendars else None


def _draft(
    options: Options, start: datetime, end: datetime | None = None, *, backwards: bool = False
) -> ScheduleDraft:
    """Return the schedule that the options alone describe; does not use the database.

    Intervals and recurrence rules are counted from ``--anchor``. Without it they are counted from
    ``start``, or with ``backwards`` from the year 2000.
    """
    keywords = _keywords(options)
    if not set(KINDS) & keywords.keys():
        refuse(
            "Give the name of a recurring task, or one of --cron, --rrule, --every, --solar, --at."
        )
    anchor = options["anchor"] or (_LONG_AGO if backwards else start)
    values = {"time_zone": ports.schedule_zone(), **columns(_DRAFT, keywords)}
    row = RecurringTask(name=_DRAFT, start_time=anchor, end_time=end, **values)
    days = _calendar(options, start)
    times = timetable(
        row.timetable,
        zone=row.time_zone,
        anchor=anchor,
        dst_gap=row.dst_gap,
        dst_overlap=row.dst_overlap,
        seed=_DRAFT,
        days=days,
    )
    return ScheduleDraft(
        row,
        agenda(
            times,
            zone=row.time_zone,
            days=days,
            roll=business_days.Roll(row.roll),
            end=row.end_time,
        ),
    )


def _stored(options: Options, start: datetime) -> tuple[ScheduleDraft, ScheduleDraft | None]:
    """Return the stored schedule, and the same as the options would change it; None if they change
    nothing. Exits if the name is unknown or used by several tenants.
    """
    row = schedule_named(options["name"], options["tenant"])
    stored, keywords = ScheduleDraft(row, agenda_of(row)), _keywords(options)
    days = _calendar(options, start)
    if not keywords and days is None:
        return stored, None
    edited = copy.copy(row)
    if set(KINDS) & keywords.keys():
        keywords = {"timezone": row.time_zone, **keywords}
    for column, value in columns(row.name, keywords).items():
        setattr(edited, column, value)
    return stored, ScheduleDraft(
        edited, agenda_of(edited) if days is None else agenda_from(edited, days)
    )


# Fires as they are printed -----------------------------------------------------------------------


_FIRE = ("nominal", "effective", "local", "dst")
_BADGES = {"DST gap": "GAP", "DST overlap": "TWICE"}


def _fire(draft: ScheduleDraft, run: PlannedRun) -> dict[str, Any]:
    """Return a fire: nominal and effective in UTC, local time with its offset, remarks. The jitter
    of a schedule that is not stored yet is an example.
    """
    row, at = draft.row, run.at
    if row.jitter or row.jitter_percent:
        following = draft.agenda.next(run.at)
        seed = row.name if row._state.adding else str(row.pk)
        after = None if following is None else following.at
        at = effective(run, after, seed, row.jitter, row.jitter_percent)
    local = at.astimezone(zones.zone(row.time_zone)).isoformat()
    return {"nominal": run.nominal, "effective": at, "local": local, "remarks": list(run.remarks)}


def _badge(remarks: Sequence[str]) -> str:
    """Return GAP or TWICE for a fire that a clock change affects."""
    badges = [
        badge
        for remark in remarks
        for beginning, badge in _BADGES.items()
        if remark.startswith(beginning)
    ]
    return " ".join(dict.fromkeys(badges))


def _listed(columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> str:
    """Return the fires as a table, with their remarks in full below it."""
    rows = [{**row, "dst": _badge(row["remarks"])} for row in rows]
    remarks = [f"  {plain(row['nominal'])}  {remark}" for row in rows for remark in row["remarks"]]
    lines = [table(columns, rows, "no fire"), *(["", "remarks:", *remarks] if remarks else [])]
    return "\n".join(lines)


# preview ------------------------------------------------------------------------------------------


# Fires that are shown without --count; and at most, so that the output ends.
_FEW, _MOST = 10, 10_000


@subcommand(
    _schedule,
    argument("--start", type=moment, help="the first instant, included (default: now)"),
    argument("--end", type=moment, help="the last instant, included"),
    argument(
        "--count", type=count, help=f"how many fires at most (default: {_FEW}, with --end {_MOST})"
    ),
    argument("--previous", action="store_true", help="the fires before --start, the latest first"),
    argument(
        "--anchor",
        type=moment,
        help=(
            "where elapsed time and recurrences are counted from "
            "(default: --start; with --previous: the year 2000)"
        ),
    ),
)
def preview(options: Options, out: Output) -> int:
    """Show the next fires of a schedule, described or stored, and what an edit would change; writes
    nothing.

    Examples:
        preview --cron "30 2 * * *" --timezone America/New_York --start 2026-03-07T00:00:00Z
            --count 5 --format json
        preview --cron "0 9 * * *" --timezone Europe/Berlin --calendar holidays:DE-BY
            --roll FOLLOWING
        preview --rrule "FREQ=MONTHLY;BYDAY=-1FR" --start 2026-01-01T09:00:00Z
            --end 2026-12-31T00:00:00Z
        preview --every month --day "last working" --time 18:00 --calendar office.ics
        preview --every 15m --jitter 10% --start 2026-01-01T00:00:00Z
        preview --solar sunset --latitude 51.5 --longitude=-0.1 --offset=-600
        preview --cron "0 12 * * MON" --previous --count 3
        preview nightly-report
        preview nightly-report --cron "15 3 * * *"
    """
    start, end, backwards = options["start"] or host_now(), options["end"], options["previous"]
    if end is not None and end < start and not backwards:
        refuse(f"--end {plain(end)} is before --start {plain(start)}.")
    most = min(options["count"] or (_FEW if end is None else _MOST), _MOST)

    def fires(draft: ScheduleDraft) -> list[dict[str, Any]]:
        runs = (
            types.walk(draft.agenda, start, way=types.Direction.BACK)
            if backwards
            else types.walk(draft.agenda, start - types.TICK, end)
        )
        return [_fire(draft, run) for run in islice(runs, most)]

    if options["name"] is None:
        before, after = _draft(options, start, end, backwards=backwards), None
    else:
        if options["anchor"] is not None:
            refuse("--anchor goes with a description; a stored schedule has its start_time.")
        before, after = _stored(options, start)
        row = before.row
        if row.status != RecurringStatus.ACTIVE:
            note = f"{row.name} is {row.status}: it does not fire. {row.status_reason}"
            out.note(note.rstrip())
    rows = fires(before)
    if after is not None:
        edited = fires(after)
        old, new = ({fire["effective"] for fire in of_one} for of_one in (rows, edited))
        compared = [
            {**fire, "change": "same" if fire["effective"] in old else "new"} for fire in edited
        ]
        compared += [{**fire, "change": "gone"} for fire in rows if fire["effective"] not in new]
        compared.sort(key=lambda fire: fire["effective"], reverse=backwards)
        data = {"before": rows, "after": edited}
        return out.emit(data, _listed(("change", *_FIRE), compared))
    out.emit(rows, _listed(_FIRE, rows))
    if rows and not backwards:
        for stretch in before.agenda.closed(start - types.TICK, rows[-1]["nominal"]):
            number = f"{'' if stretch.exact else 'at least '}{stretch.count}"
            span = f"from {plain(stretch.first)} to {plain(stretch.last)}"
            out.note(f"left out: {number} {span}: {stretch.reason}")
    return OK


# simulate -----------------------------------------------------------------------------------------


# Rounds of the trigger; each takes the fires of one tick.
_TICKS = 20
_RUNS = ("nominal", "effective", "starts", "caught_up")
_LEFT_OUT = ("outcome", "count", "first", "last", "reason")


@subcommand(
    argument(
        "--outage",
        nargs=2,
        type=moment,
        metavar=("FROM", "TO"),
        required=True,
        help="when no scheduler ran, and when one runs again",
    ),
    argument("--anchor", type=moment, help="where elapsed time is counted from (default: FROM)"),
    _schedule,
    lambda parser: _columns_of(
        parser.add_argument_group("catch-up", "options of the schedule; durations in seconds"),
        _CATCH_UP,
    ),
)
def simulate(options: Options, out: Output) -> int:
    """Show which fires an outage would miss and what catch-up would do, before and after an edit;
    writes nothing.

    Examples:
        simulate nightly-report --outage 2026-03-07T00:00:00Z 2026-03-10T12:00:00Z
        simulate nightly-report --outage 2026-03-07T00:00:00Z 2026-03-10T12:00:00Z
            --catch-up-mode RUN_ALL_MISSED
        simulate --cron "0 * * * *" --outage 2026-03-07T00:00:00Z 2026-03-07T06:10:00Z
            --catch-up-mode SKIP_MISSED
    """
    start, end = options["outage"]
    if end < start:
        refuse(f"--outage: its end {plain(end)} is before its begin {plain(start)}.")
    if options["name"] is None:
        drafts = {"schedule": _draft(options, start)}
    else:
        before, after = _stored(options, start)
        drafts = {"schedule": before} if after is None else {"before": before, "after": after}
    results, texts = dict[str, Any](), list[str]()
    for title, draft in drafts.items():
        row, result = draft.row, _simulated(draft, start, end)
        due, following = result["due"], result["next"]
        options_text = f"{row.catch_up_mode}, grace {row.misfire_grace:g} s, overlap {row.overlap}"
        lines = [
            f"{title}: {row.name}, {options_text}",
            f"due in the outage: {'' if due['exact'] else 'at least '}{due['count']}",
            "",
            f"runs at its end: {len(result['runs'])}",
            table(_RUNS, result["runs"], "none"),
            "",
            "left out:",
            table(_LEFT_OUT, result["left_out"]),
            "",
            f"next: {'never again' if following is None else plain(following['effective'])}",
        ]
        if not result["complete"]:
            lines.append(
                f"More follows: the trigger takes more than {_TICKS} rounds for all of it."
            )
        results[title] = result
        texts.append("\n".join(lines))
    return out.emit({"outage": {"from": start, "to": end}, **results}, "\n\n".join(texts))


def _simulated(draft: ScheduleDraft, start: datetime, now: datetime) -> dict[str, Any]:
    """Return what the trigger would do with the fires since ``start``, if it runs again ``now``."""
    row, watermark, choices = draft.row, start - types.TICK, list[Choice]()
    for _round in range(_TICKS):
        choices.append(choose(draft.agenda, watermark, now, policy_of(row)))
        watermark = choices[-1].through
        if watermark >= now:
            break
    runs, late = [], list[datetime]()
    for chosen in (chosen for choice in choices for chosen in choice.runs):
        expires_in = None if row.expires_in is None else timedelta(seconds=row.expires_in)
        if expires_in is not None and chosen.planned.at + expires_in <= now:
            late.append(chosen.planned.nominal)
            continue
        fire = _fire(draft, chosen.planned)
        starts = max(fire["effective"], now + timedelta(seconds=chosen.delay))
        runs.append({**fire, "starts": starts, "caught_up": chosen.caught_up})
    remaining = None if row.max_runs is None else max(0, row.max_runs - row.runs_count)
    left_out = [
        {**plain(stretch), "outcome": stretch.outcome}
        for stretch in draft.agenda.closed(start - types.TICK, watermark)
    ]
    left_out += [
        {**plain(stretch), "outcome": str(FireOutcome.MISSED)}
        for choice in choices
        for stretch in choice.missed
    ]
    if late:
        expired = {"first": min(late), "last": max(late), "count": len(late), "exact": True}
        reason = f"expires_in {row.expires_in:g} s"
        left_out.append({**expired, "reason": reason, "outcome": str(FireOutcome.EXPIRED)})
    missed, following = draft.agenda.count(start - types.TICK, now), choices[-1].following
    return {
        "due": {"count": missed.number, "exact": missed.exact},
        "runs": runs[:remaining],
        "left_out": left_out,
        "next": None if following is None else _fire(draft, following),
        "complete": watermark >= now,
    }


# dst-report, tzdata -------------------------------------------------------------------------------


# Fires that are shown of one schedule at one change.
_FIRES_OF_CHANGE = 20
_DST = ("name", "zone", "change", "local", "dst", "runs")
_MOVED = ("name", "zone", "stored", "by", "found")


@subcommand(
    argument("--weeks", type=count, default=8, help="how far to look (default: 8)"),
    argument("--start", type=moment, help="from when on (default: now)"),
)
def dst_report(options: Options, out: Output) -> int:
    """Show the fires of the next weeks that a change of clocks moves, drops or repeats.

    Examples:
        dst-report
        dst-report --weeks 52
        dst-report --start 2026-03-01T00:00:00Z --weeks 5 --format json
    """
    start = options["start"] or host_now()
    end = start + timedelta(weeks=options["weeks"])
    names = _of_wall_clocks().order_by("time_zone").values_list("time_zone", flat=True).distinct()
    changes = {
        name: zone_changes
        for name in names
        if (zone_changes := list(zones.clock_changes(name, start, end)))
    }
    batch_size = conf.settings().BATCH_SIZE
    queryset = _of_wall_clocks().filter(time_zone__in=changes).order_by("pk")
    iterator, rows = queryset.iterator(batch_size), list[dict[str, Any]]()
    while batch := list(islice(iterator, batch_size)):
        calendars = calendars_of(batch)
        for row in batch:
            running_all = copy.copy(row)
            running_all.dst_gap = types.DstGap.RUN_AFTER
            running_all.dst_overlap = types.DstOverlap.BOTH
            try:
                every, real = agenda_of(running_all, calendars), agenda_of(row, calendars)
            except (InvalidSchedule, InvalidCalendar) as error:
                out.note(f"{row.name} cannot be computed: {error}")
                continue
            for change in changes[row.time_zone]:
                margin = abs(change.shift)
                runs = types.walk(every, change.at - margin - types.TICK, change.at + margin)
                shift = f"{plain(change.at)} {change.shift.total_seconds() / 60:+g} min"
                moved = (run for run in runs if _badge(run.remarks))
                rows += [
                    {
                        "name": row.name,
                        "zone": row.time_zone,
                        "change": shift,
                        "nominal": run.nominal,
                        "local": run.nominal.astimezone(zones.zone(row.time_zone)).isoformat(),
                        "dst": _badge(run.remarks),
                        "runs": real.at_nominal(run.nominal) is not None,
                        "remark": next(remark for remark in run.remarks if _badge([remark])),
                    }
                    for run in islice(moved, _FIRES_OF_CHANGE)
                ]
    remarks = [f"  {row['name']}: {row['remark']}" for row in rows]
    lines = [table(_DST, rows, "no schedule is touched"), *(["", *remarks] if remarks else [])]
    return out.emit(rows, "\n".join(lines))


def _of_wall_clocks() -> RecurringTaskQuerySet:
    """Return the active schedules that follow a clock, not only elapsed time."""
    return schedules().active().filter(interval_seconds__isnull=True)


@subcommand(
    argument(
        "--limit",
        type=count,
        default=10_000,
        help="how many schedules are compared (default: 10000)",
    )
)
def tzdata(options: Options, out: Output) -> int:
    """Show the schedules whose stored next fire moves by the zone tables of this process.

    Examples:
        tzdata
        tzdata --format json
    """
    rows = [
        {
            "name": moved.row.name,
            "zone": moved.row.time_zone,
            "stored": moved.stored,
            "by": moved.row.tzdata_version,
            "found": moved.found,
        }
        for moved in writes.moved_fire_times(options["limit"])
    ]
    text = f"tzdata {zones.tzdata_version()}\n" + table(_MOVED, rows, "no stored fire moves")
    return out.emit({"tzdata": zones.tzdata_version(), "moved": rows}, text)


# explain ------------------------------------------------------------------------------------------


@subcommand(
    *NAMED, argument("at", metavar="AT", type=moment, help="any instant, ISO 8601 with its offset")
)
def explain(options: Options, out: Output) -> int:
    """Explain why a schedule did or did not run at an instant, or what it will do.

    Examples:
        explain nightly-report 2026-11-20T02:30:00Z
        explain nightly-report 2026-11-20T02:30:00+01:00
    """
    row = named(options)
    account = hidden(row.explain(options["at"]))
    return out.emit({"name": row.name, "at": options["at"], "account": account}, account)
