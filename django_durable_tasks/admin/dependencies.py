"""The admin of dependencies and gates, and the pages that add and remove them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from django import forms
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from django_durable_tasks import conf
from django_durable_tasks.admin import (
    actions,
    dependencies_cell,
    display,
    filters,
    graphs,
    staff_tenants,
)
from django_durable_tasks.admin.actions import (
    TASK_ID_ATTRIBUTES,
    OperationForm,
    form_fields,
    reason_field,
)
from django_durable_tasks.admin.readonly import ReadOnlyAdmin, section
from django_durable_tasks.choices import DependencyType, Gate, Status
from django_durable_tasks.exceptions import DependencyCycle, DurableTasksError
from django_durable_tasks.models import Task, TaskDependency, Tenant, WorkflowRun
from django_durable_tasks.workflows import operations as graph_operations

# The pages that add a dependency between two tasks, and that remove one.


class DependencyForm(OperationForm):
    """The dependent task, the fields of the operation, and the reason."""

    operation = graph_operations.add_edge
    arguments = tuple(graph_operations.add_edge.fields)

    task = forms.UUIDField(
        label=_("Task"),
        widget=forms.TextInput(attrs=TASK_ID_ATTRIBUTES),
        help_text=_("The id of the task that will wait. It has not started."),
    )

    def __init__(self, data: Any = None, *, initial: dict[str, str] | None = None) -> None:
        super().__init__(data, initial=initial)
        self.fields.update(
            form_fields(self.arguments), reason=reason_field(graph_operations.add_edge)
        )

    def tasks(self, request: HttpRequest) -> tuple[Task, Task] | None:
        """Return the two tasks; None if one does not exist, which the form shows."""
        keys = {name: self.cleaned_data[name] for name in ("task", "upstream")}
        known, tenants = dependencies_cell.named(keys.values()), staff_tenants.tenants_of(request)
        for name, key in keys.items():
            if key not in known or (tenants is not None and known[key].tenant_id not in tenants):
                self.add_error(name, f"There is no task {key}.")
        return None if self.errors else (known[keys["task"]], known[keys["upstream"]])


def add_dependency(model_admin: Any, request: HttpRequest) -> Any:
    """Show the form, then what the dependency would change, then add it."""
    if not model_admin.has_add_permission(request) or not model_admin.has_view_permission(request):
        raise PermissionDenied
    posted = request.method == "POST"
    # Links on other pages prefill the form by their query string.
    linked = {name: request.GET[name] for name in ("task", "upstream") if name in request.GET}
    form = DependencyForm(request.POST if posted else None, initial=linked)
    shown: dict[str, Any] = {}
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
                waits, awaited = dependencies_cell.title(task), dependencies_cell.title(upstream)
                # The name does not come first: the templates of the admin capitalize the first
                # letter.
                kind, changed = form.cleaned_data["type"], actions.summed_up(report)
                message = f"Now {waits} waits for {awaited} ({kind}). {changed}"
                entry = f"Dependency on {upstream.pk} added. {message} {form.reason}".strip()
                task_admin = model_admin.admin_site.get_model_admin(Task)
                actions.remember(task_admin, request, [task.pk], entry)
                model_admin.message_user(request, message)
                return HttpResponseRedirect(display.page_of("task", task.pk))
            known = {row.pk: row for row in pair}
            shown = {
                "previewed": True,
                "below_link": dependencies_cell.task_link(task.pk, known),
                "upstream_link": dependencies_cell.task_link(upstream.pk, known),
                **actions.changes(report),
            }
    title, back = graph_operations.add_edge.title, display.list_of("taskdependency")
    return model_admin.page(
        request, "taskdependency/add", title, form=form, do=actions.DO, back=back, **shown
    )


def unlink_view(model_admin: Any, request: HttpRequest, edge_id: int) -> HttpResponse:
    """Show what the removal of a dependency would change, and remove it."""
    operation = graph_operations.remove_edge
    actions.permitted(model_admin, request, [operation], operation.name)
    edges = model_admin.get_queryset(request).filter(pk=edge_id, depends_on__isnull=False)
    edge: TaskDependency | None = edges.first()
    known = {} if edge is None else dependencies_cell.named([edge.task_id, edge.depends_on_id])
    if edge is None or edge.task_id not in known:
        raise Http404("No dependency between tasks has this id.")
    task = known[edge.task_id]
    # The upstream may be pruned. It must still be possible to release its dependent task.
    upstream = known.get(edge.upstream_id) or Task(id=edge.upstream_id, name=str(edge.upstream_id))
    waits, ended = dependencies_cell.title(task), dependencies_cell.title(upstream)
    page = actions.OperationPage(
        operation=operation,
        subject=task,
        values={"upstream": upstream},
        title=f"Remove a dependency: {waits} no longer waits for {ended}",
        back=display.page_of("task", task.pk),
        of=model_admin.admin_site.get_model_admin(Task),
        keys=[task.pk],
        note=f"Dependency on {edge.upstream_id} removed. ",
        help=operation.help,
        address=request.path,
    )
    return actions.respond(model_admin, request, page)


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
    return dependencies_cell.task_link(edge.depends_on_id, edge.known)


@admin.display(description=_("workflow"))
def _workflow(edge: Any) -> SafeString | str:
    """Link the workflow run of the task."""
    task = Task.objects.using(conf.settings().DATABASE).filter(pk=edge.task_id).first()
    return graphs.workflow_link(task) if task else display.NOTHING


_WAITER = display.column(
    _("task"), lambda edge: dependencies_cell.task_link(edge.task_id, edge.known), "waiter"
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
_STANDING = display.column(_("standing"), graphs.standing, "state")
_TENANT = display.column(_("tenant"), lambda edge: edge.tenant_name or display.NOTHING)
_WHO = display.column(_("who and why"), lambda edge: graphs.who(edge) or display.NOTHING)


@admin.register(TaskDependency)
class TaskDependencyAdmin(ReadOnlyAdmin):
    """Dependencies; they are added and removed by operations only."""

    tenant_path = "task__tenant"
    list_display = (*(_WAITER, upstream, _KIND, _POLICY, _STANDING, "resolved_at", _TENANT, _WHO),)
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
        yield "<int:edge_id>/remove/", functools.partial(unlink_view, self), "graph_unlink"

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> Any:
        """Show the form of a new edge, and add it by the operation."""
        return add_dependency(self, request)

    def attach(self, rows: list[Any]) -> None:
        """Read names, statuses and tenants of the tasks at both ends, which may have been deleted:
        two statements for any number of edges.
        """
        keys = [key for edge in rows for key in (edge.task_id, edge.depends_on_id)]
        known = dependencies_cell.named(keys)
        tenants = Tenant.objects.using(conf.settings().DATABASE).in_bulk(
            {task.tenant_id for task in known.values()}
        )
        for edge in rows:
            task = known.get(edge.task_id)
            edge.known = known
            edge.tenant_name = "" if task is None else str(tenants.get(task.tenant_id, ""))

    def page_context(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        """Add the removal of an edge, or the operations that open its gate."""
        task = row.known.get(row.task_id)
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
        elif graphs.may_remove(request, row, task):
            title, url = f"{graph_operations.remove_edge.title}…", graphs.address_of_removal(row)
            buttons = [{"url": url, "posts": True, "title": title}]
        return {"buttons": buttons}
