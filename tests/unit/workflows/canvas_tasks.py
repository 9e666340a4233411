"""Tasks, and workflow plans of canvases made of them."""

from __future__ import annotations

from typing import Any

from django_durable_tasks import Workflow, durable_task
from django_durable_tasks.workflows.builder import Plan, PlannedTask

MOST = {"most_tasks": 10_000, "most_edges": 50_000}


@durable_task
def errback_with_everything(request: Any, exc: Any, traceback: Any) -> None:
    """An errback with Celery's new signature."""


@durable_task
def errback_with_id(task_id: str) -> None:
    """An errback with Celery's old signature."""


@durable_task
def errback_with_more(task_id: str, note: str) -> None:
    """An errback that needs one argument besides the id."""


def planned(canvas: Any) -> Plan:
    """Return the plan of the workflow into which a canvas is translated."""
    return Workflow.from_canvas(canvas).plan(**MOST)


def only(canvas: Any) -> PlannedTask:
    """Return the only task of the plan."""
    (task,) = planned(canvas).tasks
    return task


def upstreams(plan: Plan) -> list[list[str]]:
    """Return for each task the steps it depends on."""
    return [
        [plan.tasks[int(str(edge.upstream))].step for edge in task.edges] for task in plan.tasks
    ]
