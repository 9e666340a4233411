"""The admin of workflow runs."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.admin import (
    display,
    filters,
    graph_images,
    graph_pages,
    progress,
    workflow_filters,
    workflow_page,
)
from django_durable_tasks.admin.graph_actions import CHOSEN_OPERATIONS, RUN_OPERATIONS
from django_durable_tasks.admin.readonly import ReadOnlyAdmin
from django_durable_tasks.models import RecurringTask, WorkflowRun
from django_durable_tasks.models.clock import DatabaseNow

_CREATED = display.instant_of("created_at", _("started at"))
_COMPLETED = display.instant_of("completed_at", _("completed at"))
_DEADLINE = display.instant_of("deadline_at", _("deadline"))
_STOP_REQUESTED = display.instant_of("cancel_requested_at", _("stop requested at"))
_FIRED = display.instant_of("fire_time", _("fire time"))
_UPDATED = display.instant_of("updated_at", _("counted at"))


@admin.register(WorkflowRun)
class WorkflowRunAdmin(ReadOnlyAdmin):
    """Runs of workflows."""

    named_by = ("name",)
    list_display = ("named", "state", "progressed", "tenant", "key", "started", "took", "due")
    list_filter = (
        "status",
        workflow_filters.RunConditionFilter,
        workflow_filters.WorkflowNameFilter,
        filters.TenantFilter,
        filters.CreatedFilter,
    )
    lookups_allowed = frozenset({"status__exact", "root__exact"})
    sortable_by = ()
    search_fields = ("name",)
    search_help_text = _("A complete id or key, or a part of a name.")
    actions = ()
    operations = (*RUN_OPERATIONS, *CHOSEN_OPERATIONS)
    change_form_template = "admin/django_durable_tasks/workflowrun/change_form.html"
    readonly_fields = (
        "state",
        "took",
        "why_it_ended",
        "schedule_link",
        _CREATED,
        _COMPLETED,
        _DEADLINE,
        _STOP_REQUESTED,
        _FIRED,
        _UPDATED,
    )
    fieldsets: ClassVar = (
        (
            None,
            {
                "fields": (
                    ("state", "why_it_ended"),
                    ("tenant", "key"),
                    (_CREATED, _COMPLETED),
                    ("took", _DEADLINE),
                    ("schedule_link", _FIRED),
                    (_STOP_REQUESTED, _UPDATED),
                )
            },
        ),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request).annotate(seen_at=DatabaseNow())
        return rows.select_related("tenant")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        return queryset.filter(filters.by_id_or(search_term, "name__icontains", "key")), False

    def get_urls(self) -> list[URLPattern]:
        diagram = self.admin_site.admin_view(graph_images.file_view(self, graph_images.of_run))
        graph_view = self.admin_site.admin_view(graph_pages.run_view(self))
        return [
            path(
                "<uuid:object_id>/graph.<str:ending>",
                diagram,
                name="django_durable_tasks_workflowrun_graph",
            ),
            path(
                "<uuid:object_id>/do/<str:name>/", graph_view, name="django_durable_tasks_graph_run"
            ),
            *super().get_urls(),
        ]

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Add progress, diagram, tasks, related runs and the buttons of the operations."""
        context.update(workflow_page.of_page(request, context["original"]))
        return super().render_change_form(request, context, *args, **kwargs)

    # Columns and fields ---------------------------------------------------------------------------

    @admin.display(description=_("workflow"))
    def named(self, run: WorkflowRun) -> SafeString | str:
        """Show the name, the end of the id, and whether it is an inner run."""
        part = _("part of %s") % display.short(run.parent) if run.parent else ""
        return display.beneath(
            run.name, " · ".join(str(text) for text in (display.short(run.pk), part) if text)
        )

    @admin.display(description=_("status"))
    def state(self, run: Any) -> SafeString | str:
        """Show the status and further conditions."""
        return display.badges(progress.marks(run))

    @admin.display(description=_("progress"))
    def progressed(self, run: WorkflowRun) -> SafeString:
        """Show how many tasks have ended in each status."""
        return progress.cell(run)

    @admin.display(description=_("started"))
    def started(self, run: Any) -> str:
        """Show the age."""
        return display.since(run.created_at, run.seen_at)

    @admin.display(description=_("duration"))
    def took(self, run: Any) -> str:
        """Show the duration, up to now if the run is open."""
        return progress.took(run)

    @admin.display(description=_("deadline"))
    def due(self, run: Any) -> str:
        """Show the time until its deadline."""
        return (
            display.since(run.deadline_at, run.seen_at)
            if run.is_open
            else display.instant(run.deadline_at)
        )

    @admin.display(description=_("reason"))
    def why_it_ended(self, run: WorkflowRun) -> str:
        """Show the reason of the ending."""
        return display.clean(run.reason) or display.NOTHING

    @admin.display(description=_("recurring task"))
    def schedule_link(self, run: WorkflowRun) -> SafeString | str:
        """Link the schedule that created it; a deleted one is shown by its id."""
        if run.recurring_task is None:
            return display.NOTHING
        row = (
            RecurringTask.objects.using(run._state.db)
            .only("name")
            .filter(pk=run.recurring_task)
            .first()
        )
        if row is None:
            return display.short(run.recurring_task)
        return display.link(display.page_of("recurringtask", row.pk), row.name)
