"""A problem says what the client can do. It names no setting, which only the operator can change."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from django_durable_tasks import registry
from django_durable_tasks.rules.target_types import (
    BUILT_IN_MEMBERS,
    HTTP_CALLBACK_TASK,
    QUEUE_MESSAGE_TASK,
)
from tests.database.api.client import ADD, ROOT, SETTINGS, ApiClient, call

pytestmark = pytest.mark.django_db
_URL = "https://example.com/hook"


def _callback(**config: Any) -> dict[str, Any]:
    return {"target_type": "HTTP_CALLBACK", "target_config": {"url": _URL, **config}}


def test_a_member_beside_its_object_is_explained(acme: ApiClient) -> None:
    body = {"target_type": "HTTP_CALLBACK", "target_config": {}}
    expected = "#/url: is no field. It is a member of target_config: put it there."
    for path in ("/tasks", "/recurring-tasks"):
        assert acme.post(path, {**body, "url": _URL}).json()["detail"] == expected
    named = acme.post("/tasks", {"target_config": {}, "kwargs": {}}).json()["detail"]
    assert "target_config" in named
    setting = {"name": "ops", "delivery_type": "EMAIL", "to": ["ops@example.com"]}
    assert (
        "member of delivery_config" in acme.post("/notification-settings", setting).json()["detail"]
    )
    assert "Did you mean 'queue'?" in acme.post("/tasks", call(queu="x")).json()["detail"]


def test_the_members_of_targets_are_those_of_the_tasks() -> None:
    names = {
        name
        for task in (HTTP_CALLBACK_TASK, QUEUE_MESSAGE_TASK)
        for name in registry.get(task).signature.parameters
    }
    assert names == BUILT_IN_MEMBERS


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (call(queue="other"), "ask the operator to allow it"),
        ({"target_config": {"task": "x.y"}}, "ask the operator to allow it"),
        (_callback(timeout=10_000), "give 0.1 to 60 seconds (set by the operator)"),
        (_callback(url="https://example.com:22/"), "port 22 is not allowed (set by the operator:"),
        (
            {"target_type": "QUEUE_MESSAGE", "target_config": {"queue": "x", "body": "y"}},
            "queue 'x' is not allowed (set by the operator)",
        ),
        (
            {"target_config": {"task": ADD, "args": ["x" * 300_000, 1]}},
            "Store the data in a model",
        ),
    ],
)
def test_a_refusal_says_what_the_client_can_do(
    acme: ApiClient, settings: Any, body: dict[str, Any], expected: str
) -> None:
    settings.DURABLE_TASKS = {
        **SETTINGS,
        "API_QUEUES": [],
        "API_TASKS": ["tests.project.tasks.*", "django_durable_tasks.*"],
    }
    refused = acme.post("/tasks", body)
    assert refused.status_code == 422
    problem = refused.json()
    assert expected in problem["detail"]
    assert expected in problem["errors"][0]["detail"]
    assert "DURABLE_TASKS" not in refused.content.decode()


def test_other_limits_name_no_setting(acme: ApiClient, settings: Any) -> None:
    email = {
        "name": "ops",
        "delivery_type": "EMAIL",
        "delivery_config": {"to": ["ops@example.org"]},
    }
    refused = acme.post("/notification-settings", email).json()["detail"]
    assert "'ops@example.org', which is not allowed (set by the operator)" in refused
    settings.DURABLE_TASKS = {**SETTINGS, "API_BODY_MAX_BYTES": 10}
    assert "Send several requests" in acme.post("/tasks", call()).json()["detail"]


def test_the_document_has_the_headers_of_sessions_if_they_are_accepted(settings: Any) -> None:
    for sessions in (False, True):
        settings.DURABLE_TASKS = {**SETTINGS, "API_SESSIONS": sessions}
        paths = Client().get(f"{ROOT}/schema").json()["paths"]
        for method, headers in (("get", set()), ("post", {"X-CSRFToken"})):
            names = {one["name"] for one in paths["/tasks"][method]["parameters"]}
            expected = headers | {"Durable-Tenant"} if sessions else set()
            assert names & {"X-CSRFToken", "Durable-Tenant"} == expected
        health = paths["/health"]["get"].get("parameters", [])
        assert "Durable-Tenant" not in {one["name"] for one in health}
