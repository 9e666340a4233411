"""The context of the page of a workflow run: progress, diagram, tasks and operations."""

from __future__ import annotations

import uuid
from typing import Any

from django.db.models import Count
from django.http import HttpRequest
from django.utils.translation import gettext as _

from django_durable_tasks.admin import (
    dependencies_cell,
    display,
    graph_actions,
    graph_images,
    progress,
    task_status,
)
from django_durable_tasks.diagrams import Diagram
from django_durable_tasks.diagrams.labels import natural
from django_durable_tasks.models import Task, WorkflowRun
from django_durable_tasks.models.clock import DatabaseNow
from django_durable_tasks.rules.dependencies import layers
from django_durable_tasks.rules.states import Status
from django_durable_tasks.rules.tasks.explanations import Level, Sentence
from django_durable_tasks.rules.workflows.plan import WorkflowStatus

TASKS = 50
RUNS = 200
_DEEPEST = 8
_HEAVY = ("args", "kwargs", "options", "result", "progress")


def of_page(request: HttpRequest, run: Any) -> dict[str, Any]:
    """Return the context of the page of a run, except its columns."""
    may_view = graph_images.may_view_tasks(request)
    return {
        "sentences": sentences(run),
        "buttons": graph_actions.buttons_of_run(request, run),
        "bar": progress.bar(run),
        "words": progress.words(run),
        "looks": may_view,
        "callbacks": _callbacks(run),
        "family": _family(run),
        "family_more": display.list_of("workflowrun", root__exact=run.root),
        **(_graph(request, run) if may_view else {}),
        "forces": graph_actions.may_force(request),
        "chosen_operations": graph_actions.buttons_of_chosen(),
    }


def sentences(run: Any) -> list[Sentence]:
    """Return sentences about the problems of a run, the most severe first; none for a run that
    makes progress or has succeeded.
    """
    found = []
    if run.is_open and run.deadline_at is not None and run.deadline_at <= run.seen_at:
        late = display.since(run.deadline_at, run.seen_at)
        found.append(
            Sentence(
                Level.TROUBLE,
                _("Its deadline was %s: tasks that have not ended will be cancelled.") % late,
            )
        )
    if run.status == WorkflowStatus.STARTING:
        found.append(
            Sentence(
                Level.WAIT,
                _("Its tasks are still being created. None runs before all have been created."),
            )
        )
    if run.is_open and run.cancel_requested_at is not None:
        asked = display.since(run.cancel_requested_at, run.seen_at)
        found.append(Sentence(Level.WAIT, _("Its cancellation was requested %s.") % asked))
    if run.status == WorkflowStatus.FAILED:
        why = f" ({display.clean(run.reason)})" if run.reason else ""
        found.append(Sentence(Level.TROUBLE, _("It failed%s.") % why))
    return found


def _numbers(run: WorkflowRun) -> dict[str, int]:
    rows = Task.objects.using(run._state.db).of_workflow(run).order_by()
    there = dict(rows.values_list("status").annotate(Count("pk")))
    return {str(status): there.get(str(status), 0) for status in Status}


# Tasks and diagram --------------------------------------------------------------------------------


def _graph(request: HttpRequest, run: WorkflowRun) -> dict[str, Any]:
    numbers = _numbers(run)
    asked = "draw" in request.GET or sum(numbers.values()) <= graph_images.AT_ONCE
    diagram = graph_images.of_run(run) if asked else None
    return {
        "drawing": graph_images.inline(diagram) if diagram else "",
        "files": graph_images.files_of("workflowrun", run.pk),
        **_tasks(request, run, numbers, diagram),
    }


