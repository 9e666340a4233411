"""The admin of attempts, of the requests that they sent, and of the endpoints that received
them.
"""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from django_durable_tasks import conf
from django_durable_tasks.admin import display, filters
from django_durable_tasks.admin.readonly import NewestRowsAdmin, ReadOnlyInline
from django_durable_tasks.models import TaskExecutionLog

# The admin of attempts: where each ran, its result and its traceback; also as an inline of a
# task's page.


ON_A_PAGE = 50
_STARTED = display.instant_of("started_at", _("started at"))
_COMPLETED = display.instant_of("completed_at", _("completed at"))


class _Attempt:
    """Columns of one attempt."""

    @admin.display(description=_("status"))
    def state(self, row: TaskExecutionLog) -> SafeString:
        """Show the result."""
        return display.badge(row.status, row.status)

    @admin.display(description=_("duration"))
    def took(self, row: TaskExecutionLog) -> str:
        """Show how long it took."""
        return display.duration(row.duration)

    @admin.display(description=_("error"))
    def error_text(self, row: TaskExecutionLog) -> SafeString | str:
        """Show the whole error."""
        return display.block(display.clean(row.error_message))

    @admin.display(description=_("traceback"))
    def trace(self, row: TaskExecutionLog) -> SafeString | str:
        """Show the traceback, folded."""
        return display.folded(_("traceback"), display.clean(row.traceback))

    @admin.display(description=_("Celery id"))
    def carried_by(self, row: TaskExecutionLog) -> SafeString | str:
        """Show the id of the Celery message, with the result that django-celery-results stored for
        it.
        """
        return display.stored_result(row.celery_id)

    @admin.display(description=_("node"))
    def node_link(self, row: TaskExecutionLog) -> SafeString | str:
        """Link the node on which it ran."""
        return (
            display.link(display.page_of("node", row.node), row.node)
            if row.node
            else display.NOTHING
        )


class AttemptsInline(_Attempt, ReadOnlyInline):
    """The last attempts of a task, the newest first."""

    model = TaskExecutionLog
    template = "admin/django_durable_tasks/attempts.html"
    verbose_name_plural = _("attempts")
    fields = readonly_fields = (
        "attempt_number",
        "state",
        _STARTED,
        "took",
        "worker",
        "error_text",
        "trace",
        "carried_by",
    )
    ordering = ("-id",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows = super().get_queryset(request).using(conf.settings().DATABASE)
        newest = TaskExecutionLog.objects.filter(task=OuterRef("task")).order_by("-id").values("id")
        return rows.filter(id__gte=Coalesce(Subquery(newest[ON_A_PAGE - 1 : ON_A_PAGE]), 0))

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return bool(request.user.has_perm("django_durable_tasks.view_taskexecutionlog"))


@admin.register(TaskExecutionLog)
class TaskExecutionLogAdmin(_Attempt, NewestRowsAdmin):
    """Attempts of all tasks."""

    list_display = (
        "id",
        "task_name",
        "attempt_number",
        "state",
        _STARTED,
        _COMPLETED,
        "took",
        "worker",
    )
    list_filter = (
        "status",
        filters.QueueOfTaskFilter,
        filters.NameOfTaskFilter,
        filters.TenantFilter,
    )
    without_index = frozenset({"status__exact", "queue", "name", "tenant"})
    lookups_allowed = frozenset({"status__exact", "task__id__exact"})
    sortable_by = ()
    search_fields = ("task__name",)
    search_help_text = _(
        "The complete id of a task, a complete Celery id, or a part of a task's name."
    )
    fieldsets: ClassVar = (
        (
            None,
            {"fields": ("task_link", ("attempt_number", "state"), (_STARTED, _COMPLETED), "took")},
        ),
        (_("Error"), {"fields": ("error_text", "trace")}),
        (_("Where"), {"fields": ("worker", "node_link", "run_id", "carried_by", "tenant")}),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows = super().get_queryset(request).select_related("task", "tenant")
        fields = (
            field.name
            for field in TaskExecutionLog._meta.concrete_fields
            if field.name != "traceback"
        )
        return rows.only(*fields, "task__name", "tenant__name", "tenant__slug")

    @admin.display(description=_("task"))
    def task_name(self, row: TaskExecutionLog) -> SafeString | str:
        """Link the task by its name, and show the error."""
        task = display.link(display.page_of("task", row.task_id), row.task.name)
        return display.beneath(task, display.first_line(row.error_message))

    @admin.display(description=_("task"))
    def task_link(self, row: TaskExecutionLog) -> SafeString:
        """Link the task by name and id."""
        return display.link(display.page_of("task", row.task_id), row.task)
