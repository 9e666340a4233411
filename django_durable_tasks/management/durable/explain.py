"""``explain`` and ``ledger``: the result of each fire time of a recurring task, and its reason."""

from __future__ import annotations

from argparse import ArgumentParser

from django_durable_tasks.management.durable.output import Output, clean, table
from django_durable_tasks.management.durable.recurring import (
    LEDGER_COLUMNS,
    LEDGER_SHOWN,
    add_name,
    ledger_of,
    named,
)
from django_durable_tasks.management.durable.schedule_arguments import moment
from django_durable_tasks.management.durable.selectors import count
from django_durable_tasks.management.durable.subcommand import OK, Options, Subcommand
from django_durable_tasks.rules.recurring.policies import FireOutcome


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