def _tasks(
    request: HttpRequest, run: WorkflowRun, numbers: dict[str, int], diagram: Diagram | None
) -> dict[str, Any]:
    """Return one page of its tasks: in topological order if the dependencies were read, otherwise
    by id.
    """
    state = request.GET.get("state", "")
    state = state if state in numbers else ""
    total = numbers[state] if state else sum(numbers.values())
    pages = max(1, -(-total // TASKS))
    page = min(max(1, _whole(request.GET.get("p", ""))), pages)
    rows: Any = Task.objects.using(run._state.db).of_workflow(run)
    these, part = (
        (rows.filter(status=state) if state else rows).order_by("pk"),
        slice((page - 1) * TASKS, page * TASKS),
    )
    keys = these.values_list("pk", flat=True)
    keys = _in_order(diagram, list(keys))[part] if diagram else list(keys[part])
    found = rows.defer(*_HEAVY).annotate(seen_at=DatabaseNow()).in_bulk(keys)
    return {
        "tasks": _lines([found[key] for key in keys if key in found]),
        "state": state,
        "page": page,
        "pages": pages,
        "number": total,
        "states": progress.by_status(numbers),
        "all": sum(numbers.values()),
        "tasks_list": display.list_of("task", workflow__id__exact=run.pk),
    }


def _in_order(diagram: Diagram, keys: list[uuid.UUID]) -> list[uuid.UUID]:
    """Return these tasks in topological order, siblings by their labels."""
    wanted = {str(key): key for key in keys}
    above: dict[str, list[str]] = {
        node.id: []
        for node in sorted(diagram.nodes, key=lambda node: (natural(node.label), node.id))
    }
    for edge in diagram.edges:
        above.setdefault(edge.target, []).append(edge.source)
    ordered = [wanted[key] for layer in layers(above) for key in layer if key in wanted]
    return ordered + sorted(set(keys) - set(ordered))


def _whole(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 7 else 1


def _lines(tasks: list[Any]) -> list[dict[str, Any]]:
    held = dependencies_cell.of_tasks(task.pk for task in tasks if task.status == Status.BLOCKED)
    upstreams = [edge.depends_on_id for waits in held.values() for edge in waits.edges]
    known = dependencies_cell.named([*upstreams, *(task.cause for task in tasks)])
    return [
        {
            "task": task,
            "link": display.link(display.page_of("task", task.pk), dependencies_cell.title(task)),
            "state": display.badges([(task.status, task.status), *task_status.labels(task)]),
            "waits": dependencies_cell.cell(
                held.get(task.pk, dependencies_cell.DependencyWaits()), known
            ),
            "took": task_status.took(task),
            "cause": dependencies_cell.task_link(task.cause, known) if task.cause else "",
            "why": display.clean(task.reason) or display.first_line(task.last_error),
        }
        for task in tasks
    ]


# Related tasks and runs ---------------------------------------------------------------------------


def _callbacks(run: WorkflowRun) -> list[dict[str, Any]]:
    """Return the durable tasks that are created when the run ends, and those that were created."""
    keys = {f"workflow-{run.pk}-{kind}": kind for kind in run.callbacks}
    rows = Task.objects.using(run._state.db).filter(
        tenant_id=run.tenant_id, idempotency_key__in=list(keys)
    )
    created = {
        keys[task.idempotency_key]: task
        for task in rows.only("name", "status", "idempotency_key")
        if keys
    }
    return [
        {
            "kind": kind,
            "name": name,
            "task": created.get(kind),
            "state": dependencies_cell.task_link(
                created[kind].pk, {created[kind].pk: created[kind]}
            )
            if kind in created
            else "",
        }
        for kind, name in run.callbacks.items()
    ]


def _family(run: WorkflowRun) -> list[dict[str, Any]]:
    """Return the outermost run with its inner runs, each below its parent; at most RUNS."""
    rows = list(
        WorkflowRun.objects.using(run._state.db).filter(root=run.root).order_by("pk")[:RUNS]
    )
    below: dict[Any, list[WorkflowRun]] = {}
    there = {row.pk for row in rows}
    for row in rows:
        below.setdefault(row.parent if row.parent in there else None, []).append(row)
    found, rest = [], [(row, 0) for row in reversed(below.get(None, []))]
    while rest:
        row, depth = rest.pop()
        found.append(
            {
                "run": row,
                "depth": min(depth, _DEEPEST),
                "here": row.pk == run.pk,
                "link": display.link(display.page_of("workflowrun", row.pk), row.name),
                "state": display.badge(row.status, row.status),
                "progress": progress.cell(row),
            }
        )
        rest += [(child, depth + 1) for child in reversed(below.get(row.pk, []))]
    return found if len(found) > 1 else []
