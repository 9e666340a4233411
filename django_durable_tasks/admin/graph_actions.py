"""Buttons of the operations on a workflow run, on a task with dependencies, and on selected
tasks.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from django.http import HttpRequest
from django.urls import reverse

from django_durable_tasks import conf
from django_durable_tasks.models import Task, TaskDependency, WorkflowRun
from django_durable_tasks.models.task_queries import TaskQuerySet
from django_durable_tasks.operations import gates, workflows
from django_durable_tasks.operations.operation import APP, Operation
from django_durable_tasks.rules.dependencies import Gate
from django_durable_tasks.rules.states import REPLAYABLE, Status
from django_durable_tasks.rules.workflows.plan import WorkflowStatus

LINKABLE = (Status.BLOCKED, Status.PENDING, Status.QUEUED)
"""The statuses of a task to which a dependency can be added."""
RUN_OPERATIONS = (workflows.CANCEL, workflows.REPLAY)
TASK_OPERATIONS = (
    *gates.OPERATIONS,
    workflows.REPLAY_FROM,
    workflows.CANCEL_BRANCH,
    workflows.FORCE_RUN,
)
CHOSEN_OPERATIONS = (workflows.FORCE_RUN, workflows.FORCE_COMPLETE)


def may_force(request: HttpRequest) -> bool:
    """Return whether the user may force tasks."""
    return workflows.FORCE_RUN.is_permitted(request.user)


def chosen_tasks(keys: Sequence[uuid.UUID]) -> TaskQuerySet:
    """Return a queryset of these tasks."""
    found: TaskQuerySet = Task.objects.using(conf.settings().DATABASE).filter(pk__in=list(keys))
    return found


# Buttons ------------------------------------------------------------------------------------------


def address(row: Any, operation: Operation) -> str:
    """Return the URL of the page of an operation."""
    kind = "run" if isinstance(row, WorkflowRun) else "task"
    return reverse(f"admin:{APP}_graph_{kind}", args=[row.pk, operation.name])


def buttons_of_run(request: HttpRequest, run: WorkflowRun) -> list[dict[str, Any]]:
    """Return the buttons of the permitted operations that can change this run."""
    fits = {
        workflows.CANCEL: run.is_open and run.cancel_requested_at is None,
        workflows.REPLAY: run.status != WorkflowStatus.STARTING and run.ended > 0,
    }
    return _buttons(request, run, fits)


def buttons_of_task(
    request: HttpRequest, task: Task, above: Sequence[TaskDependency]
) -> list[dict[str, Any]]:
    """Return the buttons of the permitted operations that can change this task; ``above`` are its
    dependencies.
    """
    closed = {edge.gate for edge in above if edge.gate and edge.resolved_at is None}
    linked = bool(above) or task.has_dependents or task.workflow_id is not None
    blocked = task.status == Status.BLOCKED
    fits = {
        gates.APPROVE: blocked and Gate.APPROVAL in closed,
        gates.REJECT: blocked and Gate.APPROVAL in closed,
        gates.HOLD: task.status in LINKABLE and Gate.HOLD not in closed,
        gates.UNHOLD: blocked and Gate.HOLD in closed,
        workflows.REPLAY_FROM: linked
        and (task.status in REPLAYABLE or task.status == Status.SUCCESS),
        workflows.CANCEL_BRANCH: task.has_dependents,
        workflows.FORCE_RUN: bool(above) and task.status in (Status.BLOCKED, Status.SKIPPED),
    }
    return _buttons(request, task, fits)


def buttons_of_chosen() -> list[dict[str, Any]]:
    """Return the buttons of the operations on selected tasks."""
    return [
        {
            "address": reverse(f"admin:{APP}_graph_chosen", args=[operation.name]),
            "title": operation.title,
        }
        for operation in CHOSEN_OPERATIONS
    ]


def buttons_of_gate(request: HttpRequest, task: Task, gate: str) -> list[dict[str, Any]]:
    """Return the buttons of the operations that open a closed gate."""
    opening = (gates.APPROVE, gates.REJECT) if gate == Gate.APPROVAL else (gates.UNHOLD,)
    return _buttons(request, task, dict.fromkeys(opening, task.status == Status.BLOCKED))


def _buttons(request: HttpRequest, row: Any, fits: dict[Operation, bool]) -> list[dict[str, Any]]:
    return [
        {"url": address(row, operation), "posts": True, "title": f"{operation.title}…"}
        for operation, fit in fits.items()
        if fit and operation.is_permitted(request.user)
    ]
