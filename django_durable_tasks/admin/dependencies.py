"""The admin of dependencies and gates."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from django_durable_tasks import conf
from django_durable_tasks.admin import (
    dependencies_cell,
    dependency_form,
    display,
    filters,
    task_graph,
)
from django_durable_tasks.admin.readonly import ReadOnlyAdmin
from django_durable_tasks.models import Task, TaskDependency, Tenant, WorkflowRun
from django_durable_tasks.operations.dependencies import ADD, REMOVE
from django_durable_tasks.rules.dependencies import DependencyType, Gate

_RESOLVED = display.instant_of("resolved_at", _("resolved at"))
LOOKED_AT = 200_000
"""Filters without an index search this many of the newest edges, unless one task is selected."""
_OF_ONE = ("task__id__exact", "depends_on__id__exact")


class _AmongNewest(filters.ScreenFilter):
    """A filter that reads at most the newest edges."""

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any] | None:
        found = super().queryset(request, queryset)
        if found is None or any(name in request.GET for name in _OF_ONE):
            return found
        edges = TaskDependency.objects.using(found.db).order_by("-pk")
        newest = edges.values_list("pk", flat=True).first() or 0
        return found.filter(pk__gt=newest - LOOKED_AT)


class StandingFilter(_AmongNewest):
    """Filter by whether the edge is resolved, and by its outcome."""

    title = _("standing")
    parameter_name = "standing"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("waits", _("waits")), ("met", _("met")), ("unmet", _("not met"))]

    def narrow(self, rows: QuerySet[Any], value: str) -> QuerySet[Any]:
        """Return the edges in this state."""
        conditions = {
            "waits": Q(resolved_at=None),
            "met": Q(resolved_at__isnull=False, met=True),
            "unmet": Q(met=False),
        }
        return rows.filter(conditions[value]) if value in conditions else rows.none()


class KindFilter(_AmongNewest):
    """Filter by the type of an edge, or the kind of a gate."""

    title = _("type")
    parameter_name = "kind"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(str(kind), str(kind)) for kind in (*DependencyType, *Gate)]

    def narrow(self, rows: QuerySet[Any], value: str) -> QuerySet[Any]:
        """Return the edges of this type, or the gates of this kind."""
        return (
            rows.filter(gate=value)
            if value in set(Gate)
            else rows.filter(depends_on__isnull=False, dependency_type=value[:12])
        )


class TenantOfTaskFilter(_AmongNewest, filters.TenantFilter):
    """Filter by the tenant of the dependent task."""

    def narrow(self, rows: QuerySet[Any], value: str) -> QuerySet[Any]:
        """Return the edges of this tenant's tasks."""
        return (
            rows.filter(task__tenant_id=int(value))
            if value.isdecimal() and len(value) < 19
            else rows.none()
        )


