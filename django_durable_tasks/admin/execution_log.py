"""The admin of attempts: where each ran, its result and its traceback; also as an inline of a
task's page.
"""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from django_durable_tasks import conf
from django_durable_tasks.admin import display, filters
from django_durable_tasks.admin.readonly import NewestRowsAdmin, ReadOnlyInline, section
from django_durable_tasks.models import TaskExecutionLog

ON_A_PAGE = 50


@admin.display(description=_("task"))
def _task_and_error(row: TaskExecutionLog) -> SafeString | str:
    """Link the task by its name, and show the error."""
    task = display.row_link("task", row.task_id, row.task.name)
    return display.beneath(task, display.first_line(row.error_message))


_STATE = display.column(_("status"), lambda row: display.badge(row.status, row.status), "state")
_TOOK = display.column(_("duration"), lambda row: display.duration(row.duration), "took")
_TRACE = display.column(
    _("traceback"), lambda row: display.folded(_("traceback"), display.clean(row.traceback))
)
# The id of the Celery message, with the result that django-celery-results stored for it.
_MESSAGE = display.column(_("Celery id"), lambda row: display.stored_result(row.celery_id))
_NODE = display.column(_("node"), lambda row: display.row_link("node", row.node))
_STARTED, _ERROR = (
    display.column_of(TaskExecutionLog._meta.get_field(name))
    for name in ("started_at", "error_message")
)


class AttemptsInline(ReadOnlyInline):
    """The last attempts of a task, the newest first."""

    model = TaskExecutionLog
    template = "admin/django_durable_tasks/attempts.html"
    verbose_name_plural = _("attempts")
    fields = readonly_fields = (
        *("attempt_number", _STATE, _STARTED, _TOOK, "worker", _ERROR, _TRACE, _MESSAGE),
    )
    ordering = ("-id",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows = super().get_queryset(request).using(conf.settings().DATABASE)
        newest = TaskExecutionLog.objects.filter(task=OuterRef("task")).order_by("-id").values("id")
        return rows.filter(id__gte=Coalesce(Subquery(newest[ON_A_PAGE - 1 : ON_A_PAGE]), 0))

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return bool(request.user.has_perm("django_durable_tasks.view_taskexecutionlog"))


@admin.register(TaskExecutionLog)
class TaskExecutionLogAdmin(NewestRowsAdmin):
    """Attempts of all tasks."""

    list_display = (
        *(
            "id",
            _task_and_error,
            "attempt_number",
            _STATE,
            "started_at",
            "completed_at",
            _TOOK,
            "worker",
        ),
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
    fieldsets = (
        section(None, "task", ("attempt_number", _STATE), ("started_at", "completed_at"), _TOOK),
        section(_("Error"), "error_message", _TRACE),
        section(_("Where"), "worker", _NODE, "run_id", _MESSAGE, "tenant"),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows = super().get_queryset(request).select_related("task", "tenant")
        fields = {field.name for field in self.opts.concrete_fields} - {"traceback"}
        return rows.only(*fields, "task__name", "tenant__name", "tenant__slug")
