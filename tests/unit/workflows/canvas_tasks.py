"""Tasks, and plans of canvases made of them."""

from __future__ import annotations

from typing import Any

from django_durable_tasks import Workflow, durable_task
from django_durable_tasks.rules.workflows.plan import Plan, PlannedTask

MOST = {"most_tasks": 10_000, "most_edges": 50_000}


@durable_task
def told_everything(request: Any, exc: Any, traceback: Any) -> None:
    """Be an errback of Celery's new style."""


@durable_task
def told_the_id(task_id: str) -> None:
    """Be an errback of Celery's old style."""


@durable_task
def told_more(task_id: str, note: str) -> None:
    """Be an errback that needs one argument more than the id."""


def planned(canvas: Any) -> Plan:
    """Return the plan of the workflow that a canvas becomes."""
    return Workflow.from_canvas(canvas).plan(**MOST)


def only(canvas: Any) -> PlannedTask:
    """Return the only task of the plan."""
    (task,) = planned(canvas).tasks
    return task


def upstreams(plan: Plan) -> list[list[str]]:
    """Return for each task the steps that it waits for."""
    return [
        [plan.tasks[int(str(edge.upstream))].step for edge in task.edges] for task in plan.tasks
    ]
