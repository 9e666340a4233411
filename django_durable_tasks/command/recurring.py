"""Schedules and calendars on the command line: operations, sync and output."""

from __future__ import annotations

import dataclasses
import re
import uuid
from argparse import ArgumentParser, ArgumentTypeError
from typing import Any

from django.db import connections
from django.db.migrations.executor import MigrationExecutor
from django.db.models import Count

from django_durable_tasks import conf
from django_durable_tasks.audit import acting
from django_durable_tasks.celery import inspect
from django_durable_tasks.choices import Action, AuditSource
from django_durable_tasks.command.arguments import WAYS, add_operations, days_of, moment, values
from django_durable_tasks.command.subcommand import (
    OK,
    REFUSED,
    UNHEALTHY,
    Options,
    Output,
    Subcommand,
    by_and_reason,
    cell,
    clean,
    hidden,
    plain,
    refuse,
    table,
)
from django_durable_tasks.exceptions import DurableTasksError
from django_durable_tasks.models import (
    DEFAULT_TENANT_ID,
    Calendar,
    OccurrenceOverride,
    OccurrenceRecord,
    RecurringTask,
    Tenant,
)
from django_durable_tasks.models.schedules import OccurrenceQuerySet, RecurringTaskQuerySet
from django_durable_tasks.operations.operation import Operation, OperationResult
from django_durable_tasks.schedules import calendars, explain, lifecycle, manual_runs
from django_durable_tasks.schedules import sync as recurring_sync
from django_durable_tasks.schedules import sync as sync_schedules
from django_durable_tasks.schedules.misfires import BackfillReport
from django_durable_tasks.schedules.sync import NOTHING_DONE, SyncStep
from django_durable_tasks.schedules.timetables.builder import words
from django_durable_tasks.store.clock import database_now

LEDGER_COLUMNS = (
    "fire_time",
    "last_fire_time",
    "count",
    "outcome",
    "reason",
    "task_id",
    "blocked_by",
    "effective_at",
    "count_is_exact",
    "request_id",
    "term",
    "created_at",
)
LEDGER_SHOWN = ("fire_time", "last_fire_time", "count", "outcome", "task_id", "reason")
FIRE_SHOWN = ("nominal", "effective", "remarks")
_ROW = (
    "name",
    "status",
    "task",
    "queue",
    "timetable",
    "time_zone",
    "next_run_at",
    "last_run_at",
    "runs_count",
    "max_runs",
    "overlap",
    "catch_up_mode",
    "status_reason",
    "source",
)
ROW_SHOWN = (
    "name",
    "status",
    "task",
    "schedule",
    "time_zone",
    "next_run_at",
    "last_run_at",
    "runs_count",
    "status_reason",
)
_FACTS = (
    "id",
    "name",
    "description",
    "status",
    "status_reason",
    "status_by",
    "paused_at",
    "paused_until",
    "error",
    "task",
    "args",
    "kwargs",
    "queue",
    "priority",
    "options",
    "schedule",
    "timetable",
    "time_zone",
    "dst_gap",
    "dst_overlap",
    "calendars",
    "roll",
    "jitter",
    "jitter_percent",
    "start_time",
    "end_time",
    "max_runs",
    "runs_count",
    "expires_in",
    "catch_up_mode",
    "misfire_grace",
    "catchup_window",
    "max_catchup_runs",
    "catchup_order",
    "catchup_pace",
    "overlap",
    "overlap_key",
    "next_run_at",
    "watermark_at",
    "last_run_at",
    "ledger_from",
    "tzdata_version",
    "revision",
    "source",
    "undeclared_at",
    "created_at",
    "updated_at",
)
_OVERRIDE = ("fire_time", "action", "move_to", "reason", "by")
_FEW = 5
_SOME = 10


def rows() -> RecurringTaskQuerySet:
    """Return all recurring tasks."""
    found: RecurringTaskQuerySet = RecurringTask.objects.using(conf.settings().DATABASE)
    return found


def add_name(parser: ArgumentParser) -> None:
    """Declare the name of a recurring task, and its tenant."""
    parser.add_argument("name", metavar="NAME", help="the name of the recurring task, or its id")
    add_tenant(parser)


def add_tenant(parser: ArgumentParser) -> None:
    """Declare the tenant, for names that several tenants use."""
    parser.add_argument(
        "--tenant", help="of this tenant (its slug), where several have one of that name"
    )


