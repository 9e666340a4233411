"""``durable list`` and ``durable show``."""

from __future__ import annotations

import dataclasses
import uuid
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable
from typing import Any, NoReturn

from django.db.models import Count, F

from django_durable_tasks import conf, registry
from django_durable_tasks.audit import of_task
from django_durable_tasks.celery.inspect import sentences
from django_durable_tasks.choices import OPEN, RecurringStatus, Status, WorkflowStatus
from django_durable_tasks.cluster import queues
from django_durable_tasks.command import recurring
from django_durable_tasks.command.arguments import (
    add_filters,
    count,
    dead_letters,
    letter_id,
    narrowed,
    narrowed_letters,
    tasks,
)
from django_durable_tasks.command.subcommand import (
    OK,
    Options,
    Output,
    Subcommand,
    cell,
    clean,
    first_line,
    hidden,
    refuse,
    table,
)
from django_durable_tasks.dependencies.edges import workflow_runs
from django_durable_tasks.masking import masked_positional
from django_durable_tasks.models import Node, Task, TaskDependency, WorkflowRun
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.tasks.explanations import Sentence

# The output of ``list workflows`` and ``show`` for workflow runs and dependencies.


ROW_SHOWN = (
    "id",
    "name",
    "status",
    "key",
    "ended",
    "total",
    "failed",
    "created_at",
    "completed_at",
    "reason",
)
_ROW = (
    "id",
    "name",
    "status",
    "key",
    "tenant",
    "parent",
    "root",
    "recurring_task",
    "fire_time",
    "deadline_at",
    "total",
    "succeeded",
    "failed",
    "cancelled",
    "skipped",
    "expired",
    "reason",
    "cancel_requested_at",
    "created_at",
    "completed_at",
)
_STEP = ("id", "step", "status", "name", "run_at", "reason")
_EDGE = ("waits_for", "step", "status", "type", "outcome", "policy", "comment", "by")
_FEW = 20


def listed_runs(options: Options) -> list[dict[str, Any]]:
    """Return one page of runs that match the filters, the newest first; exits if the status does
    not exist.
    """
    words = [status.value for status in WorkflowStatus]
    if options["status"] is not None and options["status"] not in words:
        refuse(f"No workflow run is {options['status']}: give one of {', '.join(words)}.")
    fields = {"status": "status", "name": "name", "tenant": "tenant__slug", "key": "key"}
    question = workflow_runs().filter(
        **{fields[name]: options[name] for name in fields if options[name] is not None}
    )
    if options["after"] is not None:
        if not isinstance(options["after"], uuid.UUID):
            refuse("--after of workflows is the id of a run (a UUID).")
        question = question.filter(pk__lt=options["after"])
    return [
        _facts(row) for row in question.select_related("tenant").order_by("-pk")[: options["limit"]]
    ]


def _facts(row: WorkflowRun) -> dict[str, Any]:
    facts = {name: getattr(row, name) for name in _ROW if name != "tenant"}
    tenant = str(getattr(row.tenant, "slug", row.tenant))
    return {
        **facts,
        "tenant": tenant,
        "reason": clean(row.reason),
        "ended": row.ended,
        "progress": row.progress,
    }


def found_run(text: str) -> WorkflowRun | None:
    """Return the run with this id; None if it does not exist."""
    try:
        key = uuid.UUID(text)
    except ValueError:
        return None
    row: WorkflowRun | None = workflow_runs().select_related("tenant").filter(pk=key).first()
    return row


def show_run(row: WorkflowRun, out: Output) -> int:
    """Show one run: its progress, its inner runs, the status of its tasks, and the tasks that fail
    or delay it.
    """
    facts = _facts(row)
    inside = [
        _facts(part)
        for part in workflow_runs().select_related("tenant").filter(parent=row.pk).order_by("pk")
    ]
    counted = tasks().of_workflow(row).order_by().values_list("status").annotate(number=Count("pk"))
    facts |= {
        "inside": inside,
        "statuses": dict(counted),
        "open_tasks": _steps(row, OPEN),
        "failed_tasks": [],
    }
    facts["failed_tasks"] = _steps(row, {"FAILED", "EXPIRED"})
    out.emit(facts, _run_text(facts))
    return OK


