"""``durable graph``, and operations on workflows and dependencies."""

from __future__ import annotations

import uuid
from argparse import ArgumentParser
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from django_durable_tasks.choices import DependencyType, Status
from django_durable_tasks.command.arguments import (
    add_operations,
    count,
    left_unchanged,
    task_id,
    tasks,
)
from django_durable_tasks.command.subcommand import (
    OK,
    REFUSED,
    Options,
    Output,
    Subcommand,
    by_and_reason,
    clean,
    refuse,
    table,
)
from django_durable_tasks.dependencies.edges import workflow_runs
from django_durable_tasks.models import Task, WorkflowRun
from django_durable_tasks.models.tasks import TaskQuerySet
from django_durable_tasks.operations.operation import Operation
from django_durable_tasks.workflows import graph_data
from django_durable_tasks.workflows import operations as graph_operations
from django_durable_tasks.workflows.diagrams import FILE_FORMATS, Diagram, draw
from django_durable_tasks.workflows.operations import GraphReport

# Operations on workflows and dependencies: what they change or would change, task by task.


_CHANGE = ("id", "step", "name", "before", "after", "reason")


def run_of(key: uuid.UUID) -> WorkflowRun:
    """Return the run of this id, or exit."""
    run: WorkflowRun | None = workflow_runs().filter(pk=key).first()
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
    report: GraphReport = outcome.value
    return report


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


# ``durable graph``: the diagram of a workflow run, or of the tasks connected with a task.


_ID = "0193b0e0-0000-7000-8000-000000000000"


def arguments(parser: ArgumentParser) -> None:
    """Declare the task or run, the format and the output file."""
    parser.add_argument(
        "id", metavar="ID", type=task_id, help="the id of a workflow run, or of a task"
    )
    parser.add_argument(
        "--output", metavar="FILE", type=Path, help="write the diagram to this file, not to stdout"
    )
    parser.add_argument(
        "--limit",
        type=count,
        default=graph_data.NEAR,
        help=(
            "of a task: how many connected tasks at most, the nearest first (default:"
            f" {graph_data.NEAR})"
        ),
    )


def run(options: Options, out: Output) -> int:
    """Write the diagram."""
    diagram = _diagram(options)
    drawn = draw(diagram, options["format"])
    if options["output"] is None:
        out.stdout.write(drawn)
        return OK
    try:
        options["output"].write_text(drawn, encoding="utf-8")
    except OSError as error:
        refuse(f"--output {options['output']} cannot be written: {error.strerror}.")
    out.note(f"{options['output']}: {len(diagram.nodes)} tasks, {len(diagram.edges)} dependencies")
    return OK


def _diagram(options: Options) -> Diagram:
    task = tasks().filter(pk=options["id"]).first()
    if task is not None:
        return graph_data.around(task, options["limit"])
    found = workflow_runs().filter(pk=options["id"]).first()
    if found is None:
        refuse(
            f"There is neither a workflow run nor a task {options['id']}: `durable list workflows`"
            " shows the runs."
        )
    return graph_data.of_run(found)


GRAPH = Subcommand(
    name="graph",
    summary=(
        "draw a workflow run, or what is connected with a task, as text, Mermaid, SVG or JSON"
    ),
    examples=(
        f"graph {_ID}",
        f"graph {_ID} --format svg --output run.svg",
        f"graph {_ID} --format mermaid --limit 50",
        f"graph {_ID} --format json",
    ),
    arguments=arguments,
    run=run,
    formats=FILE_FORMATS,
)


# ``force-run``, ``approve``, ``reject``, ``hold``, ``unhold`` and ``depend``.


_OTHER = "0193b0e0-0000-7000-8000-000000000001"


def force_run(options: Options, out: Output) -> int:
    """Run tasks without waiting for their dependencies, approvals and times."""
    eligible = tasks().filter(status__in=(Status.BLOCKED, Status.SKIPPED))
    return operate_on(graph_operations.force_run, "forced", eligible, options["ids"], options, out)


def depend(options: Options, out: Output) -> int:
    """Add or remove a dependency."""
    task, upstream = task_of(options["id"]), task_of(options["on"])
    if not options["remove"]:
        fields = {
            "upstream": upstream,
            "type": options["type"] or DependencyType.MUST_SUCCEED,
            "policy": options["policy"],
        }
        return operate(graph_operations.add_edge, task, options, out, **fields)
    if options["type"] is not None or options["policy"] is not None:
        refuse("--remove removes a dependency of any type: do not give --type and --policy.")
    return operate(graph_operations.remove_edge, task, options, out, upstream=upstream)


def _force_run_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "ids", nargs="*", metavar="ID", type=task_id, help="Ids of BLOCKED or SKIPPED tasks."
    )
    add_operations(parser, graph_operations.force_run)


def _gate_arguments(operation: Operation, parser: ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", type=task_id, help="The id of a task.")
    add_operations(parser, operation)


def _depend_arguments(parser: ArgumentParser) -> None:
    texts = {field.name: field.help for field in graph_operations.add_edge.fields}
    choices = {field.name: field.choices for field in graph_operations.add_edge.fields}
    parser.add_argument("id", metavar="ID", type=task_id, help="The id of the task that waits.")
    parser.add_argument(
        "--on", metavar="ID", type=task_id, required=True, help=str(texts["upstream"])
    )
    for name, default in (("type", DependencyType.MUST_SUCCEED), ("policy", "the task's own")):
        parser.add_argument(
            f"--{name}",
            choices=[str(value) for value, _label in choices[name] if value],
            help=f"{texts[name]} Default: {default}.",
        )
    parser.add_argument("--remove", action="store_true", help="Remove the dependency.")
    without = ("upstream", "type", "policy")
    add_operations(parser, graph_operations.add_edge, graph_operations.remove_edge, without=without)


def _gate(operation: Operation, *examples: str) -> Subcommand:
    def run(options: Options, out: Output) -> int:
        return operate(operation, task_of(options["id"]), options, out)

    return Subcommand(
        name=operation.name,
        operations=(operation,),
        examples=tuple(f"{operation.name} {example}" for example in examples),
        arguments=partial(_gate_arguments, operation),
        run=run,
    )


GRAPH_ACTIONS = (
    Subcommand(
        name="force-run",
        operations=(graph_operations.force_run,),
        examples=(
            f"force-run {_ID} --dry-run",
            f"force-run {_ID} --reason 'the file arrived by mail'",
        ),
        arguments=_force_run_arguments,
        run=force_run,
    ),
    _gate(
        graph_operations.approve,
        f"{_ID} --reason 'checked the totals'",
        f"{_ID} --by ann --dry-run",
    ),
    _gate(graph_operations.reject, f"{_ID} --reason 'wrong month'", f"{_ID} --dry-run"),
    _gate(graph_operations.hold, f"{_ID} --reason 'until the bank has answered'"),
    _gate(graph_operations.unhold, f"{_ID}", f"{_ID} --dry-run"),
    Subcommand(
        name="depend",
        operations=(graph_operations.add_edge, graph_operations.remove_edge),
        examples=(
            f"depend {_ID} --on {_OTHER}",
            f"depend {_ID} --on {_OTHER} --type MUST_FINISH --dry-run",
            f"depend {_ID} --on {_OTHER} --remove",
        ),
        arguments=_depend_arguments,
        run=depend,
    ),
)
