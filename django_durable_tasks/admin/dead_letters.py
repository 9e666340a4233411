"""The admin of dead letters: tasks that failed, why and after how many attempts, and how they were
closed.
"""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.admin import display, filters
from django_durable_tasks.admin.actions import action_of, labelled
from django_durable_tasks.admin.readonly import NewestRowsAdmin, section
from django_durable_tasks.admin.tasks import may_edit_arguments
from django_durable_tasks.choices import REPLAYABLE
from django_durable_tasks.models import DeadLetter, TaskExecutionLog
from django_durable_tasks.operations.operation import Operation
from django_durable_tasks.tasks import operator_actions


def _replay_edited(
    model_admin: Any, request: HttpRequest, rows: QuerySet[Any]
) -> HttpResponse | None:
    """Redirect to the page on which the arguments of one task are edited."""
    replayable = rows.filter(operator_actions.OPEN_LETTER, task__status__in=REPLAYABLE)
    ids = list(replayable.values_list("task_id", flat=True)[:2])
    if len(ids) == 1 and rows.count() == 1:
        return HttpResponseRedirect(reverse("admin:django_durable_tasks_task_replay", args=ids))
    message = "Select exactly one open dead letter to edit its arguments."
    model_admin.message_user(request, message, messages.WARNING)
    return None


@admin.display(description=_("same error"))
def _alike(letter: DeadLetter) -> SafeString:
    """Link to all dead letters of the same error."""
    letters = display.list_of("deadletter", fingerprint__exact=letter.fingerprint)
    return display.link(letters, letter.fingerprint[:8])


@admin.display(description=_("traceback"))
def _last_trace(letter: DeadLetter) -> SafeString | str:
    """Show the traceback of the last attempt."""
    rows = TaskExecutionLog.objects.using(letter._state.db).filter(
        task=letter.task_id, attempt_number__lte=letter.attempts
    )
    traces = rows.exclude(traceback="").order_by("-id").values_list("traceback", flat=True)
    text = display.clean(traces.first() or "")
    return display.folded(_("traceback of the last attempt"), text, is_open=True)


_TASK = display.column(
    _("task"),
    lambda letter: display.beneath(letter.task.name, display.first_line(letter.error_message)),
)
_QUEUE = display.column(_("queue"), lambda letter: letter.task.queue)
_CASE = display.column(
    _("state"),
    lambda letter: display.badge(letter.resolution or "open", letter.resolution or _("open")),
)
_CALL = display.column(
    _("arguments"), lambda letter: display.arguments_block(letter.task.name, letter)
)


@admin.register(DeadLetter)
class DeadLetterAdmin(NewestRowsAdmin):
    """Dead letters; open ones first."""

    named_by = ("task", "reason")
    labels: ClassVar = {"created_at": _("failed at"), "resolved_at": _("closed at")}
    list_display = ("id", _TASK, _QUEUE, "reason", "attempts", "created_at", _alike, _CASE)
    list_filter = (
        filters.OpenFilter,
        filters.ReasonOfFailureFilter,
        filters.QueueOfTaskFilter,
        filters.NameOfTaskFilter,
        filters.TenantFilter,
    )
    without_index = frozenset({"reason", "queue", "name", "tenant"})
    lookups_allowed = frozenset({"fingerprint__exact", "task__id__exact"})
    sortable_by = ()
    search_fields = ("task__name",)
    search_help_text = _(
        "The complete id, key or idempotency key of a task, or a part of its name."
    )
    actions = (
        action_of(operator_actions.replay_letters),
        labelled(_replay_edited, operator_actions.replay_edited),
        action_of(operator_actions.discard_letters),
    )
    fieldsets = (
        section(None, "task", _QUEUE, ("reason", "attempts"), ("created_at", _alike), _CASE),
        section(_("Last error"), "error_message", _last_trace),
        section(_("Call"), _CALL),
        section(_("Closed"), ("resolution", "resolved_at"), "resolved_by", "comment"),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows = super().get_queryset(request).select_related("task")
        return rows.defer("task__result", "task__options", "task__progress", "task__last_error")

    def filters_without_index(self, request: HttpRequest) -> bool:
        """Return whether the request has a filter that no index serves: among all dead letters, or
        for closed ones. The open ones have an index, and are few.
        """
        closed = request.GET.get("case", "all") != "all"
        return self.searches_all(request) and (closed or super().filters_without_index(request))

    def searches_all(self, request: HttpRequest) -> bool:
        """Return whether closed dead letters are shown too."""
        return bool(request.GET.get("case"))

    def page_context(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        permitted = self.get_actions(request) if row.open_task else {}
        offered: list[Any] = [one for one in self.actions if one.__name__ in permitted]
        buttons = [
            {"action": one.__name__, "title": f"{one.operation.title_for(1)}…"} for one in offered
        ]
        return {"buttons": buttons, "subtitle": self.line_of(row)}

    def line_of(self, row: Any) -> str:
        """Return the task with its error."""
        error = display.first_line(row.error_message)
        return f"{row.task.name} {display.short(row.task_id)}: {row.reason} {error}".strip()

    def permits(self, request: HttpRequest, operation: Operation) -> bool:
        """Return whether the user may edit arguments; the form shows them unmasked."""
        if operation is operator_actions.replay_edited and not may_edit_arguments(request):
            return False
        return super().permits(request, operation)