def found(name: str, tenant: str | None) -> RecurringTask | None:
    """Return the recurring task with this name or id; None if it does not exist. Exits if several
    tenants have a schedule of this name.
    """
    question = rows().select_related("tenant")
    try:
        question = question.filter(pk=uuid.UUID(name))
    except ValueError:
        question = question.filter(name=name)
    if tenant is not None:
        question = question.filter(tenant__slug=tenant)
    several: list[RecurringTask] = list(question.order_by("pk")[:2])
    if len(several) > 1:
        refuse(f"Several tenants have a recurring task {name!r}: add --tenant.")
    return several[0] if several else None


def named(name: str, tenant: str | None) -> RecurringTask:
    """Return the recurring task with this name or id; exits if it does not exist."""
    row = found(name, tenant)
    if row is None:
        refuse(f"There is no recurring task {name!r}; `durable list recurring` shows them.")
    return row


def listed(question: RecurringTaskQuerySet, limit: int) -> list[dict[str, Any]]:
    """Return the rows of a list, each with its schedule as text."""
    return [
        {**row, "schedule": _in_words(row["timetable"])}
        for row in question.values("id", *_ROW)[:limit]
    ]


def _in_words(timetable: Any) -> str:
    try:
        return words(timetable)
    except (AttributeError, LookupError, TypeError, ValueError):
        # A row that was corrupted outside of the ORM is shown all the same.
        return f"not readable: {timetable}"


def ledger_of(row: RecurringTask) -> OccurrenceQuerySet:
    """Return the ledger of a recurring task, the newest entry first."""
    entries: OccurrenceQuerySet = OccurrenceRecord.objects.using(conf.settings().DATABASE).filter(
        recurring_task=row.pk
    )
    return entries.order_by("-fire_time", "-pk")


def show(row: RecurringTask, out: Output) -> int:
    """Show the row, its next fires, its overrides and the last entries of its ledger."""
    data = {name: getattr(row, name) for name in _FACTS if name != "schedule"}
    data |= {"args": hidden(row.args), "kwargs": hidden(row.kwargs), "options": hidden(row.options)}
    data |= {
        "error": clean(row.error),
        "schedule": _in_words(row.timetable),
        "tenant": _tenant(row),
    }
    overrides = OccurrenceOverride.objects.using(conf.settings().DATABASE).filter(
        recurring_task=row.pk
    )
    data["overrides"] = list(overrides.order_by("fire_time").values(*_OVERRIDE))
    data["next_fires"], data["problem"] = _next_fires(row)
    data["ledger"] = list(ledger_of(row).values(*LEDGER_COLUMNS)[:_SOME])
    out.emit(data, _text(data))
    return OK


def _tenant(row: RecurringTask) -> str:
    return str(getattr(row.tenant, "slug", row.tenant))


def _next_fires(row: RecurringTask) -> tuple[list[dict[str, Any]], str]:
    """Return the next fires; for a row that cannot be read, the reason."""
    try:
        return [
            dataclasses.asdict(fire) for fire in explain.upcoming(row, _FEW, database_now())
        ], ""
    except DurableTasksError as broken:
        return [], str(broken)


def _text(data: dict[str, Any]) -> str:
    facts = [(name, data[name]) for name in (*_FACTS, "tenant", "problem") if name != "timetable"]
    lines = [
        f"{name.replace('_', ' '):>20}  {value if isinstance(value, dict | list) else cell(value)}"
        for name, value in facts
        if value not in (None, "", [], {}) or name in ("args", "kwargs")
    ]
    when = "next fires" if data["status"] == "ACTIVE" else "next fires, were it resumed"
    lines += ["", f"{when}:", table(FIRE_SHOWN, data["next_fires"])]
    if data["overrides"]:
        lines += ["", "overrides:", table(_OVERRIDE, data["overrides"])]
    lines += ["", "last ledger entries:", table(LEDGER_SHOWN, data["ledger"])]
    return "\n".join(lines)


# ``run-now``, ``snooze``, ``override``, ``backfill`` and ``end-schedule``.


_STEP = ("fire_time", "action", "why", "task_id")


def _perform(
    operation: Operation, row: RecurringTask, options: Options, **fields: Any
) -> OperationResult:
    given = fields or values(options, operation)
    return operation.perform(row, **by_and_reason(options), **given)


def _row(options: Options) -> RecurringTask:
    return named(options["name"], options["tenant"])


