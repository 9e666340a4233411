"""The context of a task's page: its dependencies, dependents, gates and cause."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.db.models import F
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from django_durable_tasks.admin import dependencies_cell, display, graph_actions, graph_images
from django_durable_tasks.admin.graph_actions import LINKABLE
from django_durable_tasks.models import Task, TaskDependency, WorkflowRun
from django_durable_tasks.operations.dependencies import ADD, REMOVE
from django_durable_tasks.rules.dependencies import Gate
from django_durable_tasks.rules.states import Status
from django_durable_tasks.rules.tasks.explanations import Level, Sentence

EDGES = 50


def of_page(request: HttpRequest, task: Any) -> dict[str, Any]:
    """Return the dependencies of a task for its page, with a fixed number of statements."""
    edges = TaskDependency.objects.using(task._state.db)
    above = list(
        edges.above([task.pk]).order_by(F("resolved_at").desc(nulls_first=True), "id")[: EDGES + 1]
    )
    below = list(edges.below([task.pk]).order_by("id")[: EDGES + 1]) if task.has_dependents else []
    known = dependencies_cell.named(
        [*(edge.depends_on_id for edge in above), *(edge.task_id for edge in below), task.cause]
    )
    in_graph = bool(above or below)
    return {
        "above": [_line(request, edge, known, task) for edge in above[:EDGES]],
        "above_more": len(above) > EDGES,
        "below": [_below(edge, known) for edge in below[:EDGES]],
        "below_more": len(below) > EDGES,
        "all_above": display.list_of("taskdependency", task__id__exact=task.pk),
        "all_below": display.list_of("taskdependency", depends_on__id__exact=task.pk),
        "in_graph": in_graph,
        "graph_sentences": list(sentences(task, above, known)),
        "graph_buttons": [
            *graph_actions.buttons_of_task(request, task, above),
            *_add(request, task),
        ],
        "drawing": graph_images.inline(graph_images.around(task)) if in_graph else "",
        "files": graph_images.files_of("task", task.pk) if in_graph else [],
    }


def sentences(
    task: Task, above: list[TaskDependency], known: dict[Any, Task]
) -> Iterator[Sentence]:
    """Yield sentences about the gates and upstreams for which a task waits."""
    for edge in above:
        if edge.gate and edge.resolved_at is None:
            yield Sentence(Level.WAIT, _gate(edge))
    cause = None if task.cause is None else known.get(task.cause)
    if cause is not None:
        sentence = _("It ended because of %(name)s (%(id)s), which is %(status)s.")
        given = {
            "name": dependencies_cell.title(cause),
            "id": display.short(cause.pk),
            "status": cause.status,
        }
        yield Sentence(Level.WAIT, sentence % given)


def _gate(edge: TaskDependency) -> str:
    condition = _("It waits for an approval") if edge.gate == Gate.APPROVAL else _("It is on hold")
    by = _(", requested by %s") % edge.placed_by if edge.placed_by else ""
    comment = f": {display.clean(edge.comment)}" if edge.comment else "."
    return f"{condition}{by}{comment}"


def _line(
    request: HttpRequest, edge: TaskDependency, known: dict[Any, Task], task: Task
) -> dict[str, Any]:
    gate = edge.depends_on_id is None
    return {
        "upstream": display.badge("gate", edge.gate)
        if gate
        else dependencies_cell.task_link(edge.upstream_id, known),
        "kind": "" if gate else edge.dependency_type,
        "policy": edge.on_upstream_failure or "",
        "standing": standing(edge),
        "resolved": display.instant(edge.resolved_at),
        "who": who(edge),
        "remove": _removal(edge) if _may_remove(request, edge, task) else "",
    }


def _may_remove(request: HttpRequest, edge: TaskDependency, task: Task | None) -> bool:
    waits = task is not None and task.status == Status.BLOCKED and edge.depends_on_id is not None
    return waits and REMOVE.is_permitted(request.user)


def _removal(edge: TaskDependency) -> str:
    return reverse("admin:django_durable_tasks_graph_unlink", args=[edge.pk])


def buttons_of_edge(
    request: HttpRequest, edge: TaskDependency, task: Task | None
) -> list[dict[str, Any]]:
    """Return the buttons on the page of an edge: its removal, or the operations on its gate."""
    if task is not None and edge.gate and edge.resolved_at is None:
        return graph_actions.buttons_of_gate(request, task, edge.gate)
    return (
        [{"url": _removal(edge), "posts": True, "title": f"{REMOVE.title}…"}]
        if _may_remove(request, edge, task)
        else []
    )


def _below(edge: TaskDependency, known: dict[Any, Task]) -> dict[str, Any]:
    return {
        "edge": edge,
        "task": dependencies_cell.task_link(edge.task_id, known),
        "standing": standing(edge),
    }


def standing(edge: TaskDependency) -> SafeString:
    """Show whether an edge is resolved, and whether it is met."""
    if edge.resolved_at is None:
        outcome = display.badge(edge.outcome, edge.outcome) if edge.outcome else ""
        return format_html("{} {}", display.badge("waits", _("waits")), outcome)
    word = _("met") if edge.met else _("not met")
    return format_html(
        "{} {}",
        display.badge("success" if edge.met else "failed", word),
        display.badge(edge.outcome, edge.outcome) if edge.outcome else "",
    )


def who(edge: TaskDependency) -> str:
    """Return who added an edge or a gate, who opened it, and their comments."""
    placed = _("placed by %s") % edge.placed_by if edge.placed_by else ""
    opened = _("opened by %s") % edge.resolved_by if edge.resolved_by else ""
    authors = ", ".join(part for part in (placed, opened) if part)
    comment = display.clean(edge.comment)
    return f"{authors}: {comment}" if authors and comment else authors or comment


def _add(request: HttpRequest, task: Task) -> list[dict[str, str]]:
    if task.status not in LINKABLE or not ADD.is_permitted(request.user):
        return []
    return [
        {
            "url": f"{reverse('admin:django_durable_tasks_taskdependency_add')}?task={task.pk}",
            "title": f"{ADD.title}…",
        }
    ]


def workflow_link(task: Task) -> SafeString | str:
    """Link the workflow run of a task, with its step; a deleted run is shown by its id."""
    if task.workflow_id is None:
        return display.NOTHING
    run = (
        WorkflowRun.objects.using(task._state.db)
        .only("name", "status")
        .filter(pk=task.workflow_id)
        .first()
    )
    step = _("step %s") % task.step if task.step else ""
    if run is None:
        return display.beneath(display.short(task.workflow_id), step)
    linked = format_html(
        "{} {}",
        display.link(display.page_of("workflowrun", run.pk), run.name),
        display.badge(run.status, run.status),
    )
    return display.beneath(linked, step)
