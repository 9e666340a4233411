"""How many statements a request costs, so that an additional one is noticed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_durable_tasks.contrib.api.models import IdempotentRequest
from django_durable_tasks.models import AuditEntry, Task
from django_durable_tasks.states import inserts
from tests.database.api.client import ApiClient, call

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.postgresql,
    pytest.mark.usefixtures("many_processes"),
]
_OF_TRANSACTIONS = ("BEGIN", "COMMIT")


def _statements(client: ApiClient, key: str) -> list[str]:
    with CaptureQueriesContext(connection) as captured:
        answer = client.post("/tasks", call(), Idempotency_Key=key)
    assert answer.status_code == 201, answer.content
    return [one["sql"] for one in captured if not one["sql"].startswith(_OF_TRANSACTIONS)]


@pytest.mark.parametrize(
    ("quotas", "most"),
    [
        ({"requests": None}, 3),
        ({"requests": "600/m"}, 3),
        ({"requests": "600/m", "open_tasks": 100}, 6),
    ],
)
def test_a_task_with_an_idempotency_key_is_created_by_few_statements(
    acme: ApiClient, settings: Any, quotas: dict[str, Any], most: int
) -> None:
    """The key with tenant and quota, which counts the request, the tenant's places in the queue, and
    everything else. With a quota of open tasks a transaction contains the idempotency record with the time limits, the task, the
    quota, and the stored answer with the audit entry.
    """
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "QUOTAS": quotas}
    _statements(acme, "first")
    found = _statements(acme, "second")
    assert len(found) == most, "\n".join(found)
    assert not [one for one in found if "SAVEPOINT" in one]


def test_the_transaction_of_a_request_with_an_idempotency_key_has_time_limits(
    acme: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []

    def with_limits(task: Any) -> Any:
        for name in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"):
            with connection.cursor() as cursor:
                cursor.execute(f"SHOW {name}")
                found.append(cursor.fetchone()[0])
        return create_row(task)

    create_row = inserts.create_row
    monkeypatch.setattr(inserts, "create_row", with_limits)
    body = call(idempotency_key="of the task")
    assert acme.post("/tasks", body, Idempotency_Key="one").status_code == 201
    assert found == ["15s", "2s", "15s"]


def test_the_count_of_a_request_does_not_make_its_task_less_durable(
    acme: ApiClient, settings: Any
) -> None:
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "QUOTAS": {"requests": "600/m"}}
    for _ in range(2):
        assert acme.post("/tasks", call()).status_code == 201
    with connection.cursor() as cursor:
        cursor.execute("SHOW synchronous_commit")
        assert cursor.fetchone() == ("on",)


def test_an_answer_that_cannot_be_stored_leaves_no_task_and_no_audit_entry(
    acme: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def invalid(rows: Any) -> str:
        return json.dumps([{"count": "not a number"}])

    monkeypatch.setattr("django_durable_tasks.audit.recordset", invalid)
    assert acme.post("/tasks", call(), Idempotency_Key="one").status_code >= 400
    entries = AuditEntry.objects.filter(operation="task.create")
    assert not entries.exists()
    assert not Task.objects.exists()
    assert not IdempotentRequest.objects.exists()
