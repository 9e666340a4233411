"""A problem says what the client can do. It names no setting, which only the operator can change."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from django_durable_tasks import registry
from django_durable_tasks.contrib.api import parsing
from django_durable_tasks.contrib.callbacks.models import DeliveryAttempt
from django_durable_tasks.contrib.notifications.models import NotificationSetting
from django_durable_tasks.models import DeadLetter, Task, TaskExecutionLog
from django_durable_tasks.models.tasks import BUILT_IN_MEMBERS
from django_durable_tasks.registry import HTTP_CALLBACK_TASK, QUEUE_MESSAGE_TASK
from tests.database.api.client import ADD, ROOT, SETTINGS, ApiClient, a_client, call
from tests.database.notifications.sending import a_setting
from tests.factories import a_log_row, many_tasks

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
        (_callback(timeout=10_000), "give 0.1 to 60 seconds."),
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


def test_other_limits_name_no_setting(acme: ApiClient, monkeypatch: pytest.MonkeyPatch) -> None:
    email = {
        "name": "ops",
        "delivery_type": "EMAIL",
        "delivery_config": {"to": ["ops@example.org"]},
    }
    refused = acme.post("/notification-settings", email).json()["detail"]
    assert "'ops@example.org', which is not allowed (set by the operator)" in refused
    monkeypatch.setattr(parsing, "BODY_MAX_BYTES", 10)
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


def test_the_errors_of_tasks_name_no_setting(acme: ApiClient) -> None:
    text = "InvalidTarget: url: port 22 is not allowed (DURABLE_TASKS['HTTP_PORTS']: 80, 443)."
    shown = "InvalidTarget: url: port 22 is not allowed (set by the operator: 80, 443)."
    task = many_tasks(1, "FAILED", tenant=acme.tenant)[0]
    Task.objects.unguarded().filter(pk=task.pk).update(last_error=text)
    DeadLetter.objects.unguarded().filter(task=task).update(error_message=text)
    a_log_row(task)
    TaskExecutionLog.objects.unguarded().filter(task=task).update(error_message=text)
    without_secrets = a_client(acme.tenant, "read")
    for client in (acme, without_secrets):
        assert client.get(f"/tasks/{task.pk}").json()["last_error"] == shown
        assert client.get("/tasks").json()["data"][0]["last_error"] == shown
        attempt = client.get(f"/tasks/{task.pk}/executions").json()["data"][0]
        assert attempt["error_message"] == shown
        (letter,) = client.get("/dead-letters").json()["data"]
        assert letter["error_message"] == shown
    assert Task.objects.get(pk=task.pk).last_error == text


def test_the_requests_and_notifications_of_a_tenant_name_no_setting(acme: ApiClient) -> None:
    task = many_tasks(1, tenant=acme.tenant)[0]
    DeliveryAttempt.objects.unguarded().create(
        task_id=task.pk,
        tenant_id=task.tenant_id,
        attempt_number=1,
        outcome="FAILED",
        started_at=timezone.now(),
        method="POST",
        url=_URL,
        total_seconds=0.2,
        failure="ADDRESS",
        reason="not allowed (DURABLE_TASKS['HTTP_ALLOW'])",
    )
    (shown,) = acme.get(f"/tasks/{task.pk}/deliveries").json()["data"]
    assert shown["reason"] == "not allowed (set by the operator)"
    setting = a_setting(tenant=acme.tenant)
    error = "Add it to DURABLE_TASKS['ENCRYPTION_KEYS'] and restart."
    NotificationSetting.objects.unguarded().update(last_delivery_error=error)
    answer = acme.get(f"/notification-settings/{setting.pk}").json()
    assert answer["last_delivery_error"] == "Add it to a setting of the operator and restart."
