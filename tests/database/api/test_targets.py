"""Callbacks over the API: which member of the target is wrong, and what the receiver answered."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from django_durable_tasks import ports
from django_durable_tasks.contrib.callbacks.models import DeliveryAttempt
from tests.database.api.client import ADD, SETTINGS, ApiClient, pointers
from tests.factories import a_task
from tests.repetitions import repetitions

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
        (
            {"url": "https://a.example", "endpoint": "notification-setting-7"},
            "#/target_config/endpoint",
            "belong to notification settings",
        ),
        ({"url": "https://a.example", "endpoint": 7}, "#/target_config/endpoint", "give"),
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


CONTROL = "".join(map(chr, [*range(1, 9), *range(10, 32), *range(127, 160), 0x2028, 0x2029]))
MESSAGE: dict[str, Any] = {"body": "x", "queue": "orders"}
TO_EXCHANGE: dict[str, Any] = {"body": "x", "exchange": "events", "routing_key": "order.paid"}
CALLBACK: dict[str, Any] = {"url": "https://a.example/"}
_TEXTS: dict[str, tuple[str, dict[str, Any], Any]] = {
    "content_type": ("QUEUE_MESSAGE", MESSAGE, lambda text: {"content_type": text}),
    "queue": ("QUEUE_MESSAGE", MESSAGE, lambda text: {"queue": text}),
    "exchange": ("QUEUE_MESSAGE", TO_EXCHANGE, lambda text: {"exchange": text}),
    "routing_key": ("QUEUE_MESSAGE", TO_EXCHANGE, lambda text: {"routing_key": text}),
    "header": ("QUEUE_MESSAGE", MESSAGE, lambda text: {"headers": {text: "1"}}),
    "value of a header": ("QUEUE_MESSAGE", MESSAGE, lambda text: {"headers": {"X": text}}),
    "list in a header": ("QUEUE_MESSAGE", MESSAGE, lambda text: {"headers": {"X": [1, text]}}),
    "object in a header": ("QUEUE_MESSAGE", MESSAGE, lambda text: {"headers": {"X": {text: 1}}}),
    "method": ("HTTP_CALLBACK", CALLBACK, lambda text: {"method": text}),
    "url": ("HTTP_CALLBACK", CALLBACK, lambda text: {"url": f"https://a.example/{text}"}),
    "endpoint": ("HTTP_CALLBACK", CALLBACK, lambda text: {"endpoint": text}),
    "header of a request": ("HTTP_CALLBACK", CALLBACK, lambda text: {"headers": {text: "1"}}),
    "its value": ("HTTP_CALLBACK", CALLBACK, lambda text: {"headers": {"X": text}}),
}


@pytest.mark.parametrize("kind", _TEXTS)
@hypothesis_settings(
    max_examples=repetitions(8),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(before=st.sampled_from(["a", "orders/json"]), control=st.sampled_from(CONTROL))
def test_control_characters_are_refused_in_every_text_but_the_body(
    acme: ApiClient, settings: Any, kind: str, before: str, control: str
) -> None:
    settings.DURABLE_TASKS = {
        **SETTINGS,
        "API_TASKS": ["django_durable_tasks.*"],
        "API_QUEUES": [],
        "QUEUE_ALLOW": ["orders", "exchange:events"],
    }
    target_type, config, changed = _TEXTS[kind]
    accepted = {"target_type": target_type, "target_config": config}
    assert acme.post("/tasks", accepted).status_code == 201
    body = {**accepted, "target_config": {**config, **changed(f"{before}{control}X: y")}}
    answer = acme.post("/tasks", body)
    assert answer.status_code == 422, answer.content


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


@pytest.fixture
def own_queues(settings: Any) -> None:
    """Give each tenant a queue and an exchange for messages, and queues for its tasks."""
    settings.DURABLE_TASKS = {
        **SETTINGS,
        "API_TASKS": ["django_durable_tasks.*", ADD],
        "API_QUEUES": ["{tenant}.*"],
        "QUEUE_ALLOW": ["customer.{tenant}", "exchange:{tenant}-events", "shared"],
    }


def _later() -> str:
    return (timezone.now() + timedelta(hours=1)).isoformat()


def _message(**config: Any) -> dict[str, Any]:
    return {"target_type": "QUEUE_MESSAGE", "target_config": {"body": {"order": 7}, **config}}


@pytest.mark.parametrize(
    ("config", "status"),
    [
        ({"queue": "customer.acme"}, 201),
        ({"queue": "shared"}, 201),
        ({"exchange": "acme-events", "routing_key": "paid"}, 201),
        ({"queue": "customer.globex"}, 422),
        ({"queue": "customer.{tenant}"}, 422),
        ({"exchange": "globex-events", "routing_key": "paid"}, 422),
    ],
)
def test_a_client_sends_messages_to_the_queues_of_its_tenant_only(
    acme: ApiClient, globex: ApiClient, own_queues: None, config: dict[str, Any], status: int
) -> None:
    body = _message(**config)
    assert acme.post("/tasks", body).status_code == status
    schedule = {**body, "name": "messages", "cron": "0 4 * * *"}
    assert acme.post("/recurring-tasks", schedule).status_code == status
    steps = {"name": "messages", "steps": [{"step": "send", **body}]}
    assert acme.post("/workflows", steps).status_code == status


def test_an_edit_cannot_turn_a_message_to_the_queue_of_another_tenant(
    acme: ApiClient, own_queues: None
) -> None:
    body = {**_message(queue="customer.acme"), "run_at": _later()}
    path = f"/tasks/{acme.post('/tasks', body).json()['task_id']}"
    tag = acme.get(path).headers["ETag"]
    edit = {"target_config": {"queue": "customer.globex", "body": "x"}}
    answer = acme.patch(path, edit, If_Match=tag)
    assert answer.status_code == 422
    assert "customer.globex" in answer.json()["detail"]
    assert acme.get(path).json()["target_config"]["queue"] == "customer.acme"


@pytest.mark.parametrize(("queue", "status"), [("acme.slow", 201), ("globex.slow", 422)])
def test_a_client_chooses_queues_of_its_tenant_only(
    acme: ApiClient, own_queues: None, queue: str, status: int
) -> None:
    target = {"task": ADD, "args": [1, 2]}
    body = {"target_type": "CELERY_TASK", "target_config": target, "queue": queue}
    assert acme.post("/tasks", body).status_code == status


def test_an_error_of_the_task_modules_is_not_final(
    acme: ApiClient, callbacks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"target_type": "CELERY_TASK", "target_config": {"task": "django_durable_tasks.other"}}
    assert acme.post("/tasks", body).status_code == 422
    monkeypatch.setattr(ports, "load_tasks", lambda: "ImportError: broken")
    answer = acme.post("/tasks", body)
    assert (answer.status_code, answer.json()["code"]) == (503, "not_ready")
    assert "broken" not in answer.content.decode()
    assert answer.headers["Retry-After"] == "5"
