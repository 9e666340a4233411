"""Each operation on graphs has its own permission, which is necessary and sufficient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from django_durable_tasks.models import Task, TaskDependency, WorkflowRun
from tests.database.admin.site import list_of, operator, page_of, staff
from tests.database.admin.workflow_actions import a_workflow_with_approval, address, choose, do
from tests.database.admin.workflow_runs import a_diamond
from tests.database.dependencies.worker_and_leader import fail, of, resolve_all, succeed

pytestmark = pytest.mark.django_db

VIEWS = ("view_workflowrun", "view_task", "view_taskdependency")
ALL = (
    "cancel_workflowrun",
    "retry_workflowrun",
    "force_workflowrun",
    "approve_taskdependency",
    "cancel_task",
    "retry_task",
    "force_complete_task",
    "add_taskdependency",
    "delete_taskdependency",
)


def _run() -> WorkflowRun:
    return WorkflowRun.objects.get(name="diamond")


def _step(step: str) -> Task:
    found: Task = Task.objects.get(step=step)
    return found


def _edge_form() -> dict[str, str]:
    return {
        "task": str(_step("bottom").pk),
        "upstream": str(_step("top").pk),
        "type": "MUST_SUCCEED",
        "_do": "1",
    }


OPERATIONS: dict[str, tuple[str, Callable[[Client], Any]]] = {
    "cancel": ("cancel_workflowrun", lambda client: do(client, _run(), "cancel")),
    "replay": ("retry_workflowrun", lambda client: do(client, _run(), "replay")),
    "force_run": (
        "force_workflowrun",
        lambda client: do(client, _step("bottom"), "force_run", reason="x"),
    ),
    "force_complete_in_graph": (
        "force_workflowrun",
        lambda client: choose(
            client, "force_complete_in_graph", _step("left"), _do="1", reason="x"
        ),
    ),
    "approve": ("approve_taskdependency", lambda client: do(client, _step("pay"), "approve")),
    "reject": (
        "approve_taskdependency",
        lambda client: do(client, _step("pay"), "reject", reason="x"),
    ),
    "hold": ("approve_taskdependency", lambda client: do(client, _step("ship"), "hold")),
    "unhold": ("approve_taskdependency", lambda client: do(client, _step("pay"), "unhold")),
    "replay_from": ("retry_workflowrun", lambda client: do(client, _step("left"), "replay_from")),
    "cancel_branch": (
        "cancel_workflowrun",
        lambda client: do(client, _step("right"), "cancel_branch"),
    ),
    "add": (
        "add_taskdependency",
        lambda client: client.post(
            reverse("admin:django_durable_tasks_taskdependency_add"),
            {**_edge_form(), "task": str(_step("ship").pk), "upstream": str(_step("right").pk)},
        ),
    ),
    "remove": (
        "delete_taskdependency",
        lambda client: client.post(
            reverse(
                "admin:django_durable_tasks_graph_unlink",
                args=[TaskDependency.objects.get(task=_step("ship"), depends_on=_step("pay")).pk],
            ),
            {"_do": "1", "reason": ""},
        ),
    ),
}


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


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_on_graphs_works_with_its_own_permission_alone(name: str) -> None:
    _write_graphs()
    before = _state()
    permission, operation = OPERATIONS[name]
    operation(staff(*VIEWS, permission))
    assert _state() != before


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_on_graphs_does_nothing_without_its_permission(name: str) -> None:
    _write_graphs()
    before = _state()
    permission, operation = OPERATIONS[name]
    assert (
        operation(staff(*VIEWS, *(other for other in ALL if other != permission))).status_code
        == 403
    )
    assert _state() == before


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_on_graphs_does_nothing_for_a_user_without_view_permission(name: str) -> None:
    _write_graphs()
    before = _state()
    permission, operation = OPERATIONS[name]
    assert operation(staff(permission)).status_code == 403
    assert _state() == before


def test_every_graph_form_is_refused_without_its_csrf_token() -> None:
    _write_graphs()
    client = staff(*VIEWS, *ALL)
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = client.cookies
    before = _state()
    for name, (_permission, operation) in OPERATIONS.items():
        assert operation(strict).status_code == 403, name
    assert _state() == before


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


def test_a_user_with_view_permission_only_is_offered_no_operation() -> None:
    _write_graphs()
    looker = staff(*VIEWS)
    for row in (
        _run(),
        _step("pay"),
        _step("bottom"),
        _step("left"),
        *TaskDependency.objects.all(),
    ):
        page = looker.get(page_of(row))
        assert not [
            button
            for button in page.context["buttons"]
            if "Its dead letters" not in str(button["title"])
        ]
        assert "durable-chosen" not in page.content.decode()
        assert "Remove…" not in page.content.decode()
    assert 'name="action"' not in looker.get(list_of("task")).content.decode()
    assert "/add/" not in looker.get(list_of("taskdependency")).content.decode()
