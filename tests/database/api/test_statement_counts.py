"""How many statements a request costs, so that an additional one is noticed."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from tests.database.api.client import ApiClient, call

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgresql]
_OF_TRANSACTIONS = ("BEGIN", "COMMIT")


def _statements(client: ApiClient, key: str) -> list[str]:
    with CaptureQueriesContext(connection) as captured:
        answer = client.post("/tasks", call(), Idempotency_Key=key)
    assert answer.status_code == 201, answer.content
    return [one["sql"] for one in captured if not one["sql"].startswith(_OF_TRANSACTIONS)]


@pytest.mark.parametrize(
    ("quotas", "most"),
    [({"requests": None}, 7), ({"requests": "600/m", "open_tasks": 100}, 9)],
)
def test_a_task_with_an_idempotency_key_is_created_by_few_statements(
    acme: ApiClient, settings: Any, quotas: dict[str, Any], most: int
) -> None:
    """The key with tenant and quota, the time limits, the idempotency record, the task, its row,
    the audit entry, and the stored answer; with quotas one for each of them.
    """
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "QUOTAS": quotas}
    _statements(acme, "first")
    found = _statements(acme, "second")
    assert len(found) == most, "\n".join(found)
    assert not [one for one in found if "SAVEPOINT" in one]
