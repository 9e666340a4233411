"""The pages of the operations on a run, on one task with dependencies, and on selected tasks."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, LogEntry
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext as _

from django_durable_tasks import conf
from django_durable_tasks.admin import actions, dependencies_cell, display, graph_actions
from django_durable_tasks.admin.confirm_page import PendingOperation, respond
from django_durable_tasks.admin.graph_actions import (
    CHOSEN_OPERATIONS,
    RUN_OPERATIONS,
    TASK_OPERATIONS,
)
from django_durable_tasks.models import Task, WorkflowRun
from django_durable_tasks.operations.operation import APP, Operation

RUN = "run"


def run_view(screen: Any) -> Callable[[HttpRequest, uuid.UUID, str], HttpResponse]:
    """Return the view of the operations on a run, for the ModelAdmin of runs."""

    def view(request: HttpRequest, object_id: uuid.UUID, name: str) -> HttpResponse:
        operation = _permitted(screen, request, RUN_OPERATIONS, name)
        run = screen.get_queryset(request).filter(pk=object_id).first()
        if run is None:
            raise Http404(_("No workflow run has this id."))
        title = f"{run.name} {display.short(run.pk)}"
        return respond(screen, request, _pending(request, operation, run, title))

    return view


def task_view(screen: Any) -> Callable[[HttpRequest, uuid.UUID, str], HttpResponse]:
    """Return the view of the operations on one task, for the ModelAdmin of tasks."""

    def view(request: HttpRequest, object_id: uuid.UUID, name: str) -> HttpResponse:
        operation = _permitted(screen, request, TASK_OPERATIONS, name)
        task = screen.get_queryset(request).filter(pk=object_id).first()
        if task is None:
            raise Http404(_("No task has this id."))
        title = f"{dependencies_cell.title(task)} {display.short(task.pk)}"
        return respond(screen, request, _pending(request, operation, task, title))

    return view


def chosen_view(screen: Any) -> Callable[[HttpRequest, str], HttpResponse]:
    """Return the view of the operations on selected tasks, for the ModelAdmin of tasks."""

    def view(request: HttpRequest, name: str) -> HttpResponse:
        operation = _permitted(screen, request, CHOSEN_OPERATIONS, name)
        texts = [
            text for one in request.POST.getlist(ACTION_CHECKBOX_NAME) for text in one.split(",")
        ]
        given = [key for key in map(_key, texts) if key is not None]
        rows = screen.get_queryset(request).filter(pk__in=given[: actions.AT_MOST + 1])
        return chosen(screen, request, operation, rows, _key(request.POST.get(RUN, "")))

    return view


def chosen(
    screen: Any,
    request: HttpRequest,
    operation: Operation,
    rows: QuerySet[Any],
    run_id: uuid.UUID | None = None,
) -> HttpResponse:
    """Return the confirmation page of an operation on these tasks, at most AT_MOST, which were
    selected in the list or on the page of a run.
    """
    _permitted(screen, request, CHOSEN_OPERATIONS, operation.name)
    keys = list(rows.values_list("pk", flat=True)[: actions.AT_MOST + 1])
    more = (
        _(" More tasks were selected: run the operation again for the rest.")
        if len(keys) > actions.AT_MOST
        else ""
    )
    keys = keys[: actions.AT_MOST]
    back = display.page_of("workflowrun", run_id) if run_id else display.list_of("task")
    if not keys:
        screen.message_user(request, _("Select the tasks first."), messages.WARNING)
        return HttpResponseRedirect(back)
    # One field for all ids: Django refuses forms of more than DATA_UPLOAD_MAX_NUMBER_FIELDS, 1,000,
    # fields.
    hidden = [
        (ACTION_CHECKBOX_NAME, ",".join(map(str, keys))),
        *([(RUN, str(run_id))] if run_id else []),
    ]
    pending = PendingOperation(
        title=str(operation.title),
        operation=operation,
        help=f"{operation.help}{more}",
        back=back,
        hidden=hidden,
        perform=lambda by, reason, dry_run: operation.perform(
            graph_actions.chosen_tasks(keys), by=by, reason=reason, dry_run=dry_run
        ),
        remember=lambda message: _remember(request, Task, keys, message),
        address=reverse(f"admin:{APP}_graph_chosen", args=[operation.name]),
    )
    return respond(screen, request, pending)


def _permitted(
    screen: Any, request: HttpRequest, offered: Sequence[Operation], name: str
) -> Operation:
    operation = next((one for one in offered if one.name == name), None)
    if operation is None:
        raise Http404(_("There is no such operation."))
    if not screen.has_view_permission(request) or not operation.is_permitted(request.user):
        raise PermissionDenied
    return operation


def _pending(request: HttpRequest, operation: Operation, row: Any, title: str) -> PendingOperation:
    modes = {mode.name: mode for mode in operation.modes}
    mode = modes.get(request.GET.get("mode", "")) or next(iter(operation.modes), None)
    here = request.path
    chosen_mode = {"mode": mode.name} if mode else {}
    many = operation.target.is_queryset
    return PendingOperation(
        title=f"{operation.title}: {title}",
        operation=operation,
        help=mode.help if mode else operation.help,
        back=display.page_of(row._meta.model_name, row.pk),
        address=f"{here}?mode={mode.name}" if mode else here,
        perform=lambda by, reason, dry_run: operation.perform(
            graph_actions.chosen_tasks([row.pk]) if many else row,
            by=by,
            reason=reason,
            dry_run=dry_run,
            **chosen_mode,
        ),
        remember=lambda message: _remember(request, type(row), [row.pk], message),
        tabs=[
            {"title": one.title, "address": f"{here}?mode={one.name}", "here": one is mode}
            for one in operation.modes
        ],
    )


def _remember(
    request: HttpRequest, model: type[Task] | type[WorkflowRun], keys: Sequence[Any], message: str
) -> None:
    """Add an entry to the history of each row."""
    rows: Any = (
        model._default_manager.using(conf.settings().DATABASE)
        .filter(pk__in=list(keys))
        .only("pk", "name")
    )
    LogEntry.objects.log_actions(int(request.user.pk or 0), rows, CHANGE, message)


def _key(text: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(text)
    except ValueError:
        return None
