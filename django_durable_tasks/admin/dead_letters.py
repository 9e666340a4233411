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
from django_durable_tasks.admin.actions import action_of, labelled, title_of
from django_durable_tasks.admin.readonly import NewestRowsAdmin
from django_durable_tasks.admin.tasks import may_edit_arguments
from django_durable_tasks.choices import REPLAYABLE
from django_durable_tasks.models import DeadLetter, TaskExecutionLog
from django_durable_tasks.operations.operation import Operation
from django_durable_tasks.tasks import operator_actions

_CREATED = display.instant_of("created_at", _("failed at"))
_RESOLVED = display.instant_of("resolved_at", _("closed at"))


def _replay_edited(screen: Any, request: HttpRequest, rows: QuerySet[Any]) -> HttpResponse | None:
    """Redirect to the page on which the arguments of one task are edited."""
    ids = list(
        rows.filter(operator_actions.OPEN_LETTER, task__status__in=REPLAYABLE).values_list(
            "task_id", flat=True
        )[:2]
    )
    if len(ids) == 1 and rows.count() == 1:
        return HttpResponseRedirect(reverse("admin:django_durable_tasks_task_replay", args=ids))
    message = _("Select exactly one open dead letter to edit its arguments.")
    screen.message_user(request, message, messages.WARNING)
    return None


@admin.register(DeadLetter)
class DeadLetterAdmin(NewestRowsAdmin):
    """Dead letters; open ones first."""

    named_by = ("task", "reason")
    list_display = (
        "id",
        "task_name",
        "queue",
        "reason",
        "attempts",
        _CREATED,
        "fingerprint_link",
        "case",
    )
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
    change_form_template = "admin/django_durable_tasks/deadletter/change_form.html"
    fieldsets: ClassVar = (
        (
            None,
            {
                "fields": (
                    "task_link",
                    "queue",
                    ("reason", "attempts"),
                    (_CREATED, "fingerprint_link"),
                    "case",
                )
            },
        ),
        (_("Last error"), {"fields": ("error_text", "last_trace")}),
        (_("Call"), {"fields": ("arguments",)}),
        (_("Closed"), {"fields": (("resolution", _RESOLVED), "resolved_by", "comment")}),
    )
    readonly_fields = (
        "task_link",
        "queue",
        "fingerprint_link",
        "case",
        "error_text",
        "last_trace",
        "arguments",
        _CREATED,
        _RESOLVED,
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows = super().get_queryset(request).select_related("task")
        return rows.defer(
            "task__result",
            "task__options",
            "task__progress",
            "task__last_error",
        )

    def filters_without_index(self, request: HttpRequest) -> bool:
        """Return whether the request has a filter that no index serves: among all dead letters, or
        for closed ones. The open ones have an index, and are few.
        """
        closed = request.GET.get("case", "all") != "all"
        return self.searches_all(request) and (closed or super().filters_without_index(request))

    def searches_all(self, request: HttpRequest) -> bool:
        """Return whether closed dead letters are shown too."""
        return bool(request.GET.get("case"))

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Any:
        """Read the row, and whether the user may see unmasked arguments."""
        letter = super().get_object(request, object_id, from_field)
        if letter is not None:
            letter.read_plain = display.reads_secrets(request)
        return letter

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Add the buttons of the operations."""
        permitted: dict[str, Any] = (
            self.get_actions(request) if context["original"].open_task else {}
        )
        context["buttons"] = [
            {"action": name, "title": title_of(one)} for name, one in permitted.items()
        ]
        return super().render_change_form(request, context, *args, **kwargs)

    def permits(self, request: HttpRequest, operation: Operation) -> bool:
        """Return whether the user may edit arguments; the form shows them unmasked."""
        if operation is operator_actions.replay_edited and not may_edit_arguments(request):
            return False
        return super().permits(request, operation)

    # Columns and fields ---------------------------------------------------------------------------

    @admin.display(description=_("task"))
    def task_name(self, letter: DeadLetter) -> SafeString | str:
        """Show the name of the task, and its last error."""
        return display.beneath(letter.task.name, display.first_line(letter.error_message))

    @admin.display(description=_("task"))
    def task_link(self, letter: DeadLetter) -> SafeString:
        """Link the task."""
        return display.link(display.page_of("task", letter.task_id), letter.task)

    @admin.display(description=_("queue"))
    def queue(self, letter: DeadLetter) -> str:
        """Show the queue of the task."""
        return letter.task.queue

    @admin.display(description=_("same error"))
    def fingerprint_link(self, letter: DeadLetter) -> SafeString:
        """Link to all dead letters of the same error."""
        alike = display.list_of("deadletter", fingerprint__exact=letter.fingerprint)
        return display.link(alike, letter.fingerprint[:8])

    @admin.display(description=_("state"))
    def case(self, letter: DeadLetter) -> SafeString:
        """Show whether it is open."""
        return display.badge(letter.resolution or "open", letter.resolution or _("open"))

    @admin.display(description=_("error"))
    def error_text(self, letter: DeadLetter) -> SafeString | str:
        """Show the whole last error."""
        return display.block(display.clean(letter.error_message))

    @admin.display(description=_("traceback"))
    def last_trace(self, letter: DeadLetter) -> SafeString | str:
        """Show the traceback of the last attempt."""
        rows = TaskExecutionLog.objects.using(letter._state.db).filter(
            task=letter.task_id, attempt_number__lte=letter.attempts
        )
        trace = (
            rows.exclude(traceback="").order_by("-id").values_list("traceback", flat=True).first()
        )
        return display.folded(_("traceback of the last attempt"), display.clean(trace or ""))

    @admin.display(description=_("arguments"))
    def arguments(self, letter: Any) -> SafeString | str:
        """Show the call."""
        return display.arguments_block(letter.task.name, letter, plain=letter.read_plain)
