"""Perform operations on workflows and their tasks through the admin."""

from __future__ import annotations

from typing import Any

from django.test import Client
from django.urls import reverse
from django.utils.html import strip_tags

from django_durable_tasks import Workflow
from django_durable_tasks.models import Task, WorkflowRun
from tests.database.admin.workflow_runs import a_diamond
from tests.database.dependencies.worker_and_leader import fail, of, resolve_all, statuses, succeed
from tests.project.tasks import noop

STEPS = ("top", "left", "right", "bottom")


def address(row: Any, name: str) -> str:
    """Return the URL of the page of an operation."""
    return reverse(f"admin:django_durable_tasks_{row._meta.model_name}_do", args=[row.pk, name])


def changes(answer: Any) -> set[str]:
    """Return the lines of a dry run or of a result page as plain text."""
    return {
        " ".join(strip_tags(f"{line['link']} {line['before']} {line['after']}").split())
        for line in answer.context["lines"]
    }


def statuses_of(run: WorkflowRun) -> list[str]:
    """Return the statuses of the four tasks."""
    return statuses(*(of(run, step) for step in STEPS))


def a_failed_diamond() -> WorkflowRun:
    """Return a diamond whose left task failed, so that its bottom task was skipped."""
    run = a_diamond()
    succeed(of(run, "top"))
    resolve_all()
    succeed(of(run, "right"))
    fail(of(run, "left"))
    resolve_all()
    return run


def choose(client: Client, name: str, *tasks: Task, **given: str) -> Any:
    """Open the page of an operation for the chosen tasks."""
    here = reverse("admin:django_durable_tasks_graph_chosen", args=[name])
    return client.post(here, {"_selected_action": [str(task.pk) for task in tasks], **given})


def do(client: Client, row: Any, name: str, mode: str = "", **given: str) -> Any:
    """Perform an operation as its page does: the confirmation contains what the page showed."""
    here = address(row, name) + (f"?mode={mode}" if mode else "")
    seen = (client.post(here).context or {}).get("seen", "")
    return client.post(here, {"_do": "1", "seen": seen, "reason": "", **given})


def a_workflow_with_approval() -> WorkflowRun:
    """Start a workflow whose first task waits for an approval."""
    wf = Workflow("gated")
    pay = wf.add(noop, approval="ask the controller", step="pay")
    wf.add(noop, after=pay, step="ship")
    return wf.start()
