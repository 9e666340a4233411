"""Workflows that a client starts."""

from __future__ import annotations

from typing import Any

import pytest

from django_durable_tasks.contrib.api import quotas
from django_durable_tasks.models import Task, TaskDependency, WorkflowRun
from tests.database.api.client import ADD, SETTINGS, ApiClient, pointers

pytestmark = pytest.mark.django_db


def step(name: str, *args: Any, **fields: Any) -> dict[str, Any]:
    """Return the body of a step that adds two numbers."""
    return {"step": name, "target_config": {"task": ADD, "args": list(args or (1, 2))}, **fields}


def flow(*steps: Any, **fields: Any) -> dict[str, Any]:
    """Return the body of a workflow."""
    return {"name": "nightly", "steps": list(steps), **fields}


def test_a_workflow_is_started_with_its_edges_and_references(acme: ApiClient) -> None:
    body = flow(
        step("report", after={"load": "MUST_FINISH", "extract": "MUST_SUCCEED"}),
        step("extract", priority=7),
        step("load", {"$result": "extract"}, 5, after=["extract"]),
    )
    answer = acme.post("/workflows", body)
    assert answer.status_code == 201, answer.content
    started = answer.json()
    assert (started["name"], started["total"], started["status"]) == ("nightly", 3, "RUNNING")
    assert acme.get(answer.headers["Location"]).json()["workflow_id"] == started["workflow_id"]
    rows = {row.step: row for row in Task.objects.for_tenant(acme.tenant)}
    assert {rows[name].status for name in ("load", "report")} == {"BLOCKED"}
    assert rows["extract"].status in ("PENDING", "QUEUED")
    assert rows["extract"].priority == 7
    assert rows["load"].args[0]["$result"] == str(rows["extract"].pk)
    edges = TaskDependency.objects.filter(task=rows["report"])
    assert sorted(edges.values_list("depends_on__step", "dependency_type")) == [
        ("extract", "MUST_SUCCEED"),
        ("load", "MUST_FINISH"),
    ]


def test_a_key_starts_one_open_workflow(acme: ApiClient, globex: ApiClient) -> None:
    body = flow(step("a"), key="nightly-7")
    first, again = acme.post("/workflows", body), acme.post("/workflows", body)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["workflow_id"] == again.json()["workflow_id"]
    assert globex.post("/workflows", body).status_code == 201
    assert WorkflowRun.objects.for_tenant(acme.tenant).count() == 1


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        (flow(), "#/steps"),
        (flow(step("a"), step("a")), "#/steps/1/step"),
        (flow(step("a", after=["b"])), "#/steps/0/after"),
        (flow(step("a", after="b")), "#/steps/0/after"),
        (flow(step("a", after={"a": "MUST_SUCCEED"})), "#/steps/0/after"),
        (flow(step("a"), step("b", after={"a": "SOMETIMES"})), "#/steps/1/after"),
        (flow(step("a", {"$result": "b"}, 1), step("b")), "#/steps/0/target_config"),
        (flow(step("a"), step("b", {"$result": "a", "x": 1}, 1)), "#/steps/1/target_config"),
        (
            flow(step("a"), step("b", {"$result": "a", "path": [1.5]}, 1)),
            "#/steps/1/target_config",
        ),
        (flow({**step("a"), "target_config": {"task": "no.such"}}), "#/steps/0/target_config/task"),
        (flow(step("a", priority=11)), "#/steps/0/priority"),
        (flow(step("a", join="SOME")), "#/steps/0/join"),
        (flow(step("a", queue="not ours")), "#/steps/0/queue"),
        (flow(step("a"), deadline="2020-01-01T00:00:00Z"), "#/deadline"),
    ],
)
def test_a_wrong_workflow_is_refused_at_its_place(
    acme: ApiClient, settings: Any, body: dict[str, Any], pointer: str
) -> None:
    settings.DURABLE_TASKS = {**SETTINGS, "API_QUEUES": ["ours"]}
    answer = acme.post("/workflows", body)
    assert answer.status_code == 422, answer.content
    assert pointers(answer)[0] == pointer
    assert not Task.objects.exists()


def test_the_dependencies_of_a_workflow_are_limited(acme: ApiClient) -> None:
    upstreams = [f"a{number}" for number in range(100)]
    body = flow(*map(step, upstreams), *(step(f"b{n}", after=upstreams) for n in range(101)))
    answer = acme.post("/workflows", body)
    assert answer.status_code == 422, answer.content
    assert pointers(answer) == ["#/steps/200/after"]
    assert "10,000" in answer.json()["errors"][0]["detail"]
    assert not Task.objects.exists()


def test_a_cycle_is_refused_with_its_path(acme: ApiClient) -> None:
    answer = acme.post("/workflows", flow(step("a", after=["b"]), step("b", after=["a"])))
    assert answer.status_code == 422
    assert "a" in answer.json()["detail"]
    assert not Task.objects.exists()


def test_a_step_may_use_a_result_in_a_callback(acme: ApiClient, settings: Any) -> None:
    settings.DURABLE_TASKS = {**SETTINGS, "API_TASKS": ["*"]}
    callback = {
        "step": "callback",
        "target_type": "HTTP_CALLBACK",
        "target_config": {"url": "https://example.com/done", "body": {"$result": "sum"}},
        "after": ["sum"],
    }
    answer = acme.post("/workflows", flow(step("sum"), callback))
    assert answer.status_code == 201, answer.content


def test_a_workflow_above_the_quota_is_not_started(acme: ApiClient) -> None:
    quotas.set_quotas(acme.tenant, open_tasks=1)
    answer = acme.post("/workflows", flow(step("a"), step("b")))
    assert (answer.status_code, answer.json()["code"]) == (429, "quota_exceeded")
    assert not WorkflowRun.objects.exists()
    assert not Task.objects.exists()


@pytest.mark.parametrize(
    ("config", "place"),
    [
        ({"url": "https://a.example:9999/"}, "/url"),
        ({"url": "https://a.example/", "timeout": 0}, "/timeout"),
        ({"url": "https://a.example/", "endpoint": "notification-setting-7"}, "/endpoint"),
        ({"url": "https://a.example/", "body": "x" * 2_000}, ""),
    ],
)
def test_an_error_of_a_target_names_its_step(
    acme: ApiClient, settings: Any, config: dict[str, Any], place: str
) -> None:
    settings.DURABLE_TASKS = {**SETTINGS, "API_TASKS": [ADD, "django_durable_tasks.*"]}
    quotas.set_quotas(acme.tenant, payload_bytes=1_000)
    callback = {"step": "b", "target_type": "HTTP_CALLBACK", "target_config": config}
    answer = acme.post("/workflows", flow(step("a"), callback))
    place = f"#/steps/1/target_config{place}"
    assert (answer.status_code, pointers(answer)) == (422, [place]), answer.content
    assert answer.json()["detail"].startswith(f"{place}: ")
    assert not Task.objects.for_tenant(acme.tenant).exists()
