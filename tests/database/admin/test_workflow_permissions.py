"""Operations on graphs are offered to users with their permissions, and done by a POST only."""

from __future__ import annotations

from typing import Any

import pytest

from django_durable_tasks.models import Task, TaskDependency, WorkflowRun
from tests.database.admin.site import operator
from tests.database.admin.workflow_actions import a_workflow_with_approval, address, do
from tests.database.admin.workflow_runs import a_diamond
from tests.database.dependencies.worker_and_leader import fail, of, resolve_all, succeed

pytestmark = pytest.mark.django_db


def _run() -> WorkflowRun:
    return WorkflowRun.objects.get(name="diamond")


def _step(step: str) -> Task:
    found: Task = Task.objects.get(step=step)
    return found


def _write_graphs() -> None:
    run = a_diamond()
    succeed(of(run, "top"))
    resolve_all()
    fail(of(run, "left"))
    resolve_all()
    gated = a_workflow_with_approval()
    do(operator("root"), of(gated, "pay"), "hold")


def _state() -> list[Any]:
    """Return every value that an operation may change."""
    return [
        sorted(Task.objects.values_list("pk", "status", "epoch", "unresolved_dependencies_count")),
        sorted(
            TaskDependency.objects.values_list("pk", "outcome", "resolved_by").order_by(), key=str
        ),
        sorted(WorkflowRun.objects.values_list("pk", "cancel_requested_at")),
    ]


def test_a_get_request_changes_nothing() -> None:
    _write_graphs()
    ann = operator()
    before = _state()
    asked = {
        "cancel": _run(),
        "replay": _run(),
        "approve": _step("pay"),
        "reject": _step("pay"),
        "hold": _step("ship"),
        "unhold": _step("pay"),
        "replay_from": _step("left"),
        "cancel_branch": _step("right"),
        "force_run": _step("bottom"),
    }
    for name, row in asked.items():
        assert ann.get(address(row, name) + "?_do=1&reason=x").context["asking"], name
        assert ann.post(address(row, name) + "?_do=1&reason=x").context["number"], name
        assert _state() == before, name
