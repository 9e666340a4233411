"""``trigger``, ``snooze``, ``override`` and ``backfill``: what an operator does with one recurring task."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django_durable_tasks.management.durable.drafts import moment
from django_durable_tasks.management.durable.output import Output, plain, table
from django_durable_tasks.management.durable.questions import count
from django_durable_tasks.management.durable.recurring import add_name, named
from django_durable_tasks.management.durable.verb import OK, REFUSED, Options, Verb, add_by_and_reason, by_and_reason
from django_durable_tasks.rules.agenda import Action
from django_durable_tasks.rules.backfills import Report, Reprocess
from django_durable_tasks.rules.recurring import CatchUpOrder

_STEP = ("fire_time", "deed", "why", "task_id")


def trigger(options: Options, out: Output) -> int:
    """Run once now, beside the schedule."""
    row = named(options["name"], options["tenant"])
    task = row.trigger_now(request_id=options["request_id"], **by_and_reason(options))
    told = {"verb": "trigger", "name": row.name, "task": task.pk, "status": task.status, "held": task.is_waiting}
    held = ", waiting until the earlier runs with its overlap key have ended" if task.is_waiting else ""
    out.emit(told, f"{row.name} runs as task {task.pk} ({task.status}{held})")
    return OK


def snooze(options: Options, out: Output) -> int:
    """Let the fire times up to an instant pass."""
    row = named(options["name"], options["tenant"])
    row.snooze(options["until"], **by_and_reason(options))
    told = {"verb": "snooze", "name": row.name, "until": row.paused_until}
    out.emit(told, f"{row.name} fires nothing until {plain(row.paused_until)}, and goes on by itself")
    return OK


def override(options: Options, out: Output) -> int:
    """Decide about one fire time, or take it back."""
    row, when = named(options["name"], options["tenant"]), options["fire_time"]
    told = {"verb": "override", "name": row.name, "fire_time": when}
    if options["withdraw"]:
        gone = row.withdraw(when)
        text = "is as the schedule says again" if gone else "was not overridden"
        out.emit({**told, "withdrawn": gone}, f"{row.name}: {plain(when)} {text}")
        return OK if gone else REFUSED
    action = next(name for name in ("skip", "add", "move") if options[name])
    made = row.override(when, Action(action.upper()), move_to=options["move"], **by_and_reason(options))
    where = f" to {plain(made.move_to)}" if made.move_to else ""
    told |= {"action": made.action, "move_to": made.move_to, "next_run_at": row.next_run_at}
    out.emit(told, f"{row.name}: {made.action} {plain(when)}{where}; the next run is at {plain(row.next_run_at)}")
    return OK


def backfill(options: Options, out: Output) -> int:
    """Run the fire times of a range that have no run."""
    row = named(options["name"], options["tenant"])
    how = {name: options[name] for name in ("dry_run", "reprocess", "concurrency", "order", "limit")}
    report: Report = row.backfill(options["start"], options["end"], **how, **by_and_reason(options))
    counts = {"born": report.born, "replayed": report.replayed, "left": report.left}
    steps = [{name: getattr(step, name) for name in _STEP} for step in report.steps]
    told = {"verb": "backfill", "name": row.name, "dry_run": report.dry_run, **counts, "steps": steps,
            "remark": report.remark}  # fmt: skip
    said = ", ".join(f"{number} {word}" for word, number in counts.items())
    shown = [*([table(_STEP, steps)] if steps else []), *([report.remark] if report.remark else [])]
    out.emit(told, "\n".join([f"{'would be: ' if report.dry_run else ''}{said}", *shown]))
    return OK


def _trigger_arguments(parser: ArgumentParser) -> None:
    add_name(parser)
    parser.add_argument("--request-id", metavar="ID", help="a name for this run: the same one runs once")
    add_by_and_reason(parser, "why; the ledger keeps it")


def _snooze_arguments(parser: ArgumentParser) -> None:
    add_name(parser)
    parser.add_argument("until", metavar="UNTIL", type=moment, help="an instant, ISO 8601 with its offset")
    add_by_and_reason(parser, "why; it is kept in the row")


def _override_arguments(parser: ArgumentParser) -> None:
    add_name(parser)
    parser.add_argument("fire_time", metavar="AT", type=moment, help="the fire time, ISO 8601 with its offset")
    what: Any = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--skip", action="store_true", help="do not run it")
    what.add_argument("--move", metavar="INSTANT", type=moment, help="run it then")
    what.add_argument("--add", action="store_true", help="run also then")
    what.add_argument("--withdraw", action="store_true", help="take back what was decided about it")
    add_by_and_reason(parser, "why; the ledger keeps it")


def _backfill_arguments(parser: ArgumentParser) -> None:
    add_name(parser)
    parser.add_argument("start", metavar="FROM", type=moment, help="the first instant, ISO 8601 with its offset")
    parser.add_argument("end", metavar="TO", type=moment, help="the last instant, not after now")
    parser.add_argument("--dry-run", action="store_true", help="show what would be born, replayed and left")
    parser.add_argument(
        "--reprocess", choices=[word.value for word in Reprocess], default="NONE",
        help="also replay the tasks that failed, or all that have ended (default: NONE)",
    )  # fmt: skip
    parser.add_argument("--concurrency", type=count, default=1, help="how many at a time (default: 1)")
    parser.add_argument(
        "--order", choices=[word.value for word in CatchUpOrder], default="OLDEST", help="what goes first"
    )
    parser.add_argument("--limit", type=count, default=1_000, help="refuse more fire times than these (default: 1000)")
    add_by_and_reason(parser, "why; the ledger keeps it")


SCHEDULE_VERBS = (
    Verb(
        name="trigger",
        help="run a recurring task once now, beside its schedule; also a paused one",
        examples=("trigger nightly-report", "trigger nightly-report --request-id deploy-17 --format json"),
        arguments=_trigger_arguments,
        run=trigger,
    ),
    Verb(
        name="snooze",
        help="let the fire times of a recurring task pass until an instant; it goes on by itself",
        examples=("snooze nightly-report 2026-12-27T00:00:00Z",),
        arguments=_snooze_arguments,
        run=snooze,
    ),
    Verb(
        name="override",
        help="skip, move or add one fire time of a recurring task",
        examples=(
            "override nightly-report 2026-12-25T02:30:00Z --skip --reason Christmas",
            "override nightly-report 2026-12-24T02:30:00Z --move 2026-12-23T22:00:00Z",
            "override nightly-report 2026-12-31T12:00:00Z --add",
            "override nightly-report 2026-12-25T02:30:00Z --withdraw",
        ),
        arguments=_override_arguments,
        run=override,
    ),
    Verb(
        name="backfill",
        help="run the fire times of a range that have no run; never one twice",
        examples=(
            "backfill nightly-report 2026-11-01T00:00:00Z 2026-11-20T00:00:00Z --dry-run",
            "backfill nightly-report 2026-11-01T00:00:00Z 2026-11-20T00:00:00Z --reprocess FAILED --concurrency 4",
        ),
        arguments=_backfill_arguments,
        run=backfill,
    ),
)
