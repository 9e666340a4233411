"""The admin of tasks: their lists, their pages, their actions, and replays with edited
arguments.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_durable_tasks.admin import (
    actions,
    dependencies_cell,
    display,
    filters,
    graphs,
    overview,
)
from django_durable_tasks.admin.actions import action_of, form_fields, labelled, reason_field
from django_durable_tasks.admin.audit_entries import history_of
from django_durable_tasks.admin.display import list_of
from django_durable_tasks.admin.execution_log import AttemptsInline
from django_durable_tasks.admin.fields import EditForm
from django_durable_tasks.admin.graphs import TASK_OPERATIONS
from django_durable_tasks.admin.readonly import NewestRowsAdmin
from django_durable_tasks.celery import inspect
from django_durable_tasks.celery.inspect import sentences
from django_durable_tasks.choices import OPEN, REPLAYABLE, Status
from django_durable_tasks.exceptions import DurableTasksError
from django_durable_tasks.models import Task
from django_durable_tasks.models.fields import DatabaseNow
from django_durable_tasks.operations.operation import Operation
from django_durable_tasks.tasks import operator_actions
from django_durable_tasks.workflows import operations as graph_operations

# The page that edits the arguments of an ended task before it is replayed.


def may_edit_arguments(request: HttpRequest) -> bool:
    """Return whether the user may replay a task with edited arguments, which the form shows
    unmasked.
    """
    return (
        operator_actions.replay_edited.is_permitted(request.user)
        and bool(request.user.has_perm("django_durable_tasks.view_task"))
        and display.reads_secrets(request)
    )


class ReplayForm(EditForm):
    """New arguments and a reason."""

    def __init__(self, data: Any = None, *, task: Task) -> None:
        super().__init__(
            data, initial={"args": display.pretty(task.args), "kwargs": display.pretty(task.kwargs)}
        )
        self.fields.update(
            form_fields(operator_actions.replay_edited),
            reason=reason_field(operator_actions.replay_edited),
        )
        self.compare_with(task, task.epoch)


def _replay(screen: Any, request: HttpRequest, task: Task, form: ReplayForm) -> bool:
    """Replay the task. Unchanged arguments are not passed, so that a task that is not registered in
    this process can be replayed too.
    """
    args, kwargs = form.cleaned_data["args"], form.cleaned_data["kwargs"]
    same = args == task.args and kwargs == task.kwargs
    if not same:
        inspect.load_tasks()
    tasks = screen.model.objects.using(task._state.db).filter(pk=task.pk, epoch=task.epoch)
    edited = {} if same else {"args": args, "kwargs": kwargs}
    reason = form.cleaned_data["reason"]
    try:
        done = operator_actions.replay_edited.perform(
            tasks, by=actions.who(request), reason=reason, **edited
        )
    except DurableTasksError as refused:
        form.add_error(None, str(refused))
        return False
    if not done.changed:
        message = gettext(
            "The status of the task has changed in the meantime. Nothing was changed."
        )
        form.add_error(None, message)
        return False
    suffix = "" if same else gettext(" with edited arguments")
    actions.remember(screen, request, [task.pk], f"Replayed{suffix}. {reason}".strip())
    screen.message_user(request, gettext("Replayed the task%s.") % suffix)
    return True


def replay_view_for(screen: Any) -> Callable[[HttpRequest, uuid.UUID], HttpResponse]:
    """Return the view for this ModelAdmin."""

    def view(request: HttpRequest, object_id: uuid.UUID) -> HttpResponse:
        if not may_edit_arguments(request):
            raise PermissionDenied
        task = screen.get_queryset(request).filter(pk=object_id, status__in=REPLAYABLE).first()
        if task is None:
            raise Http404(gettext("No ended task has this id."))
        form = ReplayForm(request.POST if request.method == "POST" else None, task=task)
        if request.method == "POST" and form.is_valid() and _replay(screen, request, task, form):
            return HttpResponseRedirect(display.page_of("task", task.pk))
        context = {
            **screen.admin_site.each_context(request),
            "opts": screen.opts,
            "media": screen.media,
            "form": form,
            "task": task,
            "title": operator_actions.replay_edited.title,
            "help": operator_actions.replay_edited.help,
            "back": display.page_of("task", task.pk),
        }
        return TemplateResponse(request, "admin/django_durable_tasks/replay.html", context)

    return view


# The explanation of a task's status on its page, and the buttons of its operations.


def is_overdue(task: Any) -> bool:
    """Return whether a run takes longer than its expected duration."""
    if task.status != Status.RUNNING or task.expected_duration is None or task.started_at is None:
        return False
    return bool(task.started_at + task.expected_duration < task.seen_at)


def status_labels(task: Any) -> list[tuple[str, str]]:
    """Return the conditions of a task in addition to its status: pairs of a CSS class and a
    text.
    """
    true = {
        "retrying": task.status == Status.PENDING and task.failures > 0,
        "overdue": is_overdue(task),
        "lease expired": task.lease_until is not None and task.lease_until < task.seen_at,
        "stop requested": task.status == Status.RUNNING and task.cancel_requested_at is not None,
        "republished": task.status == Status.QUEUED and task.publish_count > 1,
    }
    return [(text.replace(" ", "-"), text) for text, applies in true.items() if applies]


def status_of_page(screen: Any, request: HttpRequest, task: Any) -> dict[str, Any]:
    """Return the context of a task's page: sentences, buttons and dependencies."""
    graph = graphs.graph_of_page(request, task)
    shown = [
        *graph.pop("graph_sentences"),
        *(replace(one, text=display.clean(one.text)) for one in sentences(task)),
    ]
    buttons = [*_buttons(screen, request, task), *graph.pop("graph_buttons")]
    return {"sentences": shown, "buttons": buttons, **graph}


