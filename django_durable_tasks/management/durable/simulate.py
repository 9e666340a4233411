"""``durable simulate``: shows which fires an outage of all schedulers would miss, and which of them
catch-up would run afterwards.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from django_durable_tasks.engine.recurring.known_schedules import policy_of
from django_durable_tasks.management.durable.output import Output, plain, table
from django_durable_tasks.management.durable.preview import fire
from django_durable_tasks.management.durable.schedule_arguments import (
    ScheduleDraft,
    add_catch_up,
    add_schedule,
    add_stored,
    draft,
    edited,
    moment,
    stored,
)
from django_durable_tasks.management.durable.subcommand import OK, Options, Subcommand, refuse
from django_durable_tasks.rules.recurring.effective.types import TICK
from django_durable_tasks.rules.recurring.misfires import Choice, ChosenFire, choose
from django_durable_tasks.rules.recurring.policies import FireOutcome

_TICKS = 20  # maximum number of rounds of the trigger
_RUNS = ("nominal", "effective", "starts", "caught_up")
_LEFT_OUT_COLUMNS = ("outcome", "count", "first", "last", "reason")


def arguments(parser: ArgumentParser) -> None:
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


def run(options: Options, out: Output) -> int:
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
    arguments=arguments,
    run=run,
)