def run_now(options: Options, out: Output) -> int:
    """Run a schedule once now, in addition to its timetable."""
    row = _row(options)
    task = _perform(manual_runs.trigger_now, row, options).value
    waits = ", waiting until earlier runs with its overlap key have ended"
    shown = {
        "command": "run-now",
        "name": row.name,
        "task": task.pk,
        "status": task.status,
        "held": task.is_waiting,
    }
    suffix = waits if task.is_waiting else ""
    out.emit(shown, f"{row.name} runs as task {task.pk} ({task.status}{suffix})")
    return OK


def snooze(options: Options, out: Output) -> int:
    """Skip the fire times up to an instant."""
    row = _row(options)
    outcome = _perform(lifecycle.snooze, row, options)
    shown = {"command": "snooze", "name": row.name, "until": row.paused_until}
    out.emit(shown, f"{row.name}: {outcome.message}")
    return OK


def end_schedule(options: Options, out: Output) -> int:
    """End a schedule permanently."""
    row = _row(options)
    outcome = _perform(lifecycle.cancel, row, options)
    shown = {"command": "end-schedule", "name": row.name, "status": row.status}
    out.emit(shown, f"{row.name}: {outcome.message}")
    return OK


def override(options: Options, out: Output) -> int:
    """Override one fire time, or remove the override."""
    row, when = _row(options), options["fire_time"]
    shown = {"command": "override", "name": row.name, "fire_time": when}
    if options["remove"]:
        outcome = _perform(lifecycle.withdraw_override, row, options, fire_time=when)
        removed = bool(outcome.changed)
        out.emit({**shown, "removed": removed}, f"{row.name}: {outcome.message}")
        return OK if removed else REFUSED
    action = Action(next(name for name in ("skip", "add", "move") if options[name]).upper())
    fields = {"fire_time": when, "action": action, "move_to": options["move"]}
    made = _perform(lifecycle.override, row, options, **fields).value
    where = f" to {plain(made.move_to)}" if made.move_to else ""
    shown |= {"action": made.action, "move_to": made.move_to, "next_run_at": row.next_run_at}
    next_run = plain(row.next_run_at)
    out.emit(shown, f"{row.name}: {made.action} {plain(when)}{where}. Next run: {next_run}")
    return OK


def backfill(options: Options, out: Output) -> int:
    """Run the fire times of a range that have no run."""
    row = _row(options)
    fields = values(options, manual_runs.backfill) | {"dry_run": options["dry_run"]}
    report: BackfillReport = _perform(manual_runs.backfill, row, options, **fields).value
    counts = {"created": report.created, "replayed": report.replayed, "left": report.left}
    steps = [{name: getattr(step, name) for name in _STEP} for step in report.steps]
    shown = {
        "command": "backfill",
        "name": row.name,
        "dry_run": report.dry_run,
        **counts,
        "steps": steps,
        "remark": report.remark,
    }
    text = ", ".join(f"{number} {word}" for word, number in counts.items())
    more = [*([table(_STEP, steps)] if steps else []), *([report.remark] if report.remark else [])]
    out.emit(shown, "\n".join([f"{'would be: ' if report.dry_run else ''}{text}", *more]))
    return OK


def _operation_arguments(operation: Operation) -> Any:
    def declare(parser: ArgumentParser) -> None:
        add_name(parser)
        add_operations(parser, operation)

    return declare


def _override_arguments(parser: ArgumentParser) -> None:
    add_name(parser)
    parser.add_argument(
        "fire_time", metavar="AT", type=moment, help="The fire time, ISO 8601 with its UTC offset."
    )
    what: Any = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--skip", action="store_true", help="Do not run it.")
    what.add_argument("--move", metavar="INSTANT", type=moment, help="Run it at this time.")
    what.add_argument("--add", action="store_true", help="Run at this time, too.")
    what.add_argument("--remove", action="store_true", help="Remove the override.")
    add_operations(parser, *_OVERRIDE_OPERATIONS, without=("fire_time", "action", "move_to"))


