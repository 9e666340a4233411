"""Graphs for process tests, and the expected state of their tasks at the end, whichever processes
died.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from datetime import datetime
from typing import Any

from django_durable_tasks import Workflow
from django_durable_tasks.models import Task, TaskDependency, TaskExecutionLog, WorkflowRun
from django_durable_tasks.workflows.builder import Step
from tests.project import nodes

WIDTH = 40


def layered(name: str, tasks: int, *, failing: bool = True) -> Workflow:
    """Return a graph of about `tasks` tasks in layers of WIDTH: fan-ins, partial joins, retries,
    additions, failures.

    Every fifth layer is joined by one task and a sub-workflow three levels deep, and fanned out
    again. ``bad`` steps fail, ``below`` ones are skipped because of them, ``after`` ones run
    because of them; all others succeed.
    """
    found = Workflow(name)
    layer = [found.add(nodes.node, step="first")]
    number = 0
    while len(found) < tasks:
        number += 1
        if number % 5 == 0:
            layer = [_gathered(found, layer, number)]
        else:
            layer = [_one(found, layer, number, place) for place in range(WIDTH)]
            if failing:
                _twigs(found, layer, number)
    found.add(nodes.total, [step.result["value"] for step in layer], after=layer, step="last")
    return found


def _one(found: Workflow, above: list[Step], number: int, place: int) -> Step:
    """Depend on up to three tasks of the layer above: on all, two or any of them."""
    ups = list(dict.fromkeys(above[(place + shift) % len(above)] for shift in (0, 1, 7)))
    join = ("ALL", "ALL", "ANY", min(2, len(ups)))[place % 4]
    given: dict[str, Any] = (
        {"fails": 1} if place % 9 == 4 else {"grows": 3} if place == 20 and number % 4 == 1 else {}
    )
    return found.add(nodes.node, after=ups, join=join, step=f"node {number}.{place}", **given)


def _gathered(found: Workflow, above: list[Step], number: int) -> Step:
    fan_in = found.add(nodes.node, after=above, step=f"gathered {number}")
    return found.add_workflow(nested(f"nested-{number}", 3), after=fan_in, step=f"part {number}")


def _twigs(found: Workflow, layer: list[Step], number: int) -> None:
    bad = found.add(nodes.hopeless, after=layer[0], step=f"bad {number}")
    below = found.add(nodes.node, after=bad, step=f"below {number}")
    found.add(nodes.node, after=[below, layer[1]], step=f"below {number} too")
    found.add(nodes.node, after={bad: "MUST_FAIL"}, step=f"after {number}")
    found.add(
        nodes.node, after={bad: "MUST_FINISH", layer[2]: "MUST_SUCCEED"}, step=f"after {number} too"
    )


def nested(name: str, depth: int) -> Workflow:
    """Return a workflow with sub-workflows nested `depth` levels deep."""
    found = Workflow(name)
    first = found.add(nodes.node, step=f"{name} leaf")
    if depth > 1:
        found.add_workflow(nested(f"{name}.{depth}", depth - 1), after=first, step=f"{name} part")
    return found


def whole(run: WorkflowRun) -> list[WorkflowRun]:
    """Return the run and all its sub-workflows, read again."""
    return list(WorkflowRun.objects.filter(root=run.root).order_by("pk"))


def tasks_of(run: WorkflowRun) -> list[Task]:
    """Return all tasks of the workflow and its sub-workflows."""
    return list(Task.objects.filter(workflow__root=run.root))


def progress(run: WorkflowRun) -> tuple[float, bool]:
    """Return which part of the workflow has been counted as ended, and whether one of its runs is
    open.
    """
    columns = ("total", "succeeded", "failed", "cancelled", "skipped", "expired", "completed_at")
    rows = list(WorkflowRun.objects.filter(root=run.root).values_list(*columns))
    return sum(sum(row[1:6]) for row in rows) / sum(row[0] for row in rows), any(
        row[6] is None for row in rows
    )


def wrongly_ended(run: WorkflowRun) -> list[str]:
    """Return the tasks in another status than ``layered`` specifies."""
    wanted = {"bad": "FAILED", "below": "SKIPPED"}
    return [
        f"{task.step} is {task.status} ({task.reason})"
        for task in tasks_of(run)
        if task.status != wanted.get((task.step or "").partition(" ")[0], "SUCCESS")
    ]


def first_starts(tasks: list[Task]) -> dict[uuid.UUID, datetime]:
    """Return when the first attempt of each task started, by the database's clock."""
    found: dict[uuid.UUID, datetime] = {}
    logs = TaskExecutionLog.objects.filter(
        task__in=[task.pk for task in tasks], started_at__isnull=False
    )
    starts = [
        *logs.values_list("task", "started_at"),
        *((task.pk, task.started_at) for task in tasks),
    ]
    for task_id, started_at in starts:
        if started_at is not None:
            found[task_id] = min(found.get(task_id, started_at), started_at)
    return found


def started_early(run: WorkflowRun) -> list[str]:
    """Return the tasks whose first attempt started before their join was met."""
    tasks = {task.pk: task for task in tasks_of(run)}
    above: dict[uuid.UUID, list[TaskDependency]] = defaultdict(list)
    for edge in TaskDependency.objects.filter(task__in=list(tasks), depends_on__isnull=False):
        above[edge.task_id].append(edge)
    wrong = []
    for key, started_at in first_starts(list(tasks.values())).items():
        ends = sorted(
            end
            for edge in above[key]
            if (end := tasks[edge.upstream_id].completed_at) is not None
            and _as_required(edge, tasks[edge.upstream_id])
        )
        needs = tasks[key].join_count or len(above[key])
        if len(ends) < needs or (needs and ends[needs - 1] > started_at):
            wrong.append(
                f"{tasks[key].step} started at {started_at}; {len(ends)} of {needs} upstreams:"
                f" {ends}"
            )
    return wrong


def _as_required(edge: TaskDependency, upstream: Task) -> bool:
    asked = {"MUST_SUCCEED": ("SUCCESS",), "MUST_FAIL": ("FAILED",)}
    return upstream.status in asked.get(
        edge.dependency_type, ("SUCCESS", "FAILED", "SKIPPED", "CANCELLED")
    )


def started_after(run: WorkflowRun, instant: datetime) -> list[str]:
    """Return the attempts of the workflow that started after an instant of the database's clock."""
    tasks = {task.pk: task for task in tasks_of(run)}
    logs = TaskExecutionLog.objects.filter(task__in=list(tasks), started_at__gt=instant)
    late = [f"{tasks[key].step} at {at}" for key, at in logs.values_list("task", "started_at")]
    return late + [
        f"{task.step} at {task.started_at}" for task in tasks.values() if _is_after(task, instant)
    ]


def _is_after(task: Task, instant: datetime) -> bool:
    return task.started_at is not None and task.started_at > instant
