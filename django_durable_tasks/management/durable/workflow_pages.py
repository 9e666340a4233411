"""The output of ``list workflows`` and ``show`` for workflow runs and dependencies."""

from __future__ import annotations

import uuid
from collections import Counter
from typing import Any

from django.db.models import Count

from django_durable_tasks import conf
from django_durable_tasks.engine.dependencies.edges import runs
from django_durable_tasks.management.durable.output import Output, cell, clean, table
from django_durable_tasks.management.durable.selectors import tasks
from django_durable_tasks.management.durable.subcommand import OK, Options, refuse
from django_durable_tasks.models import Task, TaskDependency, WorkflowRun
from django_durable_tasks.rules.states import OPEN
from django_durable_tasks.rules.workflows.plan import WorkflowStatus

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


def listed(options: Options) -> list[dict[str, Any]]:
    """Return one page of runs that match the filters, the newest first; exits if the status does
    not exist.
    """
    words = [status.value for status in WorkflowStatus]
    if options["status"] is not None and options["status"] not in words:
        refuse(f"No workflow run is {options['status']}: give one of {', '.join(words)}.")
    fields = {"status": "status", "name": "name", "tenant": "tenant__slug", "key": "key"}
    question = runs().filter(
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


def found(text: str) -> WorkflowRun | None:
    """Return the run with this id; None if it does not exist."""
    try:
        key = uuid.UUID(text)
    except ValueError:
        return None
    row: WorkflowRun | None = runs().select_related("tenant").filter(pk=key).first()
    return row


def show(row: WorkflowRun, out: Output) -> int:
    """Show one run: its progress, its inner runs, the status of its tasks, and the tasks that fail
    or delay it.
    """
    facts = _facts(row)
    inside = [
        _facts(part)
        for part in runs().select_related("tenant").filter(parent=row.pk).order_by("pk")
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