_OVERRIDE_OPERATIONS = (lifecycle.override, lifecycle.withdraw_override)
SCHEDULE_ACTIONS = (
    Subcommand(
        name="run-now",
        operations=(manual_runs.trigger_now,),
        examples=(
            "run-now nightly-report",
            "run-now nightly-report --request-id deploy-17 --format json",
        ),
        arguments=_operation_arguments(manual_runs.trigger_now),
        run=run_now,
    ),
    Subcommand(
        name="snooze",
        operations=(lifecycle.snooze,),
        examples=("snooze nightly-report 2026-12-27T00:00:00Z",),
        arguments=_operation_arguments(lifecycle.snooze),
        run=snooze,
    ),
    Subcommand(
        name="override",
        operations=_OVERRIDE_OPERATIONS,
        examples=(
            "override nightly-report 2026-12-25T02:30:00Z --skip --reason Christmas",
            "override nightly-report 2026-12-24T02:30:00Z --move 2026-12-23T22:00:00Z",
            "override nightly-report 2026-12-31T12:00:00Z --add",
            "override nightly-report 2026-12-25T02:30:00Z --remove",
        ),
        arguments=_override_arguments,
        run=override,
    ),
    Subcommand(
        name="backfill",
        operations=(manual_runs.backfill,),
        examples=(
            "backfill nightly-report 2026-11-01T00:00:00Z 2026-11-20T00:00:00Z --dry-run",
            (
                "backfill nightly-report 2026-11-01T00:00:00Z 2026-11-20T00:00:00Z --reprocess"
                " FAILED --concurrency 4"
            ),
        ),
        arguments=_operation_arguments(manual_runs.backfill),
        run=backfill,
    ),
    Subcommand(
        name="end-schedule",
        operations=(lifecycle.cancel,),
        examples=("end-schedule nightly-report --reason 'replaced by hourly-report'",),
        arguments=_operation_arguments(lifecycle.cancel),
        run=end_schedule,
    ),
)


# ``durable calendars``: import, list and delete calendars.


_CALENDAR_COLUMNS = ("name", "working_days", "dates", "origin", "updated_at", "description")
_YEARS = 3


def run_calendars(options: Options, out: Output) -> int:
    """List, import or delete."""
    return _ACTS[options["act"]](options, out)


def _import(options: Options, out: Output) -> int:
    source = options["source"] or refuse(f"import needs a source: {WAYS}.")
    first = options["year"] or database_now().year
    name = options["name"] or refuse("import needs --name.")
    read = days_of([source], range(first, first + options["years"]))
    if read is None:
        refuse(f"{source!r} is not a calendar: give {WAYS}.")
    outcome = calendars.upsert.perform(
        name,
        days=read.special,
        working_days=options["working_days"],
        origin=source,
        tenant=_tenant_of_options(options),
        **by_and_reason(options),
    )
    shown = {
        "command": "calendars",
        "act": "import",
        "name": name,
        "dates": len(read.special),
        "revision": outcome.value.revision,
    }
    years = f"{first} to {first + options['years'] - 1}"
    out.emit(
        shown,
        f"{name} has {len(read.special)} dates of {years}. Import it again before they run out.",
    )
    return OK


def _list_calendars(options: Options, out: Output) -> int:
    question = Calendar.objects.using(conf.settings().DATABASE)
    if options["tenant"] is not None:
        question = question.filter(tenant__slug=options["tenant"])
    rows = list(
        question.annotate(dates=Count("days"))
        .order_by("name", "pk")
        .values("id", *_CALENDAR_COLUMNS)
    )
    out.emit(rows, table(_CALENDAR_COLUMNS, rows))
    return OK


def _delete(options: Options, out: Output) -> int:
    name = options["name"] or refuse("delete needs --name.")
    rows = Calendar.objects.using(conf.settings().DATABASE).filter(name=name)
    row = rows.filter(tenant=_tenant_of_options(options) or DEFAULT_TENANT_ID).first()
    shown = {"command": "calendars", "act": "delete", "name": name}
    if row is None:
        out.emit({**shown, "deleted": False}, f"There is no calendar {name}.")
        return REFUSED
    outcome = calendars.delete.perform(row, **by_and_reason(options))
    out.emit({**shown, "deleted": bool(outcome.changed)}, outcome.message)
    return OK if outcome.changed else REFUSED


_ACTS = {"list": _list_calendars, "import": _import, "delete": _delete}


def _tenant_of_options(options: Options) -> Any:
    if options["tenant"] is None:
        return None
    found = Tenant.objects.using(conf.settings().DATABASE).filter(slug=options["tenant"]).first()
    return found or refuse(f"There is no tenant {options['tenant']!r}.")


def _weekdays(text: str) -> list[int]:
    if not re.fullmatch(r"[1-7](,[1-7])*", text):
        raise ArgumentTypeError(f"{text!r} are not weekdays: write them as 1,2,3,4,5 (1 is Monday)")
    return [int(day) for day in text.split(",")]