def _steps(row: WorkflowRun, statuses: Any) -> list[dict[str, Any]]:
    these = (
        tasks().of_workflow(row).filter(status__in=statuses).order_by("pk").values(*_STEP)[:_FEW]
    )
    return [{**step, "reason": clean(step["reason"])} for step in these]


def _run_text(facts: dict[str, Any]) -> str:
    lines = [
        f"{facts['name']}: {facts['status']}, {facts['ended']} of {facts['total']} tasks have ended"
    ]
    lines += [
        f"{name.replace('_', ' '):>20}  {cell(facts[name])}"
        for name in _ROW
        if facts[name] not in (None, "", 0)
    ]
    lines += [
        (
            f"{'tasks':>20} "
            f" {', '.join(f'{number} {s}' for s, number in sorted(facts['statuses'].items()))}"
        )
    ]
    for head, name in (("failed", "failed_tasks"), (f"open, the first {_FEW}", "open_tasks")):
        if facts[name]:
            lines += ["", f"{head}:", table(_STEP, facts[name])]
    if facts["inside"]:
        lines += ["", "runs inside:", table(ROW_SHOWN, facts["inside"])]
    return "\n".join(lines)


# Dependencies of a task ---------------------------------------------------------------------------


def graph_of(task: Task) -> dict[str, Any]:
    """Return the dependencies of a task: its workflow, its edges and gates, the tasks that wait for
    it, and the cause of its end.
    """
    edges = TaskDependency.objects.using(conf.settings().DATABASE)
    above = list(edges.above([task.pk]).order_by("pk"))
    cause = None if task.cause is None else tasks().filter(pk=task.cause).values(*_STEP).first()
    known = tasks().in_bulk(
        [edge.depends_on_id for edge in above if edge.depends_on_id is not None]
    )
    under = (
        edges.below([task.pk]).order_by().values_list("task__status", flat=True)
        if task.has_dependents
        else ()
    )
    return {
        "workflow": task.workflow_id,
        "step": task.step,
        "needs": task.unresolved_dependencies_count,
        "join": task.join_count or "ALL",
        "on_upstream_failure": task.on_upstream_failure,
        "waits_for": [_edge(edge, known) for edge in above],
        "dependents": dict(Counter(under)),
        "cause": cause or (None if task.cause is None else {"id": task.cause, "status": "DELETED"}),
    }


def _edge(edge: TaskDependency, known: dict[uuid.UUID, Task]) -> dict[str, Any]:
    upstream = None if edge.depends_on_id is None else known.get(edge.depends_on_id)
    stands = "DELETED" if upstream is None else upstream.status
    return {
        "waits_for": edge.depends_on_id or edge.gate,
        "gate": edge.gate,
        "step": None if upstream is None else upstream.step or upstream.name,
        "status": None if edge.depends_on_id is None else stands,
        "type": None if edge.depends_on_id is None else edge.dependency_type,
        "outcome": edge.outcome or "waiting",
        "met": edge.met,
        "resolved_at": edge.resolved_at,
        "policy": edge.on_upstream_failure,
        "comment": clean(edge.comment),
        "placed_by": edge.placed_by,
        "resolved_by": edge.resolved_by,
        "by": edge.resolved_by or edge.placed_by,
    }


def graph_text(graph: dict[str, Any]) -> list[str]:
    """Return the lines that ``show`` adds for a task with dependencies."""
    lines = []
    if graph["workflow"] is not None:
        lines += [f"{'workflow':>20}  {graph['workflow']}", f"{'step':>20}  {cell(graph['step'])}"]
    if graph["cause"] is not None:
        cause = graph["cause"]
        lines += [
            (
                f"{'cause':>20}  {cause.get('step') or cause.get('name') or ''} {cause['id']},"
                f" {cause['status']}"
            )
        ]
    if graph["waits_for"]:
        lines += [
            "",
            f"waits for (join {graph['join']}, needs {graph['needs']} more):",
            table(_EDGE, graph["waits_for"]),
        ]
    if graph["dependents"]:
        dependents = ", ".join(
            f"{number} {status}" for status, number in sorted(graph["dependents"].items())
        )
        lines += ["", f"waited for by: {dependents}"]
    return lines


# ``durable list``: tasks, workflows, recurring tasks, dead letters, queues and nodes.
#
# Pages are selected by key, so the last page costs as much as the first.


