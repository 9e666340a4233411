"""The admin of dependencies and gates, and the pages that add and remove them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from django import forms
from django.contrib import admin
from django.contrib.admin.models import CHANGE, LogEntry
from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.safestring import SafeString
from django.utils.translation import gettext
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
from django_durable_tasks.admin.readonly import ReadOnlyAdmin
from django_durable_tasks.choices import DependencyType, Gate
from django_durable_tasks.exceptions import DependencyCycle, DurableTasksError
from django_durable_tasks.models import Task, TaskDependency, Tenant, WorkflowRun
from django_durable_tasks.workflows import operations as graph_operations

# The pages that add a dependency between two tasks, and that remove one.


_PAGE = "admin/django_durable_tasks/taskdependency/add.html"


class DependencyForm(OperationForm):
    """The dependent task, the fields of the operation, and the reason."""

    operation = graph_operations.add_edge

    task = forms.UUIDField(
        label=_("Task"),
        widget=forms.TextInput(attrs=TASK_ID_ATTRIBUTES),
        help_text=_("The id of the task that will wait. It has not started."),
    )

    def __init__(self, data: Any = None, *, initial: dict[str, str] | None = None) -> None:
        super().__init__(data, initial=initial)
        self.fields.update(
            form_fields(graph_operations.add_edge), reason=reason_field(graph_operations.add_edge)
        )


def _tasks(screen: Any, request: HttpRequest, form: DependencyForm) -> tuple[Task, Task] | None:
    """Return the two tasks; None if one does not exist, which the form shows."""
    keys = {name: form.cleaned_data[name] for name in ("task", "upstream")}
    known, tenants = dependencies_cell.named(keys.values()), staff_tenants.tenants_of(request)
    if tenants is not None:
        known = {key: task for key, task in known.items() if task.tenant_id in tenants}
    for name, key in keys.items():
        if key not in known:
            form.add_error(name, gettext("There is no task %s.") % key)
    return None if form.errors else (known[keys["task"]], known[keys["upstream"]])


def _link(
    request: HttpRequest, form: DependencyForm, pair: tuple[Task, Task], *, dry_run: bool
) -> Any:
    """Add the dependency, or make a dry run; None if it was refused, which the form shows."""
    task, upstream = pair
    values = form.values() | {"upstream": upstream}
    by = actions.who(request)
    try:
        return graph_operations.add_edge.perform(
            task, by=by, reason=form.reason, dry_run=dry_run, **values
        ).value
    except DurableTasksError as refused:
        field = "upstream" if isinstance(refused, DependencyCycle) else None
        form.add_error(field, str(refused))
        return None


def add_dependency(screen: Any, request: HttpRequest) -> HttpResponse:
    """Show the form, then what the dependency would change, then add it."""
    if not screen.has_add_permission(request) or not screen.has_view_permission(request):
        raise PermissionDenied
    posted = request.method == "POST"
    form = DependencyForm(request.POST if posted else None, initial=_initial(request))
    shown: dict[str, Any] = {}
    if posted and form.is_valid() and (pair := _tasks(screen, request, form)) is not None:
        confirmed = actions.DO in request.POST
        report = _link(request, form, pair, dry_run=not confirmed)
        if report is not None and confirmed:
            return _added(screen, request, form, pair, report)
        shown = (
            {} if report is None else {"previewed": True, **_pair(pair), **actions.changes(report)}
        )
    context = {
        **screen.admin_site.each_context(request),
        "opts": screen.opts,
        "media": screen.media,
        "form": form,
        "title": graph_operations.add_edge.title,
        "do": actions.DO,
        "back": display.list_of("taskdependency"),
        **shown,
    }
    return TemplateResponse(request, _PAGE, context)


def _pair(pair: tuple[Task, Task]) -> dict[str, Any]:
    known = {task.pk: task for task in pair}
    return {
        "below_link": dependencies_cell.task_link(pair[0].pk, known),
        "upstream_link": dependencies_cell.task_link(pair[1].pk, known),
    }


def _added(
    screen: Any, request: HttpRequest, form: DependencyForm, pair: tuple[Task, Task], report: Any
) -> HttpResponse:
    task, upstream = pair
    # The name does not come first: the templates of the admin capitalize the first letter.
    message = gettext("Now %(task)s waits for %(upstream)s (%(kind)s).") % {
        "task": dependencies_cell.title(task),
        "upstream": dependencies_cell.title(upstream),
        "kind": form.cleaned_data["type"],
    }
    message = f"{message} {actions.summed_up(report)}"
    remember(
        request,
        task,
        f"Dependency on {upstream.pk} added. {message} {form.cleaned_data['reason']}".strip(),
    )
    screen.message_user(request, message)
    return HttpResponseRedirect(display.page_of("task", task.pk))


def _initial(request: HttpRequest) -> dict[str, str]:
    """Return the initial values from the query string, which links on other pages set."""
    return {name: request.GET[name] for name in ("task", "upstream") if name in request.GET}


def remember(request: HttpRequest, task: Task, message: str) -> None:
    """Add an entry to the history of the dependent task."""
    rows: Any = Task.objects.using(conf.settings().DATABASE).filter(pk=task.pk).only("pk", "name")
    LogEntry.objects.log_actions(int(request.user.pk or 0), rows, CHANGE, message)


def unlink_view(screen: Any) -> Callable[[HttpRequest, int], HttpResponse]:
    """Return the view that removes a dependency, for this ModelAdmin."""

    def view(request: HttpRequest, edge_id: int) -> HttpResponse:
        if not screen.has_view_permission(request) or not graph_operations.remove_edge.is_permitted(
            request.user
        ):
            raise PermissionDenied
        edge: TaskDependency | None = (
            screen.get_queryset(request).filter(pk=edge_id, depends_on__isnull=False).first()
        )
        known = (
            dependencies_cell.named([edge.task_id, edge.depends_on_id]) if edge is not None else {}
        )
        if edge is None or edge.task_id not in known:
            raise Http404(gettext("No dependency between tasks has this id."))
        return actions.respond(screen, request, _removal(request, edge, known))

    return view


def _removal(
    request: HttpRequest, edge: TaskDependency, known: dict[Any, Task]
) -> actions.PendingOperation:
    task = known[edge.task_id]
    # The upstream may be pruned. It must still be possible to release its dependent task.
    upstream = known.get(edge.upstream_id) or Task(id=edge.upstream_id, name=str(edge.upstream_id))
    names = {"task": dependencies_cell.title(task), "upstream": dependencies_cell.title(upstream)}
    return actions.PendingOperation(
        title=gettext("Remove a dependency: %(task)s no longer waits for %(upstream)s") % names,
        operation=graph_operations.remove_edge,
        help=graph_operations.remove_edge.help,
        perform=lambda by, reason, dry_run: graph_operations.remove_edge.perform(
            task, upstream=upstream, by=by, reason=reason, dry_run=dry_run
        ),
        address=request.path,
        remember=lambda message: remember(
            request, task, f"Dependency on {edge.upstream_id} removed. {message}"
        ),
        back=display.page_of("task", task.pk),
    )


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
    operations = (graph_operations.add_edge, graph_operations.remove_edge)
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
        return graph_operations.add_edge.is_permitted(request.user)

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
        remove = self.admin_site.admin_view(unlink_view(self))
        return [
            path("<int:edge_id>/remove/", remove, name="django_durable_tasks_graph_unlink"),
            *super().get_urls(),
        ]

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show the form of a new edge, and add it by the operation."""
        return add_dependency(self, request)

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
        context["buttons"] = graphs.buttons_of_edge(request, edge, edge.known.get(edge.task_id))
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
        return graphs.standing(edge)

    @admin.display(description=_("tenant"))
    def tenant(self, edge: Any) -> str:
        """Show the tenant."""
        return edge.tenant_name or display.NOTHING

    @admin.display(description=_("who and why"))
    def approved_by(self, edge: TaskDependency) -> str:
        """Show who added and opened the gate, and the comments."""
        return graphs.who(edge) or display.NOTHING

    @admin.display(description=_("comment"))
    def masked_comment(self, edge: TaskDependency) -> str:
        """Show the comment."""
        return display.clean(edge.comment) or display.NOTHING

    @admin.display(description=_("workflow"))
    def workflow(self, edge: Any) -> SafeString | str:
        """Link the workflow run of the task."""
        task = Task.objects.using(conf.settings().DATABASE).filter(pk=edge.task_id).first()
        return graphs.workflow_link(task) if task else display.NOTHING


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