def took(task: Any) -> str:
    """Return the duration of the last attempt, up to now if it is running."""
    if task.started_at is None or not (task.completed_at or task.status == Status.RUNNING):
        return display.NOTHING
    return display.duration(((task.completed_at or task.seen_at) - task.started_at).total_seconds())


def _is_skipped_by_an_ended_task(task: Any) -> bool:
    """Return whether the task was skipped because of an ended one, which has to be replayed
    first.
    """
    if task.status != Status.SKIPPED or task.cause is None:
        return False
    causes = Task.objects.using(task._state.db).filter(pk=task.cause, status__in=REPLAYABLE)
    return bool(causes.exists())


def _buttons(screen: Any, request: HttpRequest, task: Any) -> list[dict[str, str]]:
    permitted = screen.get_actions(request)
    ended = task.status in REPLAYABLE
    fits: dict[Operation, bool] = {
        operator_actions.retry: task.status == Status.PENDING and task.failures > 0,
        operator_actions.replay: ended and not _is_skipped_by_an_ended_task(task),
        operator_actions.cancel: task.status in OPEN and task.cancel_requested_at is None,
        operator_actions.force_complete: task.status != Status.SUCCESS,
    }
    found = [
        {"action": one.name, "title": f"{one.title}…"}
        for one, fit in fits.items()
        if fit and one.name in permitted
    ]
    if ended and may_edit_arguments(request):
        edit = reverse("admin:django_durable_tasks_task_replay", args=[task.pk])
        found.insert(1, {"url": edit, "title": f"{operator_actions.replay_edited.title}…"})
    if task.status == Status.FAILED and request.user.has_perm(
        "django_durable_tasks.view_deadletter"
    ):
        letters = list_of("deadletter", task__id__exact=task.pk, case="all")
        found.append({"url": letters, "title": gettext("Its dead letters")})
    return found


