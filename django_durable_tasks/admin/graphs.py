"""Dependency diagrams in the admin, and the operations on graphs."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, LogEntry
from django.core.exceptions import PermissionDenied
from django.db.models import F, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _

from django_durable_tasks import conf
from django_durable_tasks.admin import actions, dependencies_cell, display
from django_durable_tasks.admin.actions import PendingOperation, respond
from django_durable_tasks.choices import REPLAYABLE, Gate, Status, WorkflowStatus
from django_durable_tasks.models import Task, TaskDependency, WorkflowRun
from django_durable_tasks.models.tasks import TaskQuerySet
from django_durable_tasks.operations.operation import APP, Operation
from django_durable_tasks.tasks.explanations import Level, Sentence
from django_durable_tasks.workflows import graph_data
from django_durable_tasks.workflows import operations as graph_operations
from django_durable_tasks.workflows.diagrams import FORMATS, Diagram, draw

# Dependency diagrams on pages and as files. The nodes of the SVG link to the pages of their tasks.


AT_ONCE = 2_000
"""The maximum number of tasks of a diagram that is drawn without a click."""
NEAR = 60
"""The number of tasks in the diagram on the page of a task."""
_TYPES = {"svg": "image/svg+xml", "json": "application/json"}
_ENDINGS = {"text": "txt", "mermaid": "mmd", "svg": "svg", "json": "json"}


def linked(diagram: Diagram) -> Diagram:
    """Return the diagram with a link from each node to the page of its task."""
    nodes = tuple(replace(node, href=display.page_of("task", node.id)) for node in diagram.nodes)
    return replace(diagram, nodes=nodes)


def draws_diagrams() -> bool:
    """Return whether the optional app that draws diagrams is installed."""
    return "html" in FORMATS


def inline_diagram(diagram: Diagram) -> SafeString:
    """Return the drawing for a page, in which all foreign text is escaped already; empty if the
    optional app is not installed.
    """
    return mark_safe(draw(linked(diagram), "html") if draws_diagrams() else "")  # noqa: S308


def may_view_tasks(request: HttpRequest) -> bool:
    """Return whether this user may view tasks, because a diagram contains their names."""
    return bool(request.user.has_perm("django_durable_tasks.view_task"))


def diagram_files_of(model: str, key: uuid.UUID) -> list[tuple[str, str]]:
    """Return the names and URLs of the diagram in each installed format."""
    name = f"admin:django_durable_tasks_{model}_graph"
    return [
        (kind, reverse(name, args=[key, ending]))
        for kind, ending in _ENDINGS.items()
        if kind in FORMATS
    ]


def diagram_view(
    screen: Any, read: Callable[[Any], Diagram]
) -> Callable[[HttpRequest, uuid.UUID, str], HttpResponse]:
    """Return the view that serves the diagram of a row as a file."""
    kinds = {ending: kind for kind, ending in _ENDINGS.items()}

    def view(request: HttpRequest, object_id: uuid.UUID, ending: str) -> HttpResponse:
        if not screen.has_view_permission(request) or not may_view_tasks(request):
            raise PermissionDenied
        row = screen.get_queryset(request).filter(pk=object_id).first()
        if row is None or kinds.get(ending) not in FORMATS:
            raise Http404(_("There is no such diagram."))
        kind = kinds[ending]
        answer = HttpResponse(
            draw(read(row), kind), content_type=f"{_TYPES.get(kind, 'text/plain')}; charset=utf-8"
        )
        answer["Content-Disposition"] = (
            f'attachment; filename="{row._meta.model_name}-{row.pk}.{ending}"'
        )
        answer["X-Content-Type-Options"] = "nosniff"
        return answer

    return view


def diagram_of_run(run: WorkflowRun) -> Diagram:
    """Read all tasks of a run."""
    return graph_data.of_run(run)


def diagram_around(task: Task) -> Diagram:
    """Read the tasks around a task, nearest first."""
    return graph_data.around(task, NEAR)


# Buttons of the operations on a workflow run, on a task with dependencies, and on selected tasks.


LINKABLE = (Status.BLOCKED, Status.PENDING, Status.QUEUED)
"""The statuses of a task to which a dependency can be added."""
RUN_OPERATIONS = (graph_operations.cancel_workflow, graph_operations.retry_workflow)
TASK_OPERATIONS = (
    graph_operations.approve,
    graph_operations.reject,
    graph_operations.hold,
    graph_operations.unhold,
    graph_operations.retry_from,
    graph_operations.cancel_branch,
    graph_operations.force_run,
)
CHOSEN_OPERATIONS = (graph_operations.force_run, graph_operations.force_complete)


def may_force(request: HttpRequest) -> bool:
    """Return whether the user may force tasks."""
    return graph_operations.force_run.is_permitted(request.user)


def chosen_tasks(keys: Sequence[uuid.UUID]) -> TaskQuerySet:
    """Return a queryset of these tasks."""
    found: TaskQuerySet = Task.objects.using(conf.settings().DATABASE).filter(pk__in=list(keys))
    return found


# Buttons ------------------------------------------------------------------------------------------


def address(row: Any, operation: Operation) -> str:
    """Return the URL of the page of an operation."""
    kind = "run" if isinstance(row, WorkflowRun) else "task"
    return reverse(f"admin:{APP}_graph_{kind}", args=[row.pk, operation.name])


def buttons_of_run(request: HttpRequest, run: WorkflowRun) -> list[dict[str, Any]]:
    """Return the buttons of the permitted operations that can change this run."""
    fits: dict[Operation, bool] = {
        graph_operations.cancel_workflow: run.is_open and run.cancel_requested_at is None,
        graph_operations.retry_workflow: run.status != WorkflowStatus.STARTING and run.ended > 0,
    }
    return _buttons(request, run, fits)


def buttons_of_task(
    request: HttpRequest, task: Task, above: Sequence[TaskDependency]
) -> list[dict[str, Any]]:
    """Return the buttons of the permitted operations that can change this task; ``above`` are its
    dependencies.
    """
    closed = {edge.gate for edge in above if edge.gate and edge.resolved_at is None}
    linked = bool(above) or task.has_dependents or task.workflow_id is not None
    blocked = task.status == Status.BLOCKED
    fits: dict[Operation, bool] = {
        graph_operations.approve: blocked and Gate.APPROVAL in closed,
        graph_operations.reject: blocked and Gate.APPROVAL in closed,
        graph_operations.hold: task.status in LINKABLE and Gate.HOLD not in closed,
        graph_operations.unhold: blocked and Gate.HOLD in closed,
        graph_operations.retry_from: linked
        and (task.status in REPLAYABLE or task.status == Status.SUCCESS),
        graph_operations.cancel_branch: task.has_dependents,
        graph_operations.force_run: bool(above) and task.status in (Status.BLOCKED, Status.SKIPPED),
    }
    return _buttons(request, task, fits)


def buttons_of_chosen() -> list[dict[str, Any]]:
    """Return the buttons of the operations on selected tasks."""
    return [
        {
            "address": reverse(f"admin:{APP}_graph_chosen", args=[operation.name]),
            "title": operation.title,
        }
        for operation in CHOSEN_OPERATIONS
    ]


def buttons_of_gate(request: HttpRequest, task: Task, gate: str) -> list[dict[str, Any]]:
    """Return the buttons of the operations that open a closed gate."""
    opening = (
        (graph_operations.approve, graph_operations.reject)
        if gate == Gate.APPROVAL
        else (graph_operations.unhold,)
    )
    return _buttons(request, task, dict.fromkeys(opening, task.status == Status.BLOCKED))


def _buttons(request: HttpRequest, row: Any, fits: dict[Operation, bool]) -> list[dict[str, Any]]:
    return [
        {"url": address(row, operation), "posts": True, "title": f"{operation.title}…"}
        for operation, fit in fits.items()
        if fit and operation.is_permitted(request.user)
    ]


# The pages of the operations on a run, on one task with dependencies, and on selected tasks.


RUN = "run"


def run_view(screen: Any) -> Callable[[HttpRequest, uuid.UUID, str], HttpResponse]:
    """Return the view of the operations on a run, for the ModelAdmin of runs."""

    def view(request: HttpRequest, object_id: uuid.UUID, name: str) -> HttpResponse:
        operation = _permitted(screen, request, RUN_OPERATIONS, name)
        run = screen.get_queryset(request).filter(pk=object_id).first()
        if run is None:
            raise Http404(_("No workflow run has this id."))
        title = f"{run.name} {display.short(run.pk)}"
        return respond(screen, request, _pending(request, operation, run, title))

    return view


def task_view(screen: Any) -> Callable[[HttpRequest, uuid.UUID, str], HttpResponse]:
    """Return the view of the operations on one task, for the ModelAdmin of tasks."""

    def view(request: HttpRequest, object_id: uuid.UUID, name: str) -> HttpResponse:
        operation = _permitted(screen, request, TASK_OPERATIONS, name)
        task = screen.get_queryset(request).filter(pk=object_id).first()
        if task is None:
            raise Http404(_("No task has this id."))
        title = f"{dependencies_cell.title(task)} {display.short(task.pk)}"
        return respond(screen, request, _pending(request, operation, task, title))

    return view


def chosen_view(screen: Any) -> Callable[[HttpRequest, str], HttpResponse]:
    """Return the view of the operations on selected tasks, for the ModelAdmin of tasks."""

    def view(request: HttpRequest, name: str) -> HttpResponse:
        operation = _permitted(screen, request, CHOSEN_OPERATIONS, name)
        texts = [
            text for one in request.POST.getlist(ACTION_CHECKBOX_NAME) for text in one.split(",")
        ]
        given = [key for key in map(_key, texts) if key is not None]
        rows = screen.get_queryset(request).filter(pk__in=given[: actions.AT_MOST + 1])
        return chosen(screen, request, operation, rows, _key(request.POST.get(RUN, "")))

    return view


def chosen(
    screen: Any,
    request: HttpRequest,
    operation: Operation,
    rows: QuerySet[Any],
    run_id: uuid.UUID | None = None,
) -> HttpResponse:
    """Return the confirmation page of an operation on these tasks, at most AT_MOST, which were
    selected in the list or on the page of a run.
    """
    _permitted(screen, request, CHOSEN_OPERATIONS, operation.name)
    keys = list(rows.values_list("pk", flat=True)[: actions.AT_MOST + 1])
    more = (
        _(" More tasks were selected: run the operation again for the rest.")
        if len(keys) > actions.AT_MOST
        else ""
    )
    keys = keys[: actions.AT_MOST]
    back = display.page_of("workflowrun", run_id) if run_id else display.list_of("task")
    if not keys:
        screen.message_user(request, _("Select the tasks first."), messages.WARNING)
        return HttpResponseRedirect(back)
    # One field for all ids: Django refuses forms of more than DATA_UPLOAD_MAX_NUMBER_FIELDS, 1,000,
    # fields.
    hidden = [
        (ACTION_CHECKBOX_NAME, ",".join(map(str, keys))),
        *([(RUN, str(run_id))] if run_id else []),
    ]
    pending = PendingOperation(
        title=str(operation.title),
        operation=operation,
        help=f"{operation.help}{more}",
        back=back,
        hidden=hidden,
        perform=lambda by, reason, dry_run: operation.perform(
            chosen_tasks(keys), by=by, reason=reason, dry_run=dry_run
        ),
        remember=lambda message: _remember(request, Task, keys, message),
        address=reverse(f"admin:{APP}_graph_chosen", args=[operation.name]),
    )
    return respond(screen, request, pending)


def _permitted(
    screen: Any, request: HttpRequest, offered: Sequence[Operation], name: str
) -> Operation:
    operation = next((one for one in offered if one.name == name), None)
    if operation is None:
        raise Http404(_("There is no such operation."))
    if not screen.has_view_permission(request) or not operation.is_permitted(request.user):
        raise PermissionDenied
    return operation


def _pending(request: HttpRequest, operation: Operation, row: Any, title: str) -> PendingOperation:
    modes = {mode.name: mode for mode in operation.modes}
    mode = modes.get(request.GET.get("mode", "")) or next(iter(operation.modes), None)
    here = request.path
    chosen_mode = {"mode": mode.name} if mode else {}
    many = operation.target.is_queryset
    return PendingOperation(
        title=f"{operation.title}: {title}",
        operation=operation,
        help=mode.help if mode else operation.help,
        back=display.page_of(row._meta.model_name, row.pk),
        address=f"{here}?mode={mode.name}" if mode else here,
        perform=lambda by, reason, dry_run: operation.perform(
            chosen_tasks([row.pk]) if many else row,
            by=by,
            reason=reason,
            dry_run=dry_run,
            **chosen_mode,
        ),
        remember=lambda message: _remember(request, type(row), [row.pk], message),
        tabs=[
            {"title": one.title, "address": f"{here}?mode={one.name}", "here": one is mode}
            for one in operation.modes
        ],
    )


def _remember(
    request: HttpRequest, model: type[Task] | type[WorkflowRun], keys: Sequence[Any], message: str
) -> None:
    """Add an entry to the history of each row."""
    rows: Any = (
        model._default_manager.using(conf.settings().DATABASE)
        .filter(pk__in=list(keys))
        .only("pk", "name")
    )
    LogEntry.objects.log_actions(int(request.user.pk or 0), rows, CHANGE, message)


def _key(text: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(text)
    except ValueError:
        return None


# The context of a task's page: its dependencies, dependents, gates and cause.


EDGES = 50


def graph_of_page(request: HttpRequest, task: Any) -> dict[str, Any]:
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
            *buttons_of_task(request, task, above),
            *_add(request, task),
        ],
        "drawing": inline_diagram(diagram_around(task)) if in_graph else "",
        "draws": draws_diagrams(),
        "files": diagram_files_of("task", task.pk) if in_graph else [],
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
    return waits and graph_operations.remove_edge.is_permitted(request.user)


def _removal(edge: TaskDependency) -> str:
    return reverse("admin:django_durable_tasks_graph_unlink", args=[edge.pk])


def buttons_of_edge(
    request: HttpRequest, edge: TaskDependency, task: Task | None
) -> list[dict[str, Any]]:
    """Return the buttons on the page of an edge: its removal, or the operations on its gate."""
    if task is not None and edge.gate and edge.resolved_at is None:
        return buttons_of_gate(request, task, edge.gate)
    return (
        [{"url": _removal(edge), "posts": True, "title": f"{graph_operations.remove_edge.title}…"}]
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
    if task.status not in LINKABLE or not graph_operations.add_edge.is_permitted(request.user):
        return []
    return [
        {
            "url": f"{reverse('admin:django_durable_tasks_taskdependency_add')}?task={task.pk}",
            "title": f"{graph_operations.add_edge.title}…",
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