def calendar_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments of list, import and delete."""
    parser.add_argument(
        "act", choices=list(_ACTS), nargs="?", default="list", help="What to do. Default: list."
    )
    parser.add_argument("source", nargs="?", help=f"For import: {WAYS}.")
    parser.add_argument("--name", help="For import and delete: the name of the calendar.")
    parser.add_argument("--year", type=int, help="For import: the first year. Default: this year.")
    parser.add_argument(
        "--years",
        type=int,
        default=_YEARS,
        help=f"For import: the number of years. Default: {_YEARS}.",
    )
    parser.add_argument(
        "--working-days",
        metavar="1,2,3,4,5",
        type=_weekdays,
        help="For import: ISO weekdays, 1 is Monday. Default: unchanged.",
    )
    parser.add_argument("--tenant", help="The slug of the tenant.")
    add_operations(parser, calendars.upsert, calendars.delete)


CALENDARS = Subcommand(
    name="calendars",
    summary="or list calendars",
    operations=(calendars.upsert, calendars.delete),
    examples=(
        "calendars",
        "calendars import holidays:DE-BY --name office --year 2026 --years 3",
        "calendars import company.ics --name office --working-days 1,2,3,4,5,6",
        "calendars delete --name office",
    ),
    arguments=calendar_arguments,
    run=run_calendars,
)


# ``durable sync``, and the sync of declared schedules after ``migrate``.


_APP = "django_durable_tasks"
_SYNC_COLUMNS = ("name", "act", "source", "what")


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


def sync(options: Options, out: Output) -> int:
    """Show the differences between declared and stored schedules, or remove them by changing the
    stored ones.
    """
    load_declarations()
    only_shown = options["dry_run"] or options["check"]
    fields = values(options, sync_schedules.apply) | {"dry_run": only_shown}
    steps = sync_schedules.apply.perform(None, **by_and_reason(options), **fields).value
    shown = [{**dataclasses.asdict(step), "what": _what(step)} for step in steps]
    data = [
        {
            **dataclasses.asdict(step),
            "changes": hidden(dict(step.changes)),
            "done": _done(step, only_shown),
        }
        for step in steps
    ]
    cut = [
        f"\n{row['name']}\n  {row['what']}" for row in shown if cell(row["what"]).endswith("...")
    ]
    out.emit(
        data, "\n".join([table(_SYNC_COLUMNS, shown, "every schedule is as it is declared"), *cut])
    )
    if any(step.act in NOTHING_DONE for step in steps):
        return REFUSED
    return UNHEALTHY if options["check"] and steps else OK


def _done(step: SyncStep, only_shown: bool) -> bool:
    return not only_shown and step.act not in NOTHING_DONE


def _what(step: SyncStep) -> str:
    parts = [
        f"{column}: {old!r} -> {new!r}" for column, (old, new) in hidden(dict(step.changes)).items()
    ]
    parts += [f"{', '.join(step.edited)}: an operator's own value stays"] if step.edited else []
    return "; ".join([*([step.reason] if step.reason else []), *parts])


def after_migrate(*, using: str, verbosity: int = 1, stdout: Any = None, **_: Any) -> None:
    """Receiver of ``post_migrate``: sync if SYNC_SCHEDULES_ON_MIGRATE is set and all migrations of
    this package are applied.
    """
    settings = conf.settings()
    if not settings.SYNC_SCHEDULES_ON_MIGRATE or using != settings.DATABASE or not _migrated(using):
        return
    load_declarations()
    with acting(AuditSource.SYNC, "migrate"):
        steps = recurring_sync.apply(by="migrate")
    for step in steps:
        if verbosity and stdout is not None:
            stdout.write(f"  Recurring task {step.name}: {step.act} {_what(step)}".rstrip() + "\n")


def _migrated(using: str) -> bool:
    """Return whether the tables match this release. They do not after a migration back to an older
    release.
    """
    executor = MigrationExecutor(connections[using])
    ours = [node for node in executor.loader.graph.leaf_nodes() if node[0] == _APP]
    return not executor.migration_plan(ours)


def _sync_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--check", action="store_true", help="Change nothing and exit with 1 if something differs."
    )
    add_operations(parser, sync_schedules.apply)


SYNC = Subcommand(
    name="sync",
    operations=(sync_schedules.apply,),
    examples=(
        "sync --dry-run",
        "sync",
        "sync --check",
        "sync --prune",
        "sync --adopt --format json",
    ),
    arguments=_sync_arguments,
    run=sync,
)
