"""Callbacks over the API: which member of the target is wrong, and what the receiver answered."""

from __future__ import annotations

from typing import Any

import pytest
from django.utils import timezone

from django_durable_tasks.models import DeliveryAttempt
from tests.database.api.client import SETTINGS, ApiClient, pointers
from tests.factories import a_task

pytestmark = pytest.mark.django_db


@pytest.fixture
def callbacks(settings: Any) -> None:
    """Let clients create callbacks and messages."""
    settings.DURABLE_TASKS = {**SETTINGS, "API_TASKS": ["django_durable_tasks.*"]}


@pytest.mark.parametrize(
    ("config", "pointer", "said"),
    [
        ({"body": 1}, "#/target_config/url", "is required"),
        (
            {"url": "https://a.example", "methd": "GET"},
            "#/target_config/methd",
            "Did you mean 'method'?",
        ),
        ({"url": "https://a.example:9999/"}, "#/target_config/url", "port 9999 is not allowed"),
        ({"url": "https://a.example", "timeout": 0}, "#/target_config/timeout", "give"),
    ],
)
def test_a_wrong_member_of_a_target_is_named(
    acme: ApiClient, callbacks: None, config: dict[str, Any], pointer: str, said: str
) -> None:
    body = {"target_type": "HTTP_CALLBACK", "target_config": config}
    answer = acme.post("/tasks", body)
    assert (answer.status_code, pointers(answer)) == (422, [pointer])
    assert said in answer.json()["detail"]
    assert "http_callback(" not in answer.json()["detail"]


def test_the_requests_of_a_task_show_what_the_receiver_answered(
    acme: ApiClient, globex: ApiClient
) -> None:
    task = a_task("FAILED", tenant=acme.tenant)
    DeliveryAttempt.objects.unguarded().create(
        task=task,
        tenant=acme.tenant,
        attempt_number=1,
        outcome="FAILED",
        started_at=timezone.now(),
        method="POST",
        url="https://a.example/orders",
        endpoint="https://a.example",
        status=422,
        response_body='{"error": "amount is missing"}',
        total_seconds=0.2,
    )
    (found,) = acme.get(f"/tasks/{task.pk}/deliveries").json()["data"]
    assert (found["status"], found["outcome"]) == (422, "FAILED")
    assert found["response_body"] == '{"error": "amount is missing"}'
    assert globex.get(f"/tasks/{task.pk}/deliveries").status_code == 404
