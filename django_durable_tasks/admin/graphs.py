"""Dependency diagrams in the admin, the operations on graphs, and the admin of dependencies."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import PermissionDenied
from django.db.models import F, Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext_lazy as _

from django_durable_tasks import conf
from django_durable_tasks.admin import actions, display, filters
from django_durable_tasks.admin.readonly import ReadOnlyAdmin, section
from django_durable_tasks.choices import REPLAYABLE, DependencyType, Gate, Status
from django_durable_tasks.exceptions import DependencyCycle, DurableTasksError
from django_durable_tasks.models import Task, TaskDependency, Tenant, WorkflowRun
from django_durable_tasks.operations import Operation
from django_durable_tasks.tasks.explanations import Level, Sentence
from django_durable_tasks.workflows import diagrams
from django_durable_tasks.workflows import operations as graph_operations
from django_durable_tasks.workflows.diagrams import FORMATS, Diagram, draw

# Dependency diagrams on pages and as files. The nodes of the SVG link to the pages of their tasks.


AT_ONCE = 2_000
"""The maximum number of tasks of a diagram that is drawn without a click."""
NEAR = 60
"""The number of tasks in the diagram on the page of a task."""
_TYPES = {"svg": "image/svg+xml", "json": "application/json"}
_ENDINGS = {"text": "txt", "mermaid": "mmd", "svg": "svg", "json": "json"}


def draws_diagrams() -> bool:
    """Return whether the optional app that draws diagrams is installed."""
    return "html" in FORMATS


def inline_diagram(diagram: Diagram) -> SafeString:
    """Return the drawing for a page, in which the nodes link to the pages of their tasks and all
    foreign text is escaped already; empty if the optional app is not installed.
    """
    if not draws_diagrams():
        return SafeString()
    nodes = tuple(replace(node, href=display.page_of("task", node.id)) for node in diagram.nodes)
    return mark_safe(draw(replace(diagram, nodes=nodes), "html"))  # noqa: S308


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
    model_admin: Any, request: HttpRequest, object_id: uuid.UUID, ending: str
) -> HttpResponse:
    """Return the diagram of a row as a file."""
    if not model_admin.has_view_permission(request) or not may_view_tasks(request):
        raise PermissionDenied
    row = model_admin.get_queryset(request).filter(pk=object_id).first()
    kind = next((kind for kind, used in _ENDINGS.items() if used == ending), "")
    if row is None or kind not in FORMATS:
        raise Http404("There is no such diagram.")
    diagram = diagrams.of_run(row) if isinstance(row, WorkflowRun) else diagrams.around(row, NEAR)
    name = f"{row._meta.model_name}-{row.pk}.{ending}"
    return HttpResponse(
        draw(diagram, kind),
        content_type=f"{_TYPES.get(kind, 'text/plain')}; charset=utf-8",
        headers={
            "Content-Disposition": f'attachment; filename="{name}"',
            "X-Content-Type-Options": "nosniff",
        },
    )


# The operations on a workflow run, on a task with dependencies, and on selected tasks.


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
RUN = "run"


def fitting_operations(task: Task, above: Sequence[TaskDependency]) -> dict[Operation, bool]:
    """Return which operations can change this task; ``above`` are its dependencies."""
    closed = {edge.gate for edge in above if edge.gate and edge.resolved_at is None}
    linked = bool(above) or task.has_dependents or task.workflow_id is not None
    blocked = task.status == Status.BLOCKED
    return {
        graph_operations.approve: blocked and Gate.APPROVAL in closed,
        graph_operations.reject: blocked and Gate.APPROVAL in closed,
        graph_operations.hold: task.status in LINKABLE and Gate.HOLD not in closed,
        graph_operations.unhold: blocked and Gate.HOLD in closed,
        graph_operations.retry_from: linked and task.status in {*REPLAYABLE, Status.SUCCESS},
        graph_operations.cancel_branch: task.has_dependents,
        graph_operations.force_run: bool(above) and task.status in (Status.BLOCKED, Status.SKIPPED),
    }


def chosen_view(model_admin: Any, request: HttpRequest, name: str) -> HttpResponse:
    """Return the page of an operation on the tasks that were selected on the page of a run."""
    operation = actions.permitted(model_admin, request, CHOSEN_OPERATIONS, name)
    texts = ",".join(request.POST.getlist(ACTION_CHECKBOX_NAME)).split(",")
    keys = [key for key in map(filters.key_in, texts) if key is not None]
    rows = model_admin.get_queryset(request).filter(pk__in=keys[: actions.AT_MOST + 1])
    return chosen(model_admin, request, operation, rows, filters.key_in(request.POST.get(RUN, "")))


def chosen(
    model_admin: Any,
    request: HttpRequest,
    operation: Operation,
    rows: QuerySet[Any],
    run_id: uuid.UUID | None = None,
) -> HttpResponse:
    """Return the confirmation page of an operation on these tasks, at most AT_MOST, which were
    selected in the list or on the page of a run.
    """
    actions.permitted(model_admin, request, CHOSEN_OPERATIONS, operation.name)
    keys = list(rows.values_list("pk", flat=True)[: actions.AT_MOST + 1])
    more = " More tasks were selected: run the operation again for the rest."
    back = display.page_of("workflowrun", run_id) if run_id else display.list_of("task")
    if not keys:
        model_admin.message_user(request, "Select the tasks first.", messages.WARNING)
        return HttpResponseRedirect(back)
    text = f"{operation.help}{more if len(keys) > actions.AT_MOST else ''}"
    keys = keys[: actions.AT_MOST]
    # One field for all ids: Django refuses forms of more than DATA_UPLOAD_MAX_NUMBER_FIELDS, 1,000,
    # fields.
    hidden = [(ACTION_CHECKBOX_NAME, ",".join(map(str, keys)))]
    page = actions.OperationPage(
        operation=operation,
        subject=Task.objects.using(rows.db).filter(pk__in=keys),
        title=str(operation.title),
        back=back,
        of=model_admin,
        keys=keys,
        help=text,
        address=reverse("admin:django_durable_tasks_graph_chosen", args=[operation.name]),
        hidden=[*hidden, *([(RUN, str(run_id))] if run_id else [])],
    )
    return actions.respond(model_admin, request, page)


# The context of a task's page: its dependencies, dependents, gates and cause.


EDGES = 50


def graph_of_page(model_admin: Any, request: HttpRequest, task: Any) -> dict[str, Any]:
    """Return the dependencies of a task for its page, with a fixed number of statements."""
    edges = TaskDependency.objects.using(task._state.db)
    above = list(
        edges.above([task.pk]).order_by(F("resolved_at").desc(nulls_first=True), "id")[: EDGES + 1]
    )
    below = list(edges.below([task.pk]).order_by("id")[: EDGES + 1]) if task.has_dependents else []
    tasks = display.named_tasks(
        [*(edge.depends_on_id for edge in above), *(edge.task_id for edge in below), task.cause]
    )
    in_graph = bool(above or below)
    buttons = model_admin.operation_buttons(request, task, fitting_operations(task, above))
    if task.status in LINKABLE and graph_operations.add_edge.is_permitted(request.user):
        add = f"{reverse('admin:django_durable_tasks_taskdependency_add')}?task={task.pk}"
        buttons.append({"url": add, "title": f"{graph_operations.add_edge.title}…"})
    return {
        "above": [
            {
                "upstream": display.badge("gate", edge.gate)
                if edge.depends_on_id is None
                else display.task_link(edge.upstream_id, tasks),
                "kind": "" if edge.depends_on_id is None else edge.dependency_type,
                "policy": edge.on_upstream_failure or "",
                "standing": standing(edge),
                "resolved": display.instant(edge.resolved_at),
                "who": who(edge),
                "remove": address_of_removal(edge) if may_remove(request, edge, task) else "",
            }
            for edge in above[:EDGES]
        ],
        "above_more": len(above) > EDGES,
        "below": [
            {
                "edge": edge,
                "task": display.task_link(edge.task_id, tasks),
                "standing": standing(edge),
            }
            for edge in below[:EDGES]
        ],
        "below_more": len(below) > EDGES,
        "all_above": display.list_of("taskdependency", task__id__exact=task.pk),
        "all_below": display.list_of("taskdependency", depends_on__id__exact=task.pk),
        "in_graph": in_graph,
        "sentences": list(sentences(task, above, tasks)),
        "buttons": buttons,
        "drawing": inline_diagram(diagrams.around(task, NEAR)) if in_graph else "",
        "draws": draws_diagrams(),
        "files": diagram_files_of("task", task.pk) if in_graph else [],
    }


def sentences(
    task: Task, above: list[TaskDependency], tasks: dict[Any, Task]
) -> Iterator[Sentence]:
    """Yield sentences about the gates and upstreams for which a task waits."""
    for edge in above:
        if edge.gate and edge.resolved_at is None:
            is_approval = edge.gate == Gate.APPROVAL
            condition = "It waits for an approval" if is_approval else "It is on hold"
            by = f", requested by {edge.placed_by}" if edge.placed_by else ""
            comment = f": {display.clean(edge.comment)}" if edge.comment else "."
            yield Sentence(Level.WAIT, f"{condition}{by}{comment}")
    cause = None if task.cause is None else tasks.get(task.cause)
    if cause is not None:
        name = f"{display.task_title(cause)} ({display.short(cause.pk)})"
        yield Sentence(Level.WAIT, f"It ended because of {name}, which is {cause.status}.")


def address_of_removal(edge: TaskDependency) -> str:
    """Return the URL of the page that removes a dependency."""
    return reverse("admin:django_durable_tasks_graph_unlink", args=[edge.pk])


def may_remove(request: HttpRequest, edge: TaskDependency, task: Task | None) -> bool:
    """Return whether the user may remove this dependency of a task that waits for it."""
    waits = task is not None and task.status == Status.BLOCKED and edge.depends_on_id is not None
    return waits and graph_operations.remove_edge.is_permitted(request.user)


def standing(edge: TaskDependency) -> SafeString:
    """Show whether an edge is resolved, and whether it is met."""
    outcome = display.badge(edge.outcome, edge.outcome) if edge.outcome else ""
    if edge.resolved_at is None:
        return format_html("{} {}", display.badge("waits", _("waits")), outcome)
    kind, word = ("success", _("met")) if edge.met else ("failed", _("not met"))
    return format_html("{} {}", display.badge(kind, word), outcome)


def who(edge: TaskDependency) -> str:
    """Return who added an edge or a gate, who opened it, and their comments."""
    placed = f"placed by {edge.placed_by}" if edge.placed_by else ""
    opened = f"opened by {edge.resolved_by}" if edge.resolved_by else ""
    authors = ", ".join(sentence for sentence in (placed, opened) if sentence)
    return ": ".join(sentence for sentence in (authors, display.clean(edge.comment)) if sentence)


def workflow_link(task: Task) -> SafeString | str:
    """Link the workflow run of a task, with its step; a deleted run is shown by its id."""
    if task.workflow_id is None:
        return display.NOTHING
    runs = WorkflowRun.objects.using(task._state.db).only("name", "status")
    run = runs.filter(pk=task.workflow_id).first()
    step = f"step {task.step}" if task.step else ""
    if run is None:
        return display.beneath(display.short(task.workflow_id), step)
    name = display.row_link("workflowrun", run.pk, run.name)
    badge = display.badge(run.status, run.status)
    return display.beneath(format_html("{} {}", name, badge), step)


# The pages that add a dependency between two tasks, and that remove one.


class DependencyForm(actions.OperationForm):
    """The dependent task, the fields of the operation, and the reason."""

    operation = graph_operations.add_edge
    arguments = tuple(graph_operations.add_edge.fields)

    task = forms.UUIDField(
        label=_("Task"),
        widget=forms.TextInput(attrs=actions.TASK_ID_ATTRIBUTES),
        help_text=_("The id of the task that will wait. It has not started."),
    )

    def __init__(self, data: Any = None, *, initial: dict[str, str] | None = None) -> None:
        super().__init__(data, initial=initial)
        self.fields.update(
            actions.form_fields(self.arguments),
            reason=actions.reason_field(graph_operations.add_edge),
        )

    def tasks(self, request: HttpRequest) -> tuple[Task, Task] | None:
        """Return the two tasks; None if one does not exist, which the form shows."""
        keys = {name: self.cleaned_data[name] for name in ("task", "upstream")}
        by_id, tenants = display.named_tasks(keys.values()), filters.tenants_of(request)
        for name, key in keys.items():
            if key not in by_id or (tenants is not None and by_id[key].tenant_id not in tenants):
                self.add_error(name, f"There is no task {key}.")
        return None if self.errors else (by_id[keys["task"]], by_id[keys["upstream"]])


_OF_ONE = ("task__id__exact", "depends_on__id__exact")


class StandingFilter(filters.AmongNewestFilter, filters.ChoiceFilter):
    """Filter by whether the edge is resolved, and by its outcome."""

    title = _("standing")
    parameter_name = "standing"
    of_one = _OF_ONE
    conditions: ClassVar = {
        "waits": (_("waits"), lambda edges: edges.filter(resolved_at=None)),
        "met": (_("met"), lambda edges: edges.filter(resolved_at__isnull=False, met=True)),
        "unmet": (_("not met"), lambda edges: edges.filter(met=False)),
    }


class KindFilter(filters.AmongNewestFilter):
    """Filter by the type of an edge, or the kind of a gate."""

    title = _("type")
    parameter_name = "kind"
    of_one = _OF_ONE

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(str(kind), str(kind)) for kind in (*DependencyType, *Gate)]

    def narrow(self, rows: QuerySet[Any], value: str) -> QuerySet[Any]:
        """Return the edges of this type, or the gates of this kind."""
        return (
            rows.filter(gate=value)
            if value in set(Gate)
            else rows.filter(depends_on__isnull=False, dependency_type=value[:12])
        )


class TenantOfTaskFilter(filters.AmongNewestFilter, filters.TenantFilter):
    """Filter by the tenant of the dependent task."""

    path = "task__tenant"
    of_one = _OF_ONE


@admin.display(description=_("waits for"))
def upstream(edge: Any) -> Any:
    """Link the upstream task; a gate has none."""
    if edge.depends_on_id is None:
        return _("a person")
    return display.task_link(edge.depends_on_id, edge.linked_tasks)


@admin.display(description=_("workflow"))
def _workflow(edge: Any) -> SafeString | str:
    """Link the workflow run of the task."""
    task = Task.objects.using(conf.settings().DATABASE).filter(pk=edge.task_id).first()
    return workflow_link(task) if task else display.NOTHING


_WAITER = display.column(
    _("task"), lambda edge: display.task_link(edge.task_id, edge.linked_tasks), "waiter"
)
# The required ending of the upstream, or the kind of gate.
_KIND = display.column(_("type"), lambda edge: edge.gate or edge.dependency_type)
# The policy for another ending of the upstream.
_POLICY = display.column(
    _("otherwise"),
    lambda edge: (
        edge.on_upstream_failure or (display.NOTHING if edge.gate else _("the task's own"))
    ),
)
_STANDING = display.column(_("standing"), standing, "state")
_TENANT = display.column(_("tenant"), lambda edge: edge.tenant_name or display.NOTHING)
_WHO = display.column(_("who and why"), lambda edge: who(edge) or display.NOTHING)


@admin.register(TaskDependency)
class TaskDependencyAdmin(ReadOnlyAdmin):
    """Dependencies; they are added and removed by operations only."""

    tenant_path = "task__tenant"
    list_display = (_WAITER, upstream, _KIND, _POLICY, _STANDING, "resolved_at", _TENANT, _WHO)
    list_display_links = (_KIND,)
    list_filter = (StandingFilter, KindFilter, TenantOfTaskFilter)
    lookups_allowed = frozenset(_OF_ONE)
    sortable_by = ()
    ordering = ("-id",)
    search_fields = ("task__id",)
    search_help_text = _("The complete id of a task or of a workflow run.")
    actions = ()
    operations = (graph_operations.add_edge, graph_operations.remove_edge)
    fieldsets = (
        section(
            None,
            (_WAITER, upstream),
            (_KIND, _POLICY),
            (_STANDING, "resolved_at"),
            (_TENANT, _workflow),
            ("placed_by", "resolved_by"),
            "comment",
        ),
    )

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Edges are added by a form that calls the operation."""
        return graph_operations.add_edge.is_permitted(request.user)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        key = filters.key_in(search_term)
        if key is None:
            return (queryset.none() if search_term.strip() else queryset), False
        # Two queries, each by an index; one OR over both tables would scan them.
        of_run = WorkflowRun.objects.using(queryset.db).filter(pk=key).exists()
        condition = Q(task__workflow=key) if of_run else Q(task=key) | Q(depends_on=key)
        return queryset.filter(condition), False

    def pages(self) -> Iterable[tuple[str, Callable[..., Any], str]]:
        yield "<int:edge_id>/remove/", self.unlink_view, "graph_unlink"

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> Any:
        """Show the form of a new edge, then what it would change, then add it by the operation."""
        if not self.has_add_permission(request) or not self.has_view_permission(request):
            raise PermissionDenied
        posted = request.method == "POST"
        # Links on other pages prefill the form by their query string.
        linked = {name: request.GET[name] for name in ("task", "upstream") if name in request.GET}
        form = DependencyForm(request.POST if posted else None, initial=linked)
        preview: dict[str, Any] = {}
        if posted and form.is_valid() and (pair := form.tasks(request)) is not None:
            task, upstream = pair
            confirmed = actions.DO in request.POST
            try:
                report = graph_operations.add_edge.perform(
                    task,
                    by=actions.who(request),
                    reason=form.reason,
                    dry_run=not confirmed,
                    **form.values() | {"upstream": upstream},
                ).value
            except DurableTasksError as refused:
                form.add_error(
                    "upstream" if isinstance(refused, DependencyCycle) else None, str(refused)
                )
            else:
                if confirmed:
                    waits, awaited = display.task_title(task), display.task_title(upstream)
                    # The name does not come first: the templates of the admin capitalize the first
                    # letter.
                    kind, changed = form.cleaned_data["type"], actions.summed_up(report)
                    message = f"Now {waits} waits for {awaited} ({kind}). {changed}"
                    entry = f"Dependency on {upstream.pk} added. {message} {form.reason}".strip()
                    task_admin = self.admin_site.get_model_admin(Task)
                    actions.remember(task_admin, request, [task.pk], entry)
                    self.message_user(request, message)
                    return HttpResponseRedirect(display.page_of("task", task.pk))
                tasks = {row.pk: row for row in pair}
                preview = {
                    "previewed": True,
                    "below_link": display.task_link(task.pk, tasks),
                    "upstream_link": display.task_link(upstream.pk, tasks),
                    **actions.changes(report),
                }
        title, back = graph_operations.add_edge.title, display.list_of("taskdependency")
        return self.page(
            request, "taskdependency/add", title, form=form, do=actions.DO, back=back, **preview
        )

    def unlink_view(self, request: HttpRequest, edge_id: int) -> HttpResponse:
        """Show what the removal of a dependency would change, and remove it."""
        operation = graph_operations.remove_edge
        actions.permitted(self, request, [operation], operation.name)
        edges = self.get_queryset(request).filter(pk=edge_id, depends_on__isnull=False)
        edge: TaskDependency | None = edges.first()
        tasks = {} if edge is None else display.named_tasks([edge.task_id, edge.depends_on_id])
        if edge is None or edge.task_id not in tasks:
            raise Http404("No dependency between tasks has this id.")
        task = tasks[edge.task_id]
        # The upstream may be pruned. It must still be possible to release its dependent task.
        upstream = tasks.get(edge.upstream_id) or Task(
            id=edge.upstream_id, name=str(edge.upstream_id)
        )
        waits, ended = display.task_title(task), display.task_title(upstream)
        page = actions.OperationPage(
            operation=operation,
            subject=task,
            values={"upstream": upstream},
            title=f"Remove a dependency: {waits} no longer waits for {ended}",
            back=display.page_of("task", task.pk),
            of=self.admin_site.get_model_admin(Task),
            keys=[task.pk],
            note=f"Dependency on {edge.upstream_id} removed. ",
            help=operation.help,
            address=request.path,
        )
        return actions.respond(self, request, page)

    def attach(self, rows: list[Any]) -> None:
        """Read names, statuses and tenants of the tasks at both ends, which may have been deleted:
        two statements for any number of edges.
        """
        keys = [key for edge in rows for key in (edge.task_id, edge.depends_on_id)]
        tasks = display.named_tasks(keys)
        tenants = Tenant.objects.using(conf.settings().DATABASE).in_bulk(
            {task.tenant_id for task in tasks.values()}
        )
        for edge in rows:
            task = tasks.get(edge.task_id)
            edge.linked_tasks = tasks
            edge.tenant_name = "" if task is None else str(tenants.get(task.tenant_id, ""))

    def page_context(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        """Add the removal of an edge, or the operations that open its gate."""
        task = row.linked_tasks.get(row.task_id)
        buttons: list[dict[str, Any]] = []
        if task is not None and row.gate and row.resolved_at is None:
            opening = (
                (graph_operations.approve, graph_operations.reject)
                if row.gate == Gate.APPROVAL
                else (graph_operations.unhold,)
            )
            fits = dict.fromkeys(opening, task.status == Status.BLOCKED)
            task_admin: Any = self.admin_site.get_model_admin(Task)
            buttons = task_admin.operation_buttons(request, task, fits)
        elif may_remove(request, row, task):
            title, url = f"{graph_operations.remove_edge.title}…", address_of_removal(row)
            buttons = [{"url": url, "posts": True, "title": title}]
        return {"buttons": buttons}
