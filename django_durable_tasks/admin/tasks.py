"""The admin of tasks, of their attempts and of dead letters; replays with edited arguments."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, ClassVar

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from django_durable_tasks import conf
from django_durable_tasks.admin import actions, display, filters, graphs
from django_durable_tasks.admin.actions import action_of, form_fields, labelled, reason_field
from django_durable_tasks.admin.display import list_of
from django_durable_tasks.admin.fields import EditForm
from django_durable_tasks.admin.graphs import TASK_OPERATIONS
from django_durable_tasks.admin.installation import history_of, overview_view
from django_durable_tasks.admin.readonly import NewestRowsAdmin, ReadOnlyInline, section
from django_durable_tasks.celery import inspect
from django_durable_tasks.celery.inspect import sentences
from django_durable_tasks.choices import OPEN, REPLAYABLE, Status
from django_durable_tasks.exceptions import DurableTasksError
from django_durable_tasks.models import DeadLetter, Task, TaskExecutionLog
from django_durable_tasks.operations import Operation
from django_durable_tasks.tasks import operator_actions
from django_durable_tasks.workflows import operations as graph_operations

# The admin of attempts: where each ran, its result and its traceback; also as an inline of a
# task's page.


ON_A_PAGE = 50


_TASK_AND_ERROR = display.column(
    _("task"),
    lambda row: display.beneath(
        display.row_link("task", row.task_id, row.task.name), display.first_line(row.error_message)
    ),
)
_ATTEMPT_STATE = display.column(
    _("status"), lambda row: display.badge(row.status, row.status), "state"
)
_ATTEMPT_TOOK = display.column(_("duration"), lambda row: display.duration(row.duration), "took")
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
        "attempt_number",
        _ATTEMPT_STATE,
        _STARTED,
        _ATTEMPT_TOOK,
        "worker",
        _ERROR,
        _TRACE,
        _MESSAGE,
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
        "id",
        _TASK_AND_ERROR,
        "attempt_number",
        _ATTEMPT_STATE,
        "started_at",
        "completed_at",
        _ATTEMPT_TOOK,
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
    fieldsets = (
        section(
            None,
            "task",
            ("attempt_number", _ATTEMPT_STATE),
            ("started_at", "completed_at"),
            _ATTEMPT_TOOK,
        ),
        section(_("Error"), "error_message", _TRACE),
        section(_("Where"), "worker", _NODE, "run_id", _MESSAGE, "tenant"),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows = super().get_queryset(request).select_related("task", "tenant")
        fields = {field.name for field in self.opts.concrete_fields} - {"traceback"}
        return rows.only(*fields, "task__name", "tenant__name", "tenant__slug")


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
            form_fields(operator_actions.replay_edited.fields),
            reason=reason_field(operator_actions.replay_edited),
        )
        self.compare_with(task, task.epoch)


def replay_view(model_admin: Any, request: HttpRequest, object_id: uuid.UUID) -> Any:
    """Show the arguments of an ended task, and replay it with those that were edited."""
    if not may_edit_arguments(request):
        raise PermissionDenied
    task = model_admin.get_queryset(request).filter(pk=object_id, status__in=REPLAYABLE).first()
    if task is None:
        raise Http404("No ended task has this id.")
    form = ReplayForm(request.POST if request.method == "POST" else None, task=task)
    if request.method == "POST" and form.is_valid() and _replay(model_admin, request, task, form):
        return HttpResponseRedirect(display.page_of("task", task.pk))
    operation, back = operator_actions.replay_edited, display.page_of("task", task.pk)
    return model_admin.page(
        request, "replay", operation.title, form=form, task=task, help=operation.help, back=back
    )


def _replay(model_admin: Any, request: HttpRequest, task: Task, form: ReplayForm) -> bool:
    """Replay the task. Unchanged arguments are not passed, so that a task that is not registered in
    this process can be replayed too.
    """
    args, kwargs = form.cleaned_data["args"], form.cleaned_data["kwargs"]
    edited = {} if (args, kwargs) == (task.args, task.kwargs) else {"args": args, "kwargs": kwargs}
    if edited:
        inspect.load_tasks()
    tasks = Task.objects.using(task._state.db).filter(pk=task.pk, epoch=task.epoch)
    reason = form.cleaned_data["reason"]
    try:
        done = operator_actions.replay_edited.perform(
            tasks, by=actions.who(request), reason=reason, **edited
        )
    except DurableTasksError as refused:
        form.add_error(None, str(refused))
        return False
    if not done.changed:
        text = "The status of the task has changed in the meantime. Nothing was changed."
        form.add_error(None, text)
        return False
    suffix = " with edited arguments" if edited else ""
    actions.remember(model_admin, request, [task.pk], f"Replayed{suffix}. {reason}".strip())
    model_admin.message_user(request, f"Replayed the task{suffix}.")
    return True


# The explanation of a task's status on its page, and the buttons of its operations.


def status_labels(task: Any) -> list[tuple[str, str]]:
    """Return the conditions of a task in addition to its status: pairs of a CSS class and a
    text.
    """
    is_running = task.status == Status.RUNNING
    expected = task.expected_duration if is_running and task.started_at is not None else None
    true = {
        "retrying": task.status == Status.PENDING and task.failures > 0,
        "overdue": expected is not None and task.started_at + expected < task.seen_at,
        "lease expired": task.lease_until is not None and task.lease_until < task.seen_at,
        "stop requested": is_running and task.cancel_requested_at is not None,
        "republished": task.status == Status.QUEUED and task.publish_count > 1,
    }
    return [(text.replace(" ", "-"), text) for text, applies in true.items() if applies]


def took(task: Any) -> str:
    """Return the duration of the last attempt, up to now if it is running."""
    if task.started_at is None or not (task.completed_at or task.status == Status.RUNNING):
        return display.NOTHING
    return display.duration(((task.completed_at or task.seen_at) - task.started_at).total_seconds())


def progress_cell(task: Any) -> SafeString | str:
    """Return what the function reported, or how far its loop has come, with a bar if the total is
    known.
    """
    progress = task.progress
    if not isinstance(progress, dict) or "done" not in progress:
        return display.value_block(progress, plain=False) if progress else display.NOTHING
    done, total, note = progress["done"], progress.get("total"), str(progress.get("note") or "")
    words = f"{done:,}" if total is None else f"{done:,} of {total:,}"
    words = display.clean(f"{words}, {note}" if note else words)
    if not total:
        return words
    done_of_total = min(max(done, 0), total)
    return display.beneath(display.bar(words, total, [(Status.SUCCESS, done_of_total)]), words)


# Columns and fields -------------------------------------------------------------------------------


def _crashed(task: Task) -> str:
    return f"{task.crashes}/{task.max_crashes} crashed" if task.crashes else ""


@admin.display(description=_("next"))
def due(task: Any) -> str:
    """Return the next due time: of the start, of republishing or of the end of the lease; or the
    limit for which the task waits.
    """
    if task.is_waiting:
        return f"limit {task.waiting_for_limit}" if task.waiting_for_limit else "held"
    return display.since(task.due_at or task.lease_until, task.seen_at)


# The starts, and the used part of the attempt budgets.
_TRIES = display.column(
    _("tries"),
    lambda task: (
        f"{task.attempts} started, {task.failures}/{task.max_attempts} failed"
        + (f", {_crashed(task)}" if task.crashes else "")
    ),
)
_STATE = display.column(
    _("status"),
    lambda task: display.badges([(task.status, task.status), *status_labels(task)]),
    "state",
)
_TOOK = display.column(_("duration"), took, "took")
_WORKFLOW = display.column(_("workflow"), graphs.workflow_link)
# The task that caused the end of this one.
_CAUSE = display.column(
    _("cause"),
    lambda task: (
        display.task_link(task.cause, display.named_tasks([task.cause]))
        if task.cause
        else display.NOTHING
    ),
)
_AUDITED = display.column(
    _("performed"), lambda task: history_of(task) if task.read_audit else display.NOTHING
)


@admin.register(Task)
class TaskAdmin(NewestRowsAdmin):
    """Tasks."""

    labels: ClassVar = {"cancel_requested_at": _("stop requested at")}
    without_index = frozenset({"queue", "name", "target_type__exact", "reason", "node__exact"})
    with_index = frozenset({"condition", "recurring_task__id__exact", "workflow__id__exact"})
    path_to_task = ""
    advice = _("Find older ones by id or key, or choose a status other than SUCCESS.")
    list_display = (
        display.column(_("id"), lambda task: display.short(task.pk), "short_id"),
        display.column(
            _("task"), lambda task: display.beneath(task.name, display.first_line(task.last_error))
        ),
        "queue",
        _STATE,
        display.column(
            _("failed"),
            lambda task: display.beneath(f"{task.failures}/{task.max_attempts}", _crashed(task)),
            "spent",
        ),
        display.column(
            _("created"), lambda task: display.since(task.created_at, task.seen_at), "created"
        ),
        due,
        _TOOK,
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
    search_fields = ("name",)
    search_help_text = _("A complete id, Celery id, key or idempotency key, or a part of a name.")
    actions = (
        action_of(operator_actions.cancel),
        action_of(operator_actions.retry),
        action_of(operator_actions.replay),
        action_of(operator_actions.force_complete),
        # It shows first what a forced run of these tasks would change.
        labelled(
            lambda model_admin, request, rows: graphs.chosen(
                model_admin, request, graph_operations.force_run, rows
            ),
            graph_operations.force_run,
        ),
    )
    # Optional apps append theirs.
    inlines: ClassVar[list[Any]] = [AttemptsInline]
    page_operations = TASK_OPERATIONS
    operations = (operator_actions.replay_edited, *TASK_OPERATIONS)
    change_form_template = "admin/django_durable_tasks/task/change_form.html"
    change_list_template = "admin/django_durable_tasks/task/change_list.html"
    reads_with_page = ("tenant", "recurring_task")
    unlisted = ("args", "kwargs", "options", "result", "progress", "position")
    fieldsets = (
        section(
            None,
            (_STATE, "reason"),
            ("queue", "priority"),
            (_TRIES, "tenant"),
            ("recurring_task", "fire_time"),
            (
                _WORKFLOW,
                _CAUSE,
            ),
        ),
        section(
            _("Call"),
            "last_error",
            display.column(_("arguments"), lambda task: display.arguments_block(task.name, task)),
            "result",
            display.column(_("progress"), progress_cell),
            "position",
        ),
        section(
            _("Times"),
            ("created_at", "run_at"),
            ("started_at", "completed_at"),
            (_TOOK, "expected_duration"),
            (due, "expires_at"),
            ("cancel_requested_at", "updated_at"),
        ),
        section(
            _("Keys"),
            ("key", "unique_key"),
            display.column(_("effective idempotency key"), lambda task: task.dedupe_key),
        ),
        section(_("Operations"), _AUDITED),
        section(
            _("Ownership"),
            ("epoch", "publish_count"),
            ("run_id", display.column(_("node"), lambda task: display.row_link("node", task.node))),
            ("due_at", "lease_until"),
            ("crashes", "max_crashes"),
            ("on_orphan", "options"),
            ("target_type", "shard_key"),
            collapsed=True,
        ),
    )

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

    def pages(self) -> Iterable[tuple[str, Callable[..., Any], str]]:
        yield from super().pages()
        for route, view, name in (
            ("overview/", overview_view, "overview"),
            ("graph/<str:name>/", graphs.chosen_view, "graph_chosen"),
            ("<uuid:object_id>/graph.<str:ending>", graphs.diagram_view, "task_graph"),
            ("<uuid:object_id>/replay/", replay_view, "task_replay"),
        ):
            yield route, functools.partial(view, self), name

    def title_of(self, row: Any) -> str:
        return f"{display.task_title(row)} {display.short(row.pk)}"

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Any:
        """Read the row, and whether this user may see its secrets and its audit entries."""
        task = super().get_object(request, object_id, from_field)
        if task is not None:
            task.read_audit = request.user.has_perm("django_durable_tasks.view_auditentry")
        return task

    def page_context(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        """Return the explanation of the status, the buttons of the operations, and the
        dependencies.
        """
        graph = graphs.graph_of_page(self, request, row)
        explained = [
            replace(sentence, text=display.clean(sentence.text)) for sentence in sentences(row)
        ]
        graph["sentences"] += explained
        permitted = self.get_actions(request)
        ended = row.status in REPLAYABLE
        # If an ended task is the cause of a skipped one, that one has to be replayed first.
        causes = Task.objects.using(row._state.db).filter(pk=row.cause, status__in=REPLAYABLE)
        waits = row.status == Status.SKIPPED and row.cause is not None and causes.exists()
        fits: dict[Operation, bool] = {
            operator_actions.retry: row.status == Status.PENDING and row.failures > 0,
            operator_actions.replay: ended and not waits,
            operator_actions.cancel: row.status in OPEN and row.cancel_requested_at is None,
            operator_actions.force_complete: row.status != Status.SUCCESS,
        }
        buttons = [
            {"action": operation.name, "title": f"{operation.title_for(1)}…"}
            for operation, fit in fits.items()
            if fit and operation.name in permitted
        ]
        if ended and may_edit_arguments(request):
            edit = reverse("admin:django_durable_tasks_task_replay", args=[row.pk])
            buttons.insert(1, {"url": edit, "title": f"{operator_actions.replay_edited.title}…"})
        if row.status == Status.FAILED and request.user.has_perm(
            "django_durable_tasks.view_deadletter"
        ):
            letters = list_of("deadletter", task__id__exact=row.pk, case="all")
            buttons.append({"url": letters, "title": "Its dead letters"})
        graph["buttons"] = [*buttons, *graph["buttons"]]
        return graph


# The admin of dead letters: tasks that failed, why and after how many attempts, and how they were
# closed.


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
        return rows.defer(
            "task__result", "task__options", "task__progress", "task__position", "task__last_error"
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

    def page_context(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        permitted = self.get_actions(request) if row.open_task else {}
        offered: list[Any] = [action for action in self.actions if action.__name__ in permitted]
        buttons = [
            {"action": action.__name__, "title": f"{action.operation.title_for(1)}…"}
            for action in offered
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
