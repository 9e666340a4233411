"""The explanation of a task's status on its page, and the buttons of its operations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from django.http import HttpRequest
from django.urls import reverse
from django.utils.translation import gettext as _

from django_durable_tasks.admin import display, task_graph
from django_durable_tasks.admin.display import list_of
from django_durable_tasks.admin.replay_form import may_edit_arguments
from django_durable_tasks.celery.explain import sentences
from django_durable_tasks.models import Task
from django_durable_tasks.operations.tasks import (
    CANCEL,
    FORCE_COMPLETE,
    REPLAY,
    REPLAY_EDITED,
    RETRY,
)
from django_durable_tasks.rules.states import OPEN, REPLAYABLE, Status


def is_overdue(task: Any) -> bool:
    """Return whether a run takes longer than its expected duration."""
    if task.status != Status.RUNNING or task.expected_duration is None or task.started_at is None:
        return False
    return bool(task.started_at + task.expected_duration < task.seen_at)


def labels(task: Any) -> list[tuple[str, str]]:
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


def of_page(screen: Any, request: HttpRequest, task: Any) -> dict[str, Any]:
    """Return the context of a task's page: sentences, buttons and dependencies."""
    graph = task_graph.of_page(request, task)
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
    fits = {
        RETRY: task.status == Status.PENDING and task.failures > 0,
        REPLAY: ended and not _is_skipped_by_an_ended_task(task),
        CANCEL: task.status in OPEN and task.cancel_requested_at is None,
        FORCE_COMPLETE: task.status != Status.SUCCESS,
    }
    found = [
        {"action": one.name, "title": f"{one.title}…"}
        for one, fit in fits.items()
        if fit and one.name in permitted
    ]
    if ended and may_edit_arguments(request):
        edit = reverse("admin:django_durable_tasks_task_replay", args=[task.pk])
        found.insert(1, {"url": edit, "title": f"{REPLAY_EDITED.title}…"})
    if task.status == Status.FAILED and request.user.has_perm(
        "django_durable_tasks.view_deadletter"
    ):
        letters = list_of("deadletter", task__id__exact=task.pk, case="all")
        found.append({"url": letters, "title": _("Its dead letters")})
    return found
