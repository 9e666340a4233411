"""The pages of the verbs: for a run, for one task, for chosen tasks. Each shows what it would change before it does."""

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
from django_durable_tasks.admin import actions, display, graph_verbs, waiting
from django_durable_tasks.admin.graph_verbs import APP, CHOSEN_VERBS, RUN_VERBS, TASK_VERBS, Verb
from django_durable_tasks.admin.previews import Deed, respond
from django_durable_tasks.models import Task, WorkflowRun

RUN = "run"


def run_view(screen: Any) -> Callable[[HttpRequest, uuid.UUID, str], HttpResponse]:
    """Return the view of the verbs of a run, inside the site of its screen."""

    def view(request: HttpRequest, object_id: uuid.UUID, name: str) -> HttpResponse:
        verb = _permitted(screen, request, RUN_VERBS, name)
        run = screen.get_queryset(request).filter(pk=object_id).first()
        if run is None:
            raise Http404(_("No workflow run has this id."))
        return respond(screen, request, _deed(request, verb, run, f"{run.name} {display.short(run.pk)}"))

    return view


def task_view(screen: Any) -> Callable[[HttpRequest, uuid.UUID, str], HttpResponse]:
    """Return the view of the verbs of one task, inside the site of its screen."""

    def view(request: HttpRequest, object_id: uuid.UUID, name: str) -> HttpResponse:
        verb = _permitted(screen, request, {**TASK_VERBS, "force-run": CHOSEN_VERBS["force-run"]}, name)
        task = screen.get_queryset(request).filter(pk=object_id).first()
        if task is None:
            raise Http404(_("No task has this id."))
        subject = graph_verbs.chosen_tasks([task.pk]) if name in CHOSEN_VERBS else task
        deed = _deed(request, verb, task, f"{waiting.title(task)} {display.short(task.pk)}", subject)
        return respond(screen, request, deed)

    return view


def chosen_view(screen: Any) -> Callable[[HttpRequest, str], HttpResponse]:
    """Return the view of the verbs of chosen tasks, inside the site of the screen of tasks."""

    def view(request: HttpRequest, name: str) -> HttpResponse:
        _permitted(screen, request, CHOSEN_VERBS, name)
        texts = [text for one in request.POST.getlist(ACTION_CHECKBOX_NAME) for text in one.split(",")]
        given = [key for key in map(_key, texts) if key is not None]
        rows = screen.get_queryset(request).filter(pk__in=given[: actions.AT_MOST + 1])
        return chosen(screen, request, name, rows, _key(request.POST.get(RUN, "")))

    return view


def chosen(
    screen: Any, request: HttpRequest, name: str, rows: QuerySet[Any], run_id: uuid.UUID | None = None
) -> HttpResponse:
    """Answer with the page of a verb for these tasks, at most AT_MOST; chosen in the list, or on the page of a run."""
    verb = _permitted(screen, request, CHOSEN_VERBS, name)
    keys = list(rows.values_list("pk", flat=True)[: actions.AT_MOST + 1])
    more = _(" More were chosen: do it again for the rest.") if len(keys) > actions.AT_MOST else ""
    keys = keys[: actions.AT_MOST]
    back = display.page_of("workflowrun", run_id) if run_id else display.list_of("task")
    if not keys:
        screen.message_user(request, _("Choose the tasks first."), messages.WARNING)
        return HttpResponseRedirect(back)
    # One field for all ids: Django refuses forms of more than DATA_UPLOAD_MAX_NUMBER_FIELDS, 1,000, fields.
    hidden = [(ACTION_CHECKBOX_NAME, ",".join(map(str, keys))), *([(RUN, str(run_id))] if run_id else [])]
    deed = Deed(
        title=f"{verb.title}", verb=verb.title, warning=f"{verb.warning}{more}", back=back, form=verb.form,
        hidden=hidden,
        do=lambda by, reason, dry_run: verb.do(
            graph_verbs.chosen_tasks(keys), "", by=by, reason=reason, dry_run=dry_run
        ),
        remember=lambda told: _remember(request, Task, keys, told),
        address=reverse(f"admin:{APP}_graph_chosen", args=[name]),
    )  # fmt: skip
    return respond(screen, request, deed)


def _permitted(screen: Any, request: HttpRequest, verbs: dict[str, Verb], name: str) -> Verb:
    verb = verbs.get(name)
    if verb is None:
        raise Http404(_("There is no such verb."))
    if not screen.has_view_permission(request) or not graph_verbs.may(request, verb.permission):
        raise PermissionDenied
    return verb


def _deed(request: HttpRequest, verb: Verb, row: Any, named: str, subject: Any = None) -> Deed:
    modes = {mode.name: mode for mode in verb.modes}
    mode = modes.get(request.GET.get("mode", "")) or next(iter(verb.modes), None)
    here = request.path
    return Deed(
        title=f"{verb.title}: {named}", verb=verb.title, form=verb.form,
        warning=mode.warning if mode else verb.warning,
        back=display.page_of(row._meta.model_name, row.pk), address=f"{here}?mode={mode.name}" if mode else here,
        do=lambda by, reason, dry_run: verb.do(
            row if subject is None else subject, mode.name if mode else "", by=by, reason=reason, dry_run=dry_run
        ),
        remember=lambda told: _remember(request, type(row), [row.pk], told),
        tabs=[{"title": one.title, "address": f"{here}?mode={one.name}", "here": one is mode} for one in verb.modes],
    )  # fmt: skip


def _remember(request: HttpRequest, model: type[Task] | type[WorkflowRun], keys: Sequence[Any], told: str) -> None:
    """Write into the history of each row who did what, and why."""
    rows: Any = model._default_manager.using(conf.settings().DATABASE).filter(pk__in=list(keys)).only("pk", "name")
    LogEntry.objects.log_actions(int(request.user.pk or 0), rows, CHANGE, told)


def _key(text: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(text)
    except ValueError:
        return None