_HEAVY = ("args", "kwargs", "options", "result", "progress")
_CREATED = display.instant_of("created_at", _("created at"))
_UPDATED = display.instant_of("updated_at", _("updated at"))
_RUN_AT = display.instant_of("run_at", _("run at"))
_STARTED = display.instant_of("started_at", _("started at"))
_COMPLETED = display.instant_of("completed_at", _("completed at"))
_EXPIRES = display.instant_of("expires_at", _("expires at"))
_STOP_REQUESTED = display.instant_of("cancel_requested_at", _("stop requested at"))
_DUE_AT = display.instant_of("due_at", _("due at"))
_LEASE = display.instant_of("lease_until", _("lease until"))
_FIRED = display.instant_of("fire_time", _("fire time"))


def _force_run(screen: Any, request: HttpRequest, rows: QuerySet[Any]) -> HttpResponse | None:
    """Show what a forced run of these tasks would change."""
    return graphs.chosen(screen, request, graph_operations.force_run, rows)


@admin.register(Task)
class TaskAdmin(NewestRowsAdmin):
    """Tasks."""

    named_by = ("name",)
    without_index = frozenset({"queue", "name", "target_type__exact", "reason", "node__exact"})
    with_index = frozenset({"condition", "recurring_task__id__exact", "workflow__id__exact"})
    path_to_task = ""
    advice = _("Find older ones by id or key, or choose a status other than SUCCESS.")
    list_display = (
        "short_id",
        "name_and_error",
        "queue",
        "state",
        "spent",
        "created",
        "due",
        "took",
    )
    list_filter = (
        "status",
        filters.ConditionFilter,
        filters.QueueFilter,
        filters.NameFilter,
        "target_type",
        filters.TenantFilter,
        filters.ReasonFilter,
        filters.CreatedFilter,
    )
    lookups_allowed = frozenset(
        {
            "status__exact",
            "target_type__exact",
            "node__exact",
            "recurring_task__id__exact",
            "workflow__id__exact",
        }
    )
    sortable_by = ()
    readonly_fields = (
        "state",
        "why_it_ended",
        "tries",
        "arguments",
        "returned",
        "last_error_text",
        "progress_text",
        "due",
        "took",
        "effective_key",
        "node_link",
        "schedule_link",
        "audited",
        "overridden",
        "workflow_link",
        "cause_link",
        _CREATED,
        _UPDATED,
        _RUN_AT,
        _STARTED,
        _COMPLETED,
        _EXPIRES,
        _STOP_REQUESTED,
        _DUE_AT,
        _LEASE,
        _FIRED,
    )
    search_fields = ("name",)
    search_help_text = _("A complete id, Celery id, key or idempotency key, or a part of a name.")
    actions = (
        action_of(operator_actions.cancel),
        action_of(operator_actions.retry),
        action_of(operator_actions.replay),
        action_of(operator_actions.force_complete),
        labelled(_force_run, graph_operations.force_run),
    )
    # Optional apps append theirs.
    inlines: ClassVar[list[Any]] = [AttemptsInline]
    operations = (operator_actions.replay_edited, *TASK_OPERATIONS)
    change_form_template = "admin/django_durable_tasks/task/change_form.html"
    change_list_template = "admin/django_durable_tasks/task/change_list.html"
    fieldsets: ClassVar = (
        (
            None,
            {
                "fields": (
                    ("state", "why_it_ended"),
                    ("queue", "priority"),
                    ("tries", "tenant"),
                    ("schedule_link", _FIRED),
                    ("workflow_link", "cause_link"),
                )
            },
        ),
        (_("Call"), {"fields": ("last_error_text", "arguments", "returned", "progress_text")}),
        (
            _("Times"),
            {
                "fields": (
                    (_CREATED, _RUN_AT),
                    (_STARTED, _COMPLETED),
                    ("took", "expected_duration"),
                    ("due", _EXPIRES),
                    (_STOP_REQUESTED, _UPDATED),
                )
            },
        ),
        (_("Keys"), {"fields": (("key", "unique_key"), "effective_key")}),
        (_("Operations"), {"fields": ("audited",)}),
        (
            _("Ownership"),
            {
                "classes": ("collapse",),
                "fields": (
                    ("epoch", "publish_count"),
                    ("run_id", "node_link"),
                    (_DUE_AT, _LEASE),
                    ("crashes", "max_crashes"),
                    ("on_orphan", "overridden"),
                    ("target_type", "shard_key"),
                ),
            },
        ),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request).annotate(seen_at=DatabaseNow())
        listed = request.resolver_match is not None and str(
            request.resolver_match.url_name
        ).endswith("_changelist")
        return rows.defer(*_HEAVY) if listed else rows.select_related("tenant", "recurring_task")

    def get_ordering(self, request: HttpRequest) -> tuple[str, ...]:
        """Order the tasks of one schedule by their fire times, as their index is; all others by
        creation time.
        """
        return ("-fire_time", "-id") if "recurring_task__id__exact" in request.GET else ("-id",)

    def filters_without_index(self, request: HttpRequest) -> bool:
        """Return whether the filters may read every task. All statuses but SUCCESS have indexes."""
        succeeded = request.GET.get("status__exact") == Status.SUCCESS
        filtered = succeeded or self._has(request, self.without_index)
        return filtered and self.searches_all(request)

    def searches_all(self, request: HttpRequest) -> bool:
        """Return whether no index leaves out tasks of the list."""
        status = request.GET.get("status__exact") or Status.SUCCESS
        return status == Status.SUCCESS and not self._has(request, self.with_index)

    def examined(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the tasks of which the newest are searched: those of the tenant in the request,
        which has an index, or all.
        """
        tenant, rows = request.GET.get("tenant", ""), super().examined(request)
        if tenant.isdecimal() and len(tenant) < 19:
            return rows.filter(tenant_id=int(tenant))
        return rows

    def get_urls(self) -> list[URLPattern]:
        screen = self.admin_site.admin_view(overview.view_for(self))
        edited = self.admin_site.admin_view(replay_view_for(self))
        graph_view = self.admin_site.admin_view(graphs.task_view(self))
        chosen = self.admin_site.admin_view(graphs.chosen_view(self))
        diagram = self.admin_site.admin_view(graphs.diagram_view(self, graphs.diagram_around))
        return [
            path("graph/<str:name>/", chosen, name="django_durable_tasks_graph_chosen"),
            path(
                "<uuid:object_id>/graph/<str:name>/",
                graph_view,
                name="django_durable_tasks_graph_task",
            ),
            path(
                "<uuid:object_id>/graph.<str:ending>",
                diagram,
                name="django_durable_tasks_task_graph",
            ),
            path("overview/", screen, name="django_durable_tasks_overview"),
            path("<uuid:object_id>/replay/", edited, name="django_durable_tasks_task_replay"),
            *super().get_urls(),
        ]

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Any:
        """Read the row, and whether this user may see its secrets."""
        task = super().get_object(request, object_id, from_field)
        if task is not None:
            task.read_plain = display.reads_secrets(request)
            task.read_audit = request.user.has_perm("django_durable_tasks.view_auditentry")
        return task

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Add the explanation of the status and the buttons of the operations."""
        context.update(status_of_page(self, request, context["original"]))
        return super().render_change_form(request, context, *args, **kwargs)

    # Columns and fields ---------------------------------------------------------------------------

    @admin.display(description=_("id"))
    def short_id(self, task: Task) -> str:
        """Show the end of the id."""
        return display.short(task.pk)

    @admin.display(description=_("status"))
    def state(self, task: Task) -> SafeString | str:
        """Show the status and further conditions."""
        return display.badges([(task.status, task.status), *status_labels(task)])

    @admin.display(description=_("task"))
    def name_and_error(self, task: Task) -> SafeString | str:
        """Show the name and the last error."""
        return display.beneath(task.name, display.first_line(task.last_error))

    @admin.display(description=_("failed"))
    def spent(self, task: Task) -> SafeString | str:
        """Show the used part of the attempt budgets."""
        crashed = f"{task.crashes}/{task.max_crashes} crashed" if task.crashes else ""
        return display.beneath(f"{task.failures}/{task.max_attempts}", crashed)

    @admin.display(description=_("performed"))
    def audited(self, task: Any) -> SafeString | str:
        """Show the audit entries of the task, if the user may read them."""
        return history_of(task) if task.read_audit else display.NOTHING

    @admin.display(description=_("tries"))
    def tries(self, task: Task) -> str:
        """Show the starts, and the used part of the attempt budgets."""
        crashed = f", {task.crashes}/{task.max_crashes} crashed" if task.crashes else ""
        return f"{task.attempts} started, {task.failures}/{task.max_attempts} failed{crashed}"

    @admin.display(description=_("created"))
    def created(self, task: Any) -> str:
        """Show the age."""
        return display.since(task.created_at, task.seen_at)

    @admin.display(description=_("next"))
    def due(self, task: Any) -> str:
        """Show the next due time: of the start, of republishing or of the end of the lease; or the
        limit for which the task waits.
        """
        if task.is_waiting:
            return f"limit {task.waiting_for_limit}" if task.waiting_for_limit else "held"
        return display.since(task.due_at or task.lease_until, task.seen_at)

    @admin.display(description=_("duration"))
    def took(self, task: Any) -> str:
        """Show the duration of the last attempt, up to now if it is running."""
        return took(task)

    @admin.display(description=_("reason"))
    def why_it_ended(self, task: Task) -> str:
        """Show the reason of the ending."""
        return display.clean(task.reason) or display.NOTHING

    @admin.display(description=_("last error"))
    def last_error_text(self, task: Task) -> SafeString | str:
        """Show the whole last error."""
        return display.block(display.clean(task.last_error))

    @admin.display(description=_("effective idempotency key"))
    def effective_key(self, task: Task) -> str:
        """Show the idempotency key for external systems."""
        return task.dedupe_key

    @admin.display(description=_("node"))
    def node_link(self, task: Task) -> SafeString | str:
        """Link the node that claimed or runs it."""
        return (
            display.link(display.page_of("node", task.node), task.node)
            if task.node
            else display.NOTHING
        )

    @admin.display(description=_("recurring task"))
    def schedule_link(self, task: Task) -> SafeString | str:
        """Link the schedule that created it."""
        row = task.recurring_task
        return (
            display.link(display.page_of("recurringtask", row.pk), row.name)
            if row
            else display.NOTHING
        )

    @admin.display(description=_("workflow"))
    def workflow_link(self, task: Task) -> SafeString | str:
        """Link its workflow run."""
        return graphs.workflow_link(task)

    @admin.display(description=_("cause"))
    def cause_link(self, task: Task) -> SafeString | str:
        """Link the task that caused its end."""
        return (
            dependencies_cell.task_link(task.cause, dependencies_cell.named([task.cause]))
            if task.cause
            else display.NOTHING
        )

    @admin.display(description=_("arguments"))
    def arguments(self, task: Any) -> SafeString | str:
        """Show the call."""
        return display.arguments_block(task.name, task, plain=task.read_plain)

    @admin.display(description=_("result"))
    def returned(self, task: Any) -> SafeString | str:
        """Show the result."""
        return display.result_block(task, plain=task.read_plain)

    @admin.display(description=_("overridden options"))
    def overridden(self, task: Task) -> SafeString | str:
        """Show the options of this call."""
        return display.value_block(task.options, plain=False)

    @admin.display(description=_("progress"))
    def progress_text(self, task: Task) -> SafeString | str:
        """Show the progress that the task reported."""
        return display.value_block(task.progress, plain=False)
