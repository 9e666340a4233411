"""Operations on workflows and dependencies: what they change or would change, task by task."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from django_durable_tasks.engine.dependencies.edges import runs
from django_durable_tasks.engine.workflows.operations import GraphReport
from django_durable_tasks.management.durable.bulk import left_unchanged
from django_durable_tasks.management.durable.output import Output, clean, table
from django_durable_tasks.management.durable.selectors import tasks
from django_durable_tasks.management.durable.subcommand import (
    OK,
    REFUSED,
    Options,
    by_and_reason,
    refuse,
)
from django_durable_tasks.models import Task, WorkflowRun
from django_durable_tasks.models.task_queries import TaskQuerySet
from django_durable_tasks.operations.operation import Operation

_CHANGE = ("id", "step", "name", "before", "after", "reason")


def run_of(key: uuid.UUID) -> WorkflowRun:
    """Return the run of this id, or exit."""
    run: WorkflowRun | None = runs().filter(pk=key).first()
    if run is None:
        refuse(f"There is no workflow run {key}: `durable list workflows` shows them.")
    return run


def task_of(key: uuid.UUID) -> Task:
    """Return the task of this id, or exit."""
    task: Task | None = tasks().filter(pk=key).first()
    if task is None:
        refuse(f"There is no task {key}: it never existed, or was deleted after its retention.")
    return task


def operate(
    operation: Operation, subject: Any, options: Options, out: Output, **fields: Any
) -> int:
    """Perform an operation on dependent tasks, or show what it would change.

    An operation that requires a confirmation needs ``--yes`` if it would change more tasks than the
    named one.
    """

    def act(dry_run: bool) -> GraphReport:
        return _report(operation, subject, options, dry_run, fields)

    if operation.confirm and operation.sweeps and not (options["dry_run"] or options["yes"]):
        number = act(True).total
        if number > 1:
            command = options["subcommand"]
            refuse(
                f"{command} would change {number} rows: show them with --dry-run, confirm with"
                " --yes."
            )
    return _emit(act(bool(options["dry_run"])), options, out, [], {})


def operate_on(
    operation: Operation,
    word: str,
    eligible: TaskQuerySet,
    ids: list[uuid.UUID],
    options: Options,
    out: Output,
) -> int:
    """Perform an operation on those of the named tasks that are eligible, or show what it would
    change.

    ``word`` is the key of their number in the JSON.
    """
    if not ids:
        refuse("Name the tasks by their ids.")
    found = list(eligible.filter(pk__in=ids).order_by("pk").values("id"))
    left = left_unchanged(ids, found)
    if not found:
        head = f"{options['subcommand']} changed"
        text = _text(head, GraphReport((), (), False), left)
        out.emit({"command": options["subcommand"], "left_alone": left}, text)
        return REFUSED
    selected = eligible.filter(pk__in=[row["id"] for row in found])
    report = _report(operation, selected, options, bool(options["dry_run"]), {})
    counts = {word: sum(change.task_id in ids for change in report.changes)}
    return _emit(report, options, out, left, counts)


def _report(
    operation: Operation, subject: Any, options: Options, dry_run: bool, fields: dict[str, Any]
) -> GraphReport:
    outcome = operation.perform(subject, **by_and_reason(options), dry_run=dry_run, **fields)
    if outcome.report is None:
        raise TypeError("An operation on a graph has to return a report.")
    return outcome.report


def _emit(
    report: GraphReport,
    options: Options,
    out: Output,
    left: Sequence[dict[str, Any]],
    counts: dict[str, int],
) -> int:
    command, requested = options["subcommand"], list(report.stop_requested)
    if options["dry_run"]:
        would = {"dry_run": True, "would_change": rows_of(report), "would_request_stop": requested}
        text = _text(f"{command} would change", report, left)
        out.emit({"command": command, **would, "left_alone": list(left)}, text)
        return OK
    changed = {**counts, "changed": rows_of(report), "stop_requested": requested}
    text = _text(f"{command} changed", report, left)
    out.emit({"command": command, **changed, "left_alone": list(left)}, text)
    return OK if report.total else REFUSED


def rows_of(report: GraphReport) -> list[dict[str, Any]]:
    """Return the changes as rows of a table."""
    return [
        {
            "id": change.task_id,
            "step": change.step,
            "name": change.name,
            "before": change.before,
            "after": change.after,
            "reason": clean(change.reason),
        }
        for change in report.changes
    ]


def _text(head: str, report: GraphReport, left: Sequence[dict[str, Any]]) -> str:
    rows = rows_of(report)
    lines = [f"{head} {len(rows)} row{'' if len(rows) == 1 else 's'}{':' if rows else ''}"]
    lines += [table(_CHANGE, rows)] if rows else []
    stop = "stop would be requested" if report.dry_run else "stop was requested"
    lines += [f"  {stop}: {key}" for key in report.stop_requested]
    return "\n".join([*lines, *(f"  left unchanged {row['id']}: {row['why']}" for row in left)])
