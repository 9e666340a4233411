"""The screen of dead letters: what gave up, why, after how many tries, and what was done about it, by whom."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin, messages
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from django_durable_tasks import conf
from django_durable_tasks.admin import actions, display, filters
from django_durable_tasks.admin.readonly import ReadOnlyAdmin
from django_durable_tasks.lifecycle import dead_letters
from django_durable_tasks.models import DeadLetter, Task, TaskExecutionLog
from django_durable_tasks.rules.states import REPLAYABLE

_CREATED = display.instant_of("created_at", _("gave up at"))
_RESOLVED = display.instant_of("resolved_at", _("closed at"))
_OPEN = Q(open_task__isnull=False)


def _replay(keys: list[Any], by: str, reason: str) -> tuple[int, str]:
    database = conf.settings().DATABASE
    letters = DeadLetter.objects.using(database).filter(_OPEN, pk__in=keys).values_list("task_id", flat=True)
    question: Any = Task.objects.using(database).filter(pk__in=list(letters))
    moved = len(dead_letters.replay(question, by=by, reason=reason))
    return moved, ngettext("%d task runs again now.", "%d tasks run again now.", moved) % moved


def _discard(keys: list[Any], by: str, reason: str) -> tuple[int, str]:
    closed = dead_letters.discard(DeadLetter.objects.filter(pk__in=keys), by=by, reason=reason)
    return closed, ngettext("%d case was closed.", "%d cases were closed.", closed) % closed


REPLAY = actions.Verb(
    title=_("Replay"), movable=_OPEN, do=_replay, grouped_by=("reason", "task__name"),
    warning=_("Their tasks run again now, all at once, with new budgets of tries and crashes."),
)  # fmt: skip
DISCARD = actions.Verb(
    title=_("Discard"), movable=_OPEN, do=_discard, form=actions.NeededReasonForm,
    warning=_("The cases are closed and their tasks stay FAILED: nobody will be reminded of them again."),
)  # fmt: skip


@admin.register(DeadLetter)
class DeadLetterAdmin(ReadOnlyAdmin):
    """Dead letters; the open ones first."""

    named_by = ("task", "reason")
    list_display = ("id", "task_name", "queue", "reason", "attempts", _CREATED, "fingerprint_link", "case")
    list_filter = (
        filters.OpenFilter, filters.ReasonOfFailureFilter, filters.QueueOfTaskFilter, filters.NameOfTaskFilter,
        filters.TenantFilter,
    )  # fmt: skip
    lookups_allowed = frozenset({"fingerprint__exact", "task__id__exact"})
    sortable_by = ()
    search_fields = ("task__name",)
    search_help_text = _("A task's id, a key or an idempotency key, whole; or a part of a task's name.")
    actions = ("replay", "replay_edited", "discard")
    change_form_template = "admin/django_durable_tasks/deadletter/change_form.html"
    fieldsets: ClassVar = (
        (None, {"fields": ("task_link", "queue", ("reason", "attempts"), (_CREATED, "fingerprint_link"), "case")}),
        (_("Last error"), {"fields": ("error_text", "last_trace")}),
        (_("Call"), {"fields": ("arguments",)}),
        (_("Closed"), {"fields": (("resolution", _RESOLVED), "resolved_by", "note")}),
    )
    readonly_fields = (
        "task_link", "queue", "fingerprint_link", "case", "error_text", "last_trace", "arguments", _CREATED, _RESOLVED,
    )  # fmt: skip

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows = super().get_queryset(request).select_related("task")
        return rows.defer("task__result", "task__options", "task__progress", "task__last_error", "task__target_config")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        return queryset.filter(filters.search(search_term, "task__")), False

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Read the row, and whether this person may read its secrets."""
        letter = super().get_object(request, object_id, from_field)
        if letter is not None:
            letter.read_plain = display.reads_secrets(request)
        return letter

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Add the buttons of what may be done about it."""
        permitted: dict[str, Any] = self.get_actions(request) if context["original"].open_task else {}
        context["buttons"] = [{"action": name, "title": actions.title_of(one)} for name, one in permitted.items()]
        return super().render_change_form(request, context, *args, **kwargs)

    # Actions ------------------------------------------------------------------------------------------------------

    def has_replay_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.has_perm("django_durable_tasks.replay_deadletter"))

    def has_discard_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.has_perm("django_durable_tasks.discard_deadletter"))

    def has_edit_permission(self, request: HttpRequest) -> bool:
        views_tasks = request.user.has_perm("django_durable_tasks.view_task")
        return bool(self.has_replay_permission(request) and views_tasks and display.reads_secrets(request))

    @admin.action(permissions=["replay"], description=_("Replay: run again now…"))
    def replay(self, request: HttpRequest, rows: QuerySet[Any]) -> HttpResponse | None:
        """Run the tasks again and close their cases."""
        return actions.run(self, request, rows, REPLAY)

    @admin.action(permissions=["edit"], description=_("Replay with edited arguments…"))
    def replay_edited(self, request: HttpRequest, rows: QuerySet[Any]) -> HttpResponse | None:
        """Go to the page on which the arguments of one task are edited."""
        ids = list(rows.filter(_OPEN, task__status__in=REPLAYABLE).values_list("task_id", flat=True)[:2])
        if len(ids) == 1 and rows.count() == 1:
            return HttpResponseRedirect(reverse("admin:django_durable_tasks_task_replay", args=ids))
        self.message_user(request, _("Choose exactly one open case to edit its arguments."), messages.WARNING)
        return None

    @admin.action(permissions=["discard"], description=_("Discard…"))
    def discard(self, request: HttpRequest, rows: QuerySet[Any]) -> HttpResponse | None:
        """Close the cases without running the tasks."""
        return actions.run(self, request, rows, DISCARD)

    # Columns and fields -------------------------------------------------------------------------------------------

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
        """Link all cases of the same kind of error."""
        alike = display.list_of("deadletter", fingerprint__exact=letter.fingerprint)
        return display.link(alike, letter.fingerprint[:8])

    @admin.display(description=_("case"))
    def case(self, letter: DeadLetter) -> SafeString:
        """Show whether somebody has closed it."""
        return display.badge(letter.resolution or "open", letter.resolution or _("open"))

    @admin.display(description=_("error"))
    def error_text(self, letter: DeadLetter) -> SafeString | str:
        """Show the whole last error."""
        return display.block(display.clean(letter.error_message))

    @admin.display(description=_("traceback"))
    def last_trace(self, letter: DeadLetter) -> SafeString | str:
        """Show the traceback of the attempt after which the task gave up."""
        rows = TaskExecutionLog.objects.using(letter._state.db).filter(
            task=letter.task_id, attempt_number__lte=letter.attempts
        )
        trace = rows.exclude(traceback="").order_by("-id").values_list("traceback", flat=True).first()
        return display.folded(_("traceback of the last attempt"), display.clean(trace or ""))

    @admin.display(description=_("arguments"))
    def arguments(self, letter: Any) -> SafeString | str:
        """Show the call."""
        return display.arguments_block(letter.task.name, letter, plain=letter.read_plain)
