"""A request with an Idempotency-Key has its effect once, and its key is stored in the same
transaction.
"""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import RequestFactory
from django.utils import timezone
from rest_framework.request import Request

from django_durable_tasks.cluster.nodes import HeartbeatMonitor
from django_durable_tasks.contrib.api import bulk_operations, idempotent_requests
from django_durable_tasks.contrib.api.models import IdempotentRequest
from django_durable_tasks.contrib.api.views import operation_of
from django_durable_tasks.models import Task
from tests.database.api.client import ApiClient, call, pointers
from tests.factories import a_task

pytestmark = pytest.mark.django_db


def test_a_repeated_request_gets_the_first_answer(acme: ApiClient) -> None:
    first = acme.post("/tasks", call(), Idempotency_Key="order-7")
    again = acme.post("/tasks", call(), Idempotency_Key='"order-7"')
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json() == again.json()
    for name in ("Location", "ETag"):
        assert first.headers[name] == again.headers[name]
    assert again.headers["Idempotent-Replayed"] == "true"
    assert "Idempotent-Replayed" not in first.headers
    assert Task.objects.count() == 1


def test_another_request_with_the_same_key_is_refused(acme: ApiClient) -> None:
    acme.post("/tasks", call(), Idempotency_Key="k")
    for path, body in (("/tasks", call(left=9)), ("/tasks?dry_run=0", call())):
        response = acme.post(path, body, Idempotency_Key="k")
        assert (response.status_code, pointers(response)) == (422, ["Idempotency-Key"])
    assert Task.objects.count() == 1


def test_a_key_belongs_to_its_tenant_and_address(acme: ApiClient, globex: ApiClient) -> None:
    row = a_task(tenant=acme.tenant)
    for client, path, body in (
        (acme, "/tasks", call()),
        (globex, "/tasks", call()),
        (acme, f"/tasks/{row.pk}/cancel", {}),
    ):
        response = client.post(path, body, Idempotency_Key="k")
        assert response.status_code in (200, 201)
        assert "Idempotent-Replayed" not in response.headers


def test_a_refused_request_does_not_use_its_key(acme: ApiClient) -> None:
    wrong = {**call(), "queue": "a queue"}
    assert acme.post("/tasks", wrong, Idempotency_Key="k").status_code == 422
    assert not IdempotentRequest.objects.exists()
    assert acme.post("/tasks", call(), Idempotency_Key="k").status_code == 201


@pytest.mark.parametrize("path", ["/tasks", "/tasks?dry_run=1"])
@pytest.mark.parametrize("key", ["", '""', " ", "x" * 201, "x" + " " * 202, "tab\there", "é"])
def test_a_bad_key_is_named(acme: ApiClient, key: str, path: str) -> None:
    response = acme.post(path, call(), Idempotency_Key=key)
    assert (response.status_code, pointers(response)) == (400, ["Idempotency-Key"])


@pytest.mark.django_db(transaction=True)
def test_an_expired_key_may_be_used_again_and_is_deleted(acme: ApiClient) -> None:
    acme.post("/tasks", call(), Idempotency_Key="k")
    acme.post("/tasks", call(), Idempotency_Key="other")
    rows = IdempotentRequest.objects.unguarded()
    rows.update(created_at=timezone.now() - timedelta(days=2))
    assert acme.post("/tasks", call(left=2), Idempotency_Key="k").status_code == 201
    assert bulk_operations.prune(timezone.now(), HeartbeatMonitor()) == 1
    assert IdempotentRequest.objects.get().key == "k"


@pytest.mark.django_db(transaction=True)
def test_a_crash_before_the_commit_leaves_neither_the_task_nor_the_key(
    acme: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_transaction = call(idempotency_key="of the task")

    def crash(*_arguments: Any, **_more: Any) -> Any:
        raise KeyError("crash")

    with monkeypatch.context() as crashing:
        crashing.setattr(idempotent_requests, "StoredAnswer", crash)
        crashing.setattr("django_durable_tasks.contrib.api.views._plain", crash)
        assert acme.post("/tasks", in_transaction, Idempotency_Key="k").status_code == 500
    assert not Task.objects.exists()
    assert not IdempotentRequest.objects.exists()
    assert acme.post("/tasks", in_transaction, Idempotency_Key="k").status_code == 201


@pytest.mark.django_db(transaction=True)
def test_parallel_requests_with_one_key_create_one_task(acme: ApiClient) -> None:
    answers: list[int] = []
    started = threading.Barrier(8)

    def send() -> None:
        try:
            started.wait(timeout=30)
            answers.append(acme.post("/tasks", call(), Idempotency_Key="k").status_code)
        finally:
            connection.close()

    threads = [threading.Thread(target=send) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert set(answers) <= {201, 409, 503}, answers
    assert 201 in answers
    assert Task.objects.count() == 1


def test_long_addresses_that_begin_alike_are_different_operations() -> None:
    first, second = (
        operation_of(Request(RequestFactory().post(f"/{'prefix/' * 40}{task_id}/cancel")))
        for task_id in (1, 2)
    )
    assert first != second
    assert len(first) <= 200
