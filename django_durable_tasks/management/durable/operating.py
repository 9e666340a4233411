"""How verbs show and do what the lifecycle reports of a graph: which rows change, from where to where, and why."""

from __future__ import annotations

import uuid
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from typing import Any

from django_durable_tasks.lifecycle.edges import runs
from django_durable_tasks.lifecycle.graph_operations import Report
from django_durable_tasks.management.durable.changing import left_alone
from django_durable_tasks.management.durable.output import Output, clean, table
from django_durable_tasks.management.durable.questions import tasks
from django_durable_tasks.management.durable.verb import OK, REFUSED, Options, refuse
from django_durable_tasks.models import Task, WorkflowRun
from django_durable_tasks.models.task import TaskQuerySet

_CHANGE = ("id", "step", "name", "before", "after", "reason")

Act = Callable[[bool], Report]
"""Does it, or with True only says what it would do."""


def run_of(key: uuid.UUID) -> WorkflowRun:
    """Return the run of this id; refuses an unknown one."""
    run: WorkflowRun | None = runs().filter(pk=key).first()
    if run is None:
        refuse(f"There is no workflow run {key}: `durable list workflows` shows them.")
    return run


def task_of(key: uuid.UUID) -> Task:
    """Return the task of this id; refuses an unknown one."""
    task: Task | None = tasks().filter(pk=key).first()
    if task is None:
        refuse(f"There is no task {key}: it never was, or its retention is over.")
    return task


def add_dry_run(parser: ArgumentParser) -> None:
    """Declare what every verb has that can change more than one row."""
    parser.add_argument("--dry-run", action="store_true", help="show exactly which rows would change, and change none")


def operate(
    verb: str, act: Act, options: Options, out: Output, *, sweeping: bool = False,
    left: Sequence[dict[str, Any]] = (), counted: Callable[[Report], dict[str, int]] = lambda _: {},
) -> int:  # fmt: skip
    """Show or do it. ``sweeping``: it changes rows that nobody named, and wants ``--yes`` for more than one."""
    if options["dry_run"]:
        report = act(True)
        told = {"verb": verb, "dry_run": True, "would_change": rows_of(report), "would_ask": list(report.asked)}
        out.emit({**told, "left_alone": list(left)}, _text(f"{verb} would change", report, left))
        return OK
    if sweeping and not options["yes"]:
        number = act(True).total
        if number > 1:
            refuse(f"{verb} would change {number} rows: see them with --dry-run, do it with --yes.")
    report = act(False)
    told = {"verb": verb, **counted(report), "changed": rows_of(report), "asked": list(report.asked)}
    out.emit({**told, "left_alone": list(left)}, _text(f"{verb} changed", report, left))
    return OK if report.total else REFUSED


def operate_on(
    verb: str, word: str, act: Callable[[TaskQuerySet, bool], Report], eligible: TaskQuerySet, ids: list[uuid.UUID],
    options: Options, out: Output,
) -> int:  # fmt: skip
    """Show or do it with the tasks that are named by ids and stand where it starts; others are left alone.

    ``word`` says in the answer how many of them it was.
    """
    if not ids:
        refuse("Name the tasks by their ids.")
    found = list(eligible.filter(pk__in=ids).order_by("pk").values("id"))
    left = left_alone(ids, found)
    if not found:
        out.emit({"verb": verb, "left_alone": left}, _text(f"{verb} changed", Report((), (), False), left))
        return REFUSED
    question = eligible.filter(pk__in=[row["id"] for row in found])

    def counted(report: Report) -> dict[str, int]:
        return {word: sum(change.task_id in ids for change in report.changes)}

    return operate(verb, lambda dry_run: act(question, dry_run), options, out, left=left, counted=counted)


def rows_of(report: Report) -> list[dict[str, Any]]:
    """Return the changes as they are told."""
    return [
        {
            "id": change.task_id, "step": change.step, "name": change.name, "before": change.before,
            "after": change.after, "reason": clean(change.reason),
        }
        for change in report.changes
    ]  # fmt: skip


def _text(head: str, report: Report, left: Sequence[dict[str, Any]]) -> str:
    rows = rows_of(report)
    lines = [f"{head} {len(rows)} row{'' if len(rows) == 1 else 's'}{':' if rows else ''}"]
    lines += [table(_CHANGE, rows)] if rows else []
    asks = "would be asked" if report.dry_run else "was asked"
    lines += [f"  {asks} to stop: {key}" for key in report.asked]
    return "\n".join([*lines, *(f"  left alone {row['id']}: {row['why']}" for row in left)])