_TASK = (
    "id",
    "status",
    "queue",
    "name",
    "priority",
    "run_at",
    "due_at",
    "attempts",
    "reason",
    "last_error",
)
_TASK_SHOWN = (
    "id",
    "status",
    "queue",
    "name",
    "priority",
    "run_at",
    "due_at",
    "attempts",
    "reason",
)
_LETTER = (
    "id",
    "task_id",
    "reason",
    "fingerprint",
    "attempts",
    "created_at",
    "resolved_at",
    "resolution",
    "resolved_by",
    "comment",
    "error_message",
)
_LETTER_SHOWN = (
    "id",
    "task_id",
    "name",
    "reason",
    "fingerprint",
    "attempts",
    "created_at",
    "state",
    "error_message",
)
_NODE = (
    "id",
    "name",
    "kind",
    "host",
    "pid",
    "version",
    "pool",
    "concurrency",
    "queues",
    "started_at",
    "last_seen_at",
    "stopped_at",
    "declared_dead",
)
_NODE_SHOWN = (
    "name",
    "kind",
    "host",
    "pid",
    "pool",
    "concurrency",
    "queues",
    "last_seen_at",
    "stopped_at",
)
_QUEUE_SHOWN = (
    "queue",
    "pending",
    "due",
    "limited",
    "queued",
    "unanswered",
    "running",
    "late",
    "oldest_due_at",
    "workers",
    "concurrency",
    "paused_by",
    "reason",
)

_OF_SCHEDULES = {RecurringStatus.ACTIVE.value, RecurringStatus.PAUSED.value}

Page = tuple[tuple[str, ...], list[dict[str, Any]]]


def _tasks(options: Options) -> Page:
    if options["status"] in _OF_SCHEDULES:
        refuse(
            f"No task is {options['status']}: a recurring task is. `durable list recurring` shows"
            " them."
        )
    if options["status"] == WorkflowStatus.STARTING:
        refuse("No task is STARTING: a workflow run is. `durable list workflows` shows them.")
    question = narrowed(tasks(), options).order_by("-pk")
    if options["after"] is not None:
        if not isinstance(options["after"], uuid.UUID):
            refuse("--after of tasks is the id of a task (a UUID).")
        question = question.filter(pk__lt=options["after"])
    rows = list(question.values(*_TASK)[: options["limit"]])
    return _TASK_SHOWN, [{**row, "last_error": clean(row["last_error"])} for row in rows]


def _workflows(options: Options) -> Page:
    return ROW_SHOWN, listed_runs(options)


def _recurring(options: Options) -> Page:
    fields = {"status": "status", "queue": "queue", "name": "task", "tenant": "tenant__slug"}
    question = recurring.rows().filter(
        **{fields[name]: options[name] for name in fields if options[name] is not None}
    )
    if options["after"] is not None:
        if not isinstance(options["after"], uuid.UUID):
            refuse("--after of recurring tasks is the id of one (a UUID).")
        question = question.filter(pk__lt=options["after"])
    return recurring.ROW_SHOWN, recurring.listed(question.order_by("-pk"), options["limit"])


def _dead_letters(options: Options) -> Page:
    question = dead_letters() if options["all"] else dead_letters().open()
    question = narrowed_letters(question, options).order_by("-pk")
    if options["after"] is not None:
        if not isinstance(options["after"], int):
            refuse("--after of dead letters is a number.")
        question = question.filter(pk__lt=options["after"])
    rows = [
        {
            **row,
            "error_message": clean(row["error_message"]),
            "state": "open" if row["resolved_at"] is None else "closed",
        }
        for row in question.values(*_LETTER, name=F("task__name"), queue=F("task__queue"))[
            : options["limit"]
        ]
    ]
    return _LETTER_SHOWN, rows


def _queues(options: Options) -> Page:
    found = [dataclasses.asdict(depth) for depth in queues.depths(database_now())]
    return (
        _QUEUE_SHOWN,
        [row for row in found if options["queue"] in (None, row["queue"])][: options["limit"]],
    )


def _nodes(options: Options) -> Page:
    question = Node.objects.using(conf.settings().DATABASE)
    living = question.all() if options["all"] else question.alive()
    return _NODE_SHOWN, list(
        living.order_by("-last_seen_at", "pk").values(*_NODE)[: options["limit"]]
    )


