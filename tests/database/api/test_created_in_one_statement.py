"""A task that is created with its answer in one statement: equal to one created in a transaction,
and nothing is written unless all of it is.
"""

from __future__ import annotations

import json
import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, connections
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_durable_tasks.contrib.api import access
from django_durable_tasks.contrib.api.models import IdempotentRequest
from django_durable_tasks.models import AuditEntry, Task
from django_durable_tasks.signals import tasks_transitioned
from django_durable_tasks.store.clock import ReceivedTime, database_now
from django_durable_tasks.tasks import enqueue
from tests.database.api.client import ADD, ApiClient, call

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.postgresql,
    pytest.mark.usefixtures("many_processes"),
]
HOUR = timedelta(hours=1)
LATER = (timezone.now() + timedelta(days=1)).isoformat()
EVEN_LATER = (timezone.now() + timedelta(days=2)).isoformat()
_OWN = ("id", "created_at", "updated_at", "run_at", "due_at", "expires_at", "shard_key")


def _created(client: ApiClient, body: Any, key: str) -> tuple[Task, bool]:
    """Create a task; return it, and whether one statement did."""
    client.get("/quota")  # records the use of the key, so that the next request does not
    with CaptureQueriesContext(connection) as captured:
        answer = client.post("/tasks", body, Idempotency_Key=key)
    assert answer.status_code == 201, answer.content
    alone = not any(one["sql"].startswith("BEGIN") for one in captured)
    return Task.objects.get(pk=answer.json()["task_id"]), alone


def _wait(row: Task) -> timedelta:
    assert row.due_at is not None
    return row.due_at - row.run_at


def _receiver(**_given: Any) -> None:
    """Receive a signal, so that a task is created in a transaction."""


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"priority": 7, "max_attempts": 2, "timeout": 30},
        {"run_at": LATER, "expires_at": EVEN_LATER},
        {"target_config": {"task": ADD, "args": [1.5, {"b": "ü", "a": [None, 1e300]}]}},
    ],
)
def test_the_row_is_the_one_that_a_transaction_creates(
    acme: ApiClient, more: dict[str, Any]
) -> None:
    body = {**call(), **more}
    one, alone = _created(acme, body, "one")
    tasks_transitioned.connect(_receiver, sender=Task)
    try:
        other, together = _created(acme, body, "other")
    finally:
        tasks_transitioned.disconnect(_receiver, sender=Task)
    assert (alone, together) == (True, False)
    names = [field.attname for field in Task._meta.concrete_fields if field.attname not in _OWN]
    assert {name: getattr(one, name) for name in names} == {
        name: getattr(other, name) for name in names
    }
    for row in (one, other):
        assert row.created_at == row.updated_at
        assert (row.run_at == row.created_at) is ("run_at" not in more)
    assert _wait(one) == _wait(other)
    assert one.expires_at == other.expires_at
    first, second = AuditEntry.objects.filter(operation="task.create").order_by("pk")
    for name in ("tenant_id", "source", "actor", "object_type", "count", "reason", "address"):
        assert getattr(first, name) == getattr(second, name)
    assert first.object_id == str(one.pk)
    assert first.before == second.before == {}
    assert {**first.after, "run_at": 0} == {**second.after, "run_at": 0}


def test_the_answer_is_the_task_as_it_is_read_later(acme: ApiClient) -> None:
    made = acme.post("/tasks", call(), Idempotency_Key="one")
    read = acme.get(made["Location"])
    assert {name: read.json()[name] for name in made.json()} == made.json()
    again = acme.post("/tasks", call(), Idempotency_Key="one")
    assert again.json() == made.json()
    assert (again["ETag"], again["Location"]) == (made["ETag"], made["Location"])
    assert again["Idempotent-Replayed"] == "true"
    assert Task.objects.count() == 1


def test_another_body_under_the_key_is_refused(acme: ApiClient) -> None:
    assert acme.post("/tasks", call(), Idempotency_Key="one").status_code == 201
    refused = acme.post("/tasks", {**call(), "priority": 3}, Idempotency_Key="one")
    assert (refused.status_code, refused.json()["code"]) == (422, "idempotency_key_reused")
    assert Task.objects.count() == AuditEntry.objects.filter(operation="task.create").count() == 1


def test_concurrent_requests_with_one_key_create_one_task(acme: ApiClient) -> None:
    answers, start = list[Any](), threading.Barrier(4)

    def send() -> None:
        try:
            start.wait(10)
            answers.append(acme.post("/tasks", call(), Idempotency_Key="same"))
        finally:
            connections.close_all()

    threads = [threading.Thread(target=send) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(30)
    assert [one.status_code for one in answers] == [201] * 4
    assert len({one.json()["task_id"] for one in answers}) == 1
    assert Task.objects.count() == IdempotentRequest.objects.count() == 1
    assert AuditEntry.objects.filter(operation="task.create").count() == 1


def test_an_error_of_the_statement_leaves_nothing(
    acme: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "django_durable_tasks.audit.recordset",
        lambda _rows: json.dumps([{"count": "not a number"}]),
    )
    assert acme.post("/tasks", call(), Idempotency_Key="one").status_code >= 400
    assert not Task.objects.exists()
    assert not IdempotentRequest.objects.exists()
    monkeypatch.undo()
    assert acme.post("/tasks", call(), Idempotency_Key="one").status_code == 201


def test_a_task_with_keys_or_a_quota_is_created_in_a_transaction(
    acme: ApiClient, settings: Any
) -> None:
    assert not _created(acme, {**call(), "idempotency_key": "of the task"}, "one")[1]
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "QUOTAS": {"open_tasks": 100}}
    assert not _created(acme, call(), "two")[1]


def test_the_task_has_the_time_of_its_creation_if_its_body_arrives_late(
    acme: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def an_hour_ago(*given: Any) -> Any:
        found = verified(*given)
        assert found is not None
        clock = found.clock
        assert clock is not None
        earlier = ReceivedTime(clock.database_time - HOUR, clock.received - HOUR.total_seconds())
        return found._replace(clock=earlier)

    verified = access.verified_key
    monkeypatch.setattr(access, "verified_key", an_hour_ago)
    row, alone = _created(acme, call(), "one")
    assert alone
    assert abs(row.created_at - database_now()) < HOUR / 2


def test_an_error_of_the_broker_is_no_refusal(
    acme: ApiClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_messages: Any) -> Any:
        raise RuntimeError("the broker")

    monkeypatch.setattr(enqueue, "remember_until_commit", broken)
    row, _alone = _created(acme, call(), "one")
    assert f"Task {row.pk} was created but not published" in caplog.text
