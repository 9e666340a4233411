"""Actions on workflows as a test performs them in the admin."""

from __future__ import annotations

from typing import Any

from django.test import Client
from django.urls import reverse
from django.utils.html import strip_tags

from django_durable_tasks import Workflow
from django_durable_tasks.models import Task, WorkflowRun
from tests.database.admin.graph_pages import a_diamond
from tests.database.dependencies.worker_and_leader import fail, of, stands, succeed, tell
from tests.project.tasks import noop

STEPS = ("top", "left", "right", "bottom")


def address(row: Any, name: str) -> str:
    """Return the address of the page of a verb."""
    return reverse(
        f"admin:django_durable_tasks_graph_{'run' if isinstance(row, WorkflowRun) else 'task'}",
        args=[row.pk, name],
    )


def moves(answer: Any) -> set[str]:
    """Return the rows of a preview or of an answer, as a person reads them."""
    return {
        " ".join(strip_tags(f"{line['link']} {line['before']} {line['after']}").split())
        for line in answer.context["lines"]
    }


def of_all(run: WorkflowRun) -> list[str]:
    """Return where the four tasks stand."""
    return stands(*(of(run, step) for step in STEPS))


def a_failed_diamond() -> WorkflowRun:
    """Return a diamond whose left failed: its bottom was skipped."""
    run = a_diamond()
    succeed(of(run, "top"))
    tell()
    succeed(of(run, "right"))
    fail(of(run, "left"))
    tell()
    return run


def choose(client: Client, name: str, *tasks: Task, **given: str) -> Any:
    """Choose tasks, and ask for a verb of them."""
    here = reverse("admin:django_durable_tasks_graph_chosen", args=[name])
    return client.post(here, {"_selected_action": [str(task.pk) for task in tasks], **given})


def do(client: Client, row: Any, name: str, mode: str = "", **given: str) -> Any:
    """Say a verb as its page does: what was shown is sent with it."""
    here = address(row, name) + (f"?mode={mode}" if mode else "")
    seen = (client.post(here).context or {}).get("seen", "")
    return client.post(here, {"_do": "1", "seen": seen, "reason": "", **given})


def a_gated() -> WorkflowRun:
    """Start a workflow whose first task waits for an approval."""
    wf = Workflow("gated")
    pay = wf.add(noop, approval="ask the controller", step="pay")
    wf.add(noop, after=pay, step="ship")
    return wf.start()