@admin.register(TaskDependency)
class TaskDependencyAdmin(ReadOnlyAdmin):
    """Dependencies; they are added and removed by operations only."""

    tenant_path = "task__tenant"
    list_display = (
        "waiter",
        "upstream",
        "kind",
        "policy",
        "state",
        _RESOLVED,
        "tenant",
        "approved_by",
    )
    list_display_links = ("kind",)
    list_filter = (StandingFilter, KindFilter, TenantOfTaskFilter)
    lookups_allowed = frozenset(_OF_ONE)
    sortable_by = ()
    ordering = ("-id",)
    search_fields = ("task__id",)
    search_help_text = _("The complete id of a task or of a workflow run.")
    actions = ()
    operations = (ADD, REMOVE)
    fieldsets: ClassVar = (
        (
            None,
            {
                "fields": (
                    ("waiter", "upstream"),
                    ("kind", "policy"),
                    ("state", _RESOLVED),
                    ("tenant", "workflow"),
                    ("placed_by", "resolved_by"),
                    "masked_comment",
                )
            },
        ),
    )
    readonly_fields = (
        "waiter",
        "upstream",
        "kind",
        "policy",
        "state",
        _RESOLVED,
        "tenant",
        "workflow",
        "masked_comment",
    )
    change_form_template = "admin/django_durable_tasks/taskdependency/change_form.html"

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Edges are added by a form that calls the operation."""
        return ADD.is_permitted(request.user)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        key = filters.key_in(search_term)
        if key is None:
            return (queryset.none() if search_term.strip() else queryset), False
        # Two queries, each by an index; one OR over both tables would scan them.
        of_run = WorkflowRun.objects.using(queryset.db).filter(pk=key).exists()
        return queryset.filter(
            Q(task__workflow=key) if of_run else Q(task=key) | Q(depends_on=key)
        ), False

    def get_urls(self) -> list[URLPattern]:
        remove = self.admin_site.admin_view(dependency_form.unlink_view(self))
        return [
            path("<int:edge_id>/remove/", remove, name="django_durable_tasks_graph_unlink"),
            *super().get_urls(),
        ]

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show the form of a new edge, and add it by the operation."""
        return dependency_form.add(self, request)

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """Read the page, then the tasks of its edges, which may have been deleted."""
        page = super().get_changelist_instance(request)
        page.result_list = list(page.result_list)
        _attach(page.result_list)
        return page

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Any:
        """Read the edge and its two tasks."""
        edge = super().get_object(request, object_id, from_field)
        if edge is not None:
            _attach([edge])
        return edge

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Add the buttons of the operations."""
        edge = context["original"]
        context["buttons"] = task_graph.buttons_of_edge(request, edge, edge.known.get(edge.task_id))
        return super().render_change_form(request, context, *args, **kwargs)

    # Columns and fields ---------------------------------------------------------------------------

    @admin.display(description=_("task"))
    def waiter(self, edge: Any) -> SafeString:
        """Link the dependent task."""
        return dependencies_cell.task_link(edge.task_id, edge.known)

    @admin.display(description=_("waits for"))
    def upstream(self, edge: Any) -> Any:
        """Link the upstream task; a gate has none."""
        return (
            _("a person")
            if edge.depends_on_id is None
            else dependencies_cell.task_link(edge.depends_on_id, edge.known)
        )

    @admin.display(description=_("type"))
    def kind(self, edge: TaskDependency) -> str:
        """Show the required ending of the upstream, or the kind of gate."""
        return edge.gate or edge.dependency_type

    @admin.display(description=_("otherwise"))
    def policy(self, edge: TaskDependency) -> Any:
        """Show the policy for another ending of the upstream."""
        return edge.on_upstream_failure or (display.NOTHING if edge.gate else _("the task's own"))

    @admin.display(description=_("standing"))
    def state(self, edge: TaskDependency) -> SafeString:
        """Show whether the edge is resolved, and its outcome."""
        return task_graph.standing(edge)

    @admin.display(description=_("tenant"))
    def tenant(self, edge: Any) -> str:
        """Show the tenant."""
        return edge.tenant_name or display.NOTHING

    @admin.display(description=_("who and why"))
    def approved_by(self, edge: TaskDependency) -> str:
        """Show who added and opened the gate, and the comments."""
        return task_graph.who(edge) or display.NOTHING

    @admin.display(description=_("comment"))
    def masked_comment(self, edge: TaskDependency) -> str:
        """Show the comment."""
        return display.clean(edge.comment) or display.NOTHING

    @admin.display(description=_("workflow"))
    def workflow(self, edge: Any) -> SafeString | str:
        """Link the workflow run of the task."""
        task = Task.objects.using(conf.settings().DATABASE).filter(pk=edge.task_id).first()
        return task_graph.workflow_link(task) if task else display.NOTHING


def _attach(edges: list[Any]) -> None:
    """Read names, statuses and tenants of the tasks at both ends: two statements for any number of
    edges.
    """
    known = dependencies_cell.named(
        [key for edge in edges for key in (edge.task_id, edge.depends_on_id)]
    )
    tenant_ids = {task.tenant_id for task in known.values()}
    tenants = {
        row.pk: str(row)
        for row in Tenant.objects.using(conf.settings().DATABASE).filter(pk__in=tenant_ids)
    }
    for edge in edges:
        task = known.get(edge.task_id)
        edge.known, edge.tenant_name = (
            known,
            "" if task is None else tenants.get(task.tenant_id, ""),
        )