_KINDS: dict[str, tuple[Callable[[Options], Page], tuple[str, ...]]] = {
    "tasks": (_tasks, ("status", "queue", "name", "tenant", "key", "after")),
    "workflows": (_workflows, ("status", "name", "tenant", "key", "after")),
    "recurring": (_recurring, ("status", "queue", "name", "tenant", "after")),
    "dead-letters": (_dead_letters, ("queue", "name", "tenant", "fingerprint", "after", "all")),
    "queues": (_queues, ("queue",)),
    "nodes": (_nodes, ("all",)),
}


def arguments(parser: ArgumentParser) -> None:
    """Declare what can be listed, and the filters."""
    parser.add_argument(
        "kind",
        nargs="?",
        choices=list(_KINDS),
        default="tasks",
        help="what to list (default: tasks)",
    )
    words = [
        *(status.value for status in Status),
        WorkflowStatus.STARTING.value,
        *sorted(_OF_SCHEDULES),
    ]
    parser.add_argument("--status", choices=words, help="only in this status")
    add_filters(parser, "queue", "name", "tenant", "key", "fingerprint")
    parser.add_argument(
        "--limit", type=count, default=50, help="how many rows at most (default: 50)"
    )
    parser.add_argument(
        "--after", type=letter_id, help="go on after the last id of the page before"
    )
    parser.add_argument(
        "--all", action="store_true", help="closed dead letters and departed nodes too"
    )


def run(options: Options, out: Output) -> int:
    """Show one page, the newest first."""
    read, taken = _KINDS[options["kind"]]
    for name in ("status", "queue", "name", "tenant", "key", "fingerprint", "after", "all"):
        if options[name] not in (None, False) and name not in taken:
            refuse(
                f"--{name} does not narrow {options['kind']}; it takes:"
                f" {', '.join(f'--{one}' for one in taken)}."
            )
    columns, rows = read(options)
    shown = [
        (
            {**row, "error_message": first_line(row["error_message"])}
            if "error_message" in row
            else row
        )
        for row in rows
    ]
    out.emit(rows, table(columns, shown))
    if "after" in taken and len(rows) == options["limit"]:
        out.note(f"There may be more: add --after {rows[-1]['id']}")
    return OK


LIST = Subcommand(
    name="list",
    summary="list tasks, workflows, schedules, dead letters, queues or nodes, newest first",
    examples=(
        "list",
        "list tasks --status FAILED --queue mail --limit 20",
        "list tasks --status PENDING --after 0193b0e0-0000-7000-8000-000000000000",
        "list dead-letters --name billing.tasks.charge --format json",
        "list workflows --status RUNNING --name nightly",
        "list recurring --status PAUSED",
        "list queues",
        "list nodes --all",
    ),
    arguments=arguments,
    run=run,
)


# ``durable show``: a task with its attempts, a workflow run, or a schedule.


_FACTS = (
    "id",
    "name",
    "queue",
    "priority",
    "status",
    "reason",
    "key",
    "unique_key",
    "idempotency_key",
    "args",
    "kwargs",
    "options",
    "run_at",
    "due_at",
    "lease_until",
    "expires_at",
    "created_at",
    "started_at",
    "completed_at",
    "cancel_requested_at",
    "attempts",
    "failures",
    "max_attempts",
    "crashes",
    "max_crashes",
    "publish_count",
    "epoch",
    "run_id",
    "node",
    "progress",
    "result",
    "last_error",
)
_LOG = (
    "attempt_number",
    "status",
    "started_at",
    "completed_at",
    "worker",
    "node",
    "celery_id",
    "error_message",
    "traceback",
)
_LETTER_FACTS = (
    "id",
    "reason",
    "fingerprint",
    "created_at",
    "resolved_at",
    "resolution",
    "resolved_by",
    "comment",
)
_AUDIT = ("at", "operation", "actor", "source", "reason")
_TIMELINE = (
    "attempt_number",
    "status",
    "started_at",
    "completed_at",
    "seconds",
    "worker",
    "error_message",
)


TASK_TABLES: dict[str, tuple[Callable[[Task], list[dict[str, Any]]], tuple[str, ...]]] = {}
"""The rows of optional apps that ``durable show`` prints of a task, by their name in JSON: what
reads them, and the columns of their table.
"""


