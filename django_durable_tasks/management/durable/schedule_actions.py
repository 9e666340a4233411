"""``run-now``, ``snooze``, ``override``, ``backfill`` and ``end-schedule``."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django_durable_tasks.management.durable.operation_arguments import add_operations, values
from django_durable_tasks.management.durable.output import Output, plain, table
from django_durable_tasks.management.durable.recurring import add_name, named
from django_durable_tasks.management.durable.schedule_arguments import moment
from django_durable_tasks.management.durable.subcommand import (
    OK,
    REFUSED,
    Options,
    Subcommand,
    by_and_reason,
)
from django_durable_tasks.models import RecurringTask
from django_durable_tasks.operations import schedules
from django_durable_tasks.operations.operation import Operation, OperationResult
from django_durable_tasks.rules.recurring.backfill import BackfillReport
from django_durable_tasks.rules.recurring.effective import Action

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
    task = _perform(schedules.RUN_NOW, row, options).value
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
    outcome = _perform(schedules.SNOOZE, row, options)
    shown = {"command": "snooze", "name": row.name, "until": row.paused_until}
    out.emit(shown, f"{row.name}: {outcome.message}")
    return OK


def end_schedule(options: Options, out: Output) -> int:
    """End a schedule permanently."""
    row = _row(options)
    outcome = _perform(schedules.CANCEL, row, options)
    shown = {"command": "end-schedule", "name": row.name, "status": row.status}
    out.emit(shown, f"{row.name}: {outcome.message}")
    return OK


def override(options: Options, out: Output) -> int:
    """Override one fire time, or remove the override."""
    row, when = _row(options), options["fire_time"]
    shown = {"command": "override", "name": row.name, "fire_time": when}
    if options["remove"]:
        outcome = _perform(schedules.REMOVE_OVERRIDE, row, options, fire_time=when)
        removed = bool(outcome.changed)
        out.emit({**shown, "removed": removed}, f"{row.name}: {outcome.message}")
        return OK if removed else REFUSED
    action = Action(next(name for name in ("skip", "add", "move") if options[name]).upper())
    fields = {"fire_time": when, "action": action, "move_to": options["move"]}
    made = _perform(schedules.OVERRIDE, row, options, **fields).value
    where = f" to {plain(made.move_to)}" if made.move_to else ""
    shown |= {"action": made.action, "move_to": made.move_to, "next_run_at": row.next_run_at}
    next_run = plain(row.next_run_at)
    out.emit(shown, f"{row.name}: {made.action} {plain(when)}{where}. Next run: {next_run}")
    return OK


def backfill(options: Options, out: Output) -> int:
    """Run the fire times of a range that have no run."""
    row = _row(options)
    fields = values(options, schedules.BACKFILL) | {"dry_run": options["dry_run"]}
    report: BackfillReport = _perform(schedules.BACKFILL, row, options, **fields).value
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


def _arguments(operation: Operation) -> Any:
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
    add_operations(parser, *_OVERRIDE, without=("fire_time", "action", "move_to"))


_OVERRIDE = (schedules.OVERRIDE, schedules.REMOVE_OVERRIDE)
SCHEDULE_ACTIONS = (
    Subcommand(
        name="run-now",
        operations=(schedules.RUN_NOW,),
        examples=(
            "run-now nightly-report",
            "run-now nightly-report --request-id deploy-17 --format json",
        ),
        arguments=_arguments(schedules.RUN_NOW),
        run=run_now,
    ),
    Subcommand(
        name="snooze",
        operations=(schedules.SNOOZE,),
        examples=("snooze nightly-report 2026-12-27T00:00:00Z",),
        arguments=_arguments(schedules.SNOOZE),
        run=snooze,
    ),
    Subcommand(
        name="override",
        operations=_OVERRIDE,
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
        operations=(schedules.BACKFILL,),
        examples=(
            "backfill nightly-report 2026-11-01T00:00:00Z 2026-11-20T00:00:00Z --dry-run",
            (
                "backfill nightly-report 2026-11-01T00:00:00Z 2026-11-20T00:00:00Z --reprocess"
                " FAILED --concurrency 4"
            ),
        ),
        arguments=_arguments(schedules.BACKFILL),
        run=backfill,
    ),
    Subcommand(
        name="end-schedule",
        operations=(schedules.CANCEL,),
        examples=("end-schedule nightly-report --reason 'replaced by hourly-report'",),
        arguments=_arguments(schedules.CANCEL),
        run=end_schedule,
    ),
)
