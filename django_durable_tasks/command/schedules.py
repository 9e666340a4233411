"""Operations on schedules and calendars, and the sync of declared schedules."""

from __future__ import annotations

import dataclasses
import re
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from django.db import connections
from django.db.migrations.executor import MigrationExecutor
from django.db.models import Count

from django_durable_tasks import conf
from django_durable_tasks.audit import acting
from django_durable_tasks.celery import inspect
from django_durable_tasks.choices import Action, AuditSource
from django_durable_tasks.command.subcommand import (
    OK,
    REFUSED,
    UNHEALTHY,
    Options,
    Output,
    argument,
    cell,
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
from django_durable_tasks.exceptions import DurableTasksError
from django_durable_tasks.models import DEFAULT_TENANT_ID, Calendar, RecurringTask
from django_durable_tasks.models.schedules import RecurringTaskQuerySet
from django_durable_tasks.schedules import business_days, lifecycle, manual_runs
from django_durable_tasks.schedules import calendars as calendar_operations
from django_durable_tasks.schedules import sync as sync_schedules
from django_durable_tasks.schedules.manual_runs import BackfillReport
from django_durable_tasks.schedules.sync import NOTHING_DONE, SyncStep
from django_durable_tasks.store.clock import database_now
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


def days_of(sources: Sequence[str], years: range) -> business_days.BusinessDays | None:
    """Return the dates on which all these calendars are open; None if no calendar is named. Uses no
    database. Holidays and files are read for these years; outside them only the weekend is closed.
    """
    return business_days.combined([_days(source, years) for source in sources]) if sources else None


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
