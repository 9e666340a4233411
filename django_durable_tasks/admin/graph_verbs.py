"""The verbs that an operator may say to a workflow, to one task of a graph, or to chosen ones: each one call."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from django import forms
from django.http import HttpRequest
from django.urls import reverse
from django.utils.translation import gettext_lazy as _

from django_durable_tasks import conf
from django_durable_tasks.admin.previews import NeededReasonForm, ReasonForm
from django_durable_tasks.lifecycle import graph_operations
from django_durable_tasks.lifecycle.graph_operations import Report
from django_durable_tasks.models import Task, TaskDependency, WorkflowRun
from django_durable_tasks.models.task import TaskQuerySet
from django_durable_tasks.rules.graphs import Gate
from django_durable_tasks.rules.states import REPLAYABLE, Status
from django_durable_tasks.rules.workflows import WorkflowStatus

APP = "django_durable_tasks"
LINKABLE = (Status.BLOCKED, Status.PENDING, Status.QUEUED)
"""Where a task stands that may be told to wait for more."""


@dataclass(frozen=True, slots=True)
class Mode:
    """One way of a verb that has several."""

    name: str
    title: Any
    warning: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """One verb: what stands on its button and its page, who may say it, and the one call.

    ``do`` is given the row (of chosen tasks the question), the mode, and by, reason and dry_run as keywords.
    """

    title: Any
    warning: Any
    permission: str
    do: Callable[..., Report]
    modes: Sequence[Mode] = ()
    form: type[forms.Form] = ReasonForm


def _retry(run: WorkflowRun, mode: str, **said: Any) -> Report:
    return graph_operations.retry_workflow(run, mode, **said)


def _of_one(operation: Callable[..., Report]) -> Callable[..., Report]:
    def do(row: Any, _mode: str, **said: Any) -> Report:
        return operation(row, **said)

    return do


RUN_VERBS = {
    "cancel": Verb(
        title=_("Cancel the workflow"), permission="cancel_workflowrun", do=_of_one(graph_operations.cancel_workflow),
        warning=_("What waits is cancelled at once and never runs; what runs is asked to stop. Its sub-workflows too."),
    ),
    "retry": Verb(
        title=_("Retry the workflow"), permission="retry_workflowrun", do=_retry,
        warning=_("Tasks run again under the same idempotency keys, with their budgets renewed."),
        modes=(
            Mode("FAILED", _("Failed only"),
                 _("What failed, expired or was cancelled runs again, and what was skipped because of it.")),
            Mode("FAILED_AND_DOWNSTREAM", _("Failed and downstream"),
                 _("What failed, expired or was cancelled runs again, and all that comes after it: successes too.")),
            Mode("ALL", _("All"), _("Everything that has ended runs again: successes too.")),
        ),
    ),
}  # fmt: skip
TASK_VERBS = {
    "approve": Verb(
        title=_("Approve"), permission="approve_taskdependency", do=_of_one(graph_operations.approve),
        warning=_("It runs as soon as nothing else holds it."),
    ),
    "reject": Verb(
        title=_("Reject"), permission="approve_taskdependency", do=_of_one(graph_operations.reject),
        form=NeededReasonForm,
        warning=_("The task will not run. Tasks that depend on it are skipped or fail, as their policy says."),
    ),
    "hold": Verb(
        title=_("Hold"), permission="approve_taskdependency", do=_of_one(graph_operations.hold),
        warning=_("It waits until somebody ends the hold."),
    ),
    "unhold": Verb(
        title=_("End the hold"), permission="approve_taskdependency", do=_of_one(graph_operations.unhold),
        warning=_("It runs as soon as nothing else holds it."),
    ),
    "retry-from": Verb(
        title=_("Retry from here"), permission="retry_workflowrun", do=_of_one(graph_operations.retry_from),
        warning=_("This task and everything that comes after it runs again."),
    ),
    "cancel-branch": Verb(
        title=_("Cancel this branch"), permission="cancel_workflowrun", do=_of_one(graph_operations.cancel_branch),
        warning=_("This task and everything that waits for it is cancelled; what runs is asked to stop."),
    ),
}  # fmt: skip
CHOSEN_VERBS = {
    "force-run": Verb(
        title=_("Force-run"), permission="force_workflowrun", do=_of_one(graph_operations.force_run),
        form=NeededReasonForm,
        warning=_("BLOCKED and SKIPPED tasks run now, whatever they wait for and however that ended."),
    ),
    "force-complete": Verb(
        title=_("Force-complete"), permission="force_workflowrun", do=_of_one(graph_operations.force_complete),
        form=NeededReasonForm,
        warning=_("The tasks become SUCCESS without running, and what waits for them goes on."),
    ),
}  # fmt: skip


def may(request: HttpRequest, permission: str) -> bool:
    """Return whether this person has this permission of ours."""
    return bool(request.user.has_perm(f"{APP}.{permission}"))


def may_force(request: HttpRequest) -> bool:
    """Return whether this person may force tasks."""
    return may(request, "force_workflowrun")


def chosen_tasks(keys: Sequence[uuid.UUID]) -> TaskQuerySet:
    """Return the question "these tasks"."""
    found: TaskQuerySet = Task.objects.using(conf.settings().DATABASE).filter(pk__in=list(keys))
    return found


# Buttons ----------------------------------------------------------------------------------------------------------


def address(row: Any, name: str) -> str:
    """Return the address of the page of a verb."""
    kind = "run" if isinstance(row, WorkflowRun) else "task"
    return reverse(f"admin:{APP}_graph_{kind}", args=[row.pk, name])


def buttons_of_run(screen: Any, request: HttpRequest, run: WorkflowRun) -> list[dict[str, Any]]:
    """Return the buttons of the verbs that fit this run and that this person may say."""
    fits = {
        "cancel": run.is_open and run.cancel_requested_at is None,
        "retry": run.status != WorkflowStatus.STARTING and run.ended > 0,
    }
    return _buttons(request, run, RUN_VERBS, fits)


def buttons_of_task(request: HttpRequest, task: Task, above: Sequence[TaskDependency]) -> list[dict[str, Any]]:
    """Return the buttons of the verbs that fit this task, with these edges above, and that this person may say."""
    closed = {edge.gate for edge in above if edge.gate and edge.resolved_at is None}
    linked = bool(above) or task.has_dependents or task.workflow_id is not None
    blocked = task.status == Status.BLOCKED
    fits = {
        "approve": blocked and Gate.APPROVAL in closed, "reject": blocked and Gate.APPROVAL in closed,
        "hold": task.status in LINKABLE and Gate.HOLD not in closed, "unhold": blocked and Gate.HOLD in closed,
        "force-run": bool(above) and task.status in (Status.BLOCKED, Status.SKIPPED),
        "retry-from": linked and (task.status in REPLAYABLE or task.status == Status.SUCCESS),
        "cancel-branch": task.has_dependents,
    }  # fmt: skip
    return _buttons(request, task, {**TASK_VERBS, "force-run": CHOSEN_VERBS["force-run"]}, fits)


def buttons_of_chosen() -> list[dict[str, Any]]:
    """Return the buttons of the verbs for chosen tasks."""
    return [
        {"address": reverse(f"admin:{APP}_graph_chosen", args=[name]), "title": verb.title}
        for name, verb in CHOSEN_VERBS.items()
    ]


def buttons_of_gate(request: HttpRequest, task: Task, gate: str) -> list[dict[str, Any]]:
    """Return the buttons of the verbs that open a closed gate."""
    names = ("approve", "reject") if gate == Gate.APPROVAL else ("unhold",)
    waits = task.status == Status.BLOCKED
    return _buttons(request, task, {name: TASK_VERBS[name] for name in names}, dict.fromkeys(names, waits))


def _buttons(request: HttpRequest, row: Any, verbs: dict[str, Verb], fits: dict[str, bool]) -> list[dict[str, Any]]:
    return [
        {"url": address(row, name), "posts": True, "title": f"{verb.title}…"}
        for name, verb in verbs.items()
        if fits[name] and may(request, verb.permission)
    ]