def facts_of(task: Task) -> dict[str, Any]:
    """Return the row, its attempts and dead letters, with secrets masked."""
    row = {name: getattr(task, name) for name in _FACTS}
    known = registry.find(task.name)
    parameters = None if known is None else known.positional_parameters
    row["args"] = masked_positional(task.args, parameters, conf.settings().SECRET_NAMES)
    row |= {name: hidden(row[name]) for name in ("kwargs", "options", "progress", "result")}
    row["last_error"] = clean(task.last_error)
    attempts = []
    for log in task.executions.using(task._state.db).order_by("pk"):
        attempt = {name: getattr(log, name) for name in _LOG}
        attempt |= {"error_message": clean(log.error_message), "traceback": clean(log.traceback)}
        attempts.append({**attempt, "seconds": log.duration})
    row["tenant"] = str(getattr(task.tenant, "slug", task.tenant))
    row["graph"] = graph_of(task)
    row["executions"] = attempts
    row |= {name: read(task) for name, (read, _) in TASK_TABLES.items()}
    row["audit"] = [{name: getattr(one, name) for name in _AUDIT} for one in of_task(task)]
    row["dead_letters"] = list(
        task.dead_letters.using(task._state.db).order_by("pk").values(*_LETTER_FACTS)
    )
    return row


def _text(facts: dict[str, Any], why: list[Sentence]) -> str:
    lines = [f"why: {why[0].text}", *(f"     {sentence.text}" for sentence in why[1:]), ""]
    for name in (*_FACTS, "tenant"):
        if facts[name] not in (None, "", [], {}) or name in ("args", "kwargs"):
            value = first_line(facts[name]) if name == "last_error" else facts[name]
            shown = str(value) if isinstance(value, dict | list) else cell(value)
            lines.append(f"{name.replace('_', ' '):>20}  {shown}")
    lines += graph_text(facts["graph"])
    timeline = [
        {
            **log,
            "error_message": first_line(log["error_message"]),
            "seconds": _rounded(log["seconds"]),
        }
        for log in facts["executions"]
    ]
    if facts["status"] == Status.RUNNING:
        timeline.append(
            {
                **dict.fromkeys(_TIMELINE),
                "attempt_number": facts["attempts"],
                "status": "RUNNING",
                "started_at": facts["started_at"],
                "worker": facts["node"],
            }
        )
    lines += ["", table(_TIMELINE, timeline, "no attempt yet")]
    for name, (_, columns) in TASK_TABLES.items():
        if facts[name]:
            lines += ["", table(columns, facts[name])]
    if facts["dead_letters"]:
        lines += ["", table(_LETTER_FACTS, facts["dead_letters"])]
    if facts["audit"]:
        lines += ["", table(_AUDIT, facts["audit"])]
    return "\n".join(lines)


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def show(options: Options, out: Output) -> int:
    """Show one task, one workflow run, or the recurring task with this name or id."""
    task = _task(options["id"])
    started = None if task is not None else found_run(options["id"])
    if started is not None:
        return show_run(started, out)
    if task is None:
        row = recurring.found(options["id"], options["tenant"])
        return recurring.show(row, out) if row is not None else _refuse(options["id"])
    why = sentences(task)
    facts = facts_of(task)
    data = {"why": why[0].text, "sentences": [sentence.text for sentence in why], **facts}
    out.emit(data, _text(facts, why))
    return OK


def _task(text: str) -> Task | None:
    try:
        found: Task | None = tasks().select_related("tenant").filter(pk=uuid.UUID(text)).first()
    except ValueError:
        return None
    return found


def _refuse(text: str) -> NoReturn:
    try:
        uuid.UUID(text)
    except ValueError:
        refuse(f"{text!r} is not the id of a task (a UUID), and no recurring task has that name.")
    refuse(f"There is no task and no workflow run {text}: it never was, or its retention is over.")


def show_arguments(parser: ArgumentParser) -> None:
    """Declare the id."""
    parser.add_argument(
        "id",
        metavar="ID|NAME",
        help=(
            "the id of a task, which is also the id of its DurableResult; "
            "or of a workflow run; or the name or id of a recurring task"
        ),
    )
    recurring.add_tenant(parser)


SHOW = Subcommand(
    name="show",
    summary=(
        "show one task, its attempts, what it waits for, and why it did not run; or a workflow run"
        " with its progress; or a recurring task with its next fires and its ledger"
    ),
    examples=(
        "show 0193b0e0-0000-7000-8000-000000000000",
        "show 0193b0e0-0000-7000-8000-000000000000 --format json",
        "show nightly-report",
    ),
    arguments=show_arguments,
    run=show,
)
