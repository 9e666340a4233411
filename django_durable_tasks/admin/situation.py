"""Why a task stands where it stands, as its page tells it, and which buttons stand beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from django.http import HttpRequest
from django.urls import reverse
from django.utils.translation import gettext as _

from django_durable_tasks.admin import actions, display, task_graph
from django_durable_tasks.admin.display import list_of
from django_durable_tasks.celery.explaining import sentences
from django_durable_tasks.models import Task
from django_durable_tasks.rules.states import OPEN, REPLAYABLE, Status


def is_overdue(task: Any) -> bool:
    """Return whether a run takes longer than its expected duration."""
    if task.status != Status.RUNNING or task.expected_duration is None or task.started_at is None:
        return False
    return bool(task.started_at + task.expected_duration < task.seen_at)


def labels(task: Any) -> list[tuple[str, str]]:
    """Return what is true of a row beside its status: (mark, text)."""
    true = {
        "retrying": task.status == Status.PENDING and task.failures > 0,
        "overdue": is_overdue(task),
        "worker silent": task.lease_until is not None and task.lease_until < task.seen_at,
        "asked to stop": task.status == Status.RUNNING and task.cancel_requested_at is not None,
        "published in vain": task.status == Status.QUEUED and task.publish_count > 1,
    }
    return [(text.replace(" ", "-"), text) for text, holds in true.items() if holds]


def of_page(screen: Any, request: HttpRequest, task: Any) -> dict[str, Any]:
    """Return the sentences and buttons of a task's page, and what it shows of its graph."""
    graph = task_graph.of_page(request, task)
    told = [*graph.pop("graph_sentences"), *(replace(one, text=display.clean(one.text)) for one in sentences(task))]
    buttons = [*_buttons(screen, request, task), *graph.pop("graph_buttons")]
    return {"sentences": told, "buttons": buttons, **graph}


def took(task: Any) -> str:
    """Return how long the last try took, or takes until the database's now."""
    if task.started_at is None or not (task.completed_at or task.status == Status.RUNNING):
        return display.NOTHING
    return display.duration(((task.completed_at or task.seen_at) - task.started_at).total_seconds())


def _skipped_by_an_end(task: Any) -> bool:
    """Return whether the task was skipped because of one that has ended so: it cannot run again before that one."""
    if task.status != Status.SKIPPED or task.cause is None:
        return False
    causes = Task.objects.using(task._state.db).filter(pk=task.cause, status__in=REPLAYABLE)
    return bool(causes.exists())


def _buttons(screen: Any, request: HttpRequest, task: Any) -> list[dict[str, str]]:
    permitted = screen.get_actions(request)
    ended = task.status in REPLAYABLE
    fits = {
        "retry": (ended and not _skipped_by_an_end(task)) or (task.status == Status.PENDING and task.failures > 0),
        "cancel": task.status in OPEN and task.cancel_requested_at is None,
        "force_complete": task.status != Status.SUCCESS,
    }
    titles = {
        name: actions.title_of(permitted[name]).partition(" (")[0]
        for name, fit in fits.items()
        if fit and name in permitted
    }
    found = [{"action": name, "title": title} for name, title in titles.items()]
    if ended and screen.has_edit_permission(request):
        edit = reverse("admin:django_durable_tasks_task_replay", args=[task.pk])
        found.insert(1, {"url": edit, "title": _("Replay with edited arguments…")})
    if task.status == Status.FAILED and request.user.has_perm("django_durable_tasks.view_deadletter"):
        cases = list_of("deadletter", task__id__exact=task.pk, case="all")
        found.append({"url": cases, "title": _("Its dead letters")})
    return found
