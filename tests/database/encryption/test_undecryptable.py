"""One object that cannot be decrypted hides no others and stops no operation that does not need it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_durable_tasks.models import RecurringTask, Task
from tests.database.api.client import SETTINGS, ApiClient, a_client, a_tenant, call
from tests.database.encryption.keys import key_of

LATER = (timezone.now() + timedelta(hours=1)).isoformat()
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def lost(settings: Any) -> tuple[ApiClient, str, str]:
    """Return a client, and the paths of a task and a recurring task whose key is lost, each beside
    one that is readable.
    """
    client = a_client(a_tenant("acme"))
    paths = []
    for key in ("first", "other"):
        settings.DURABLE_TASKS = {**SETTINGS, "ENCRYPTION_KEYS": [key_of(key)]}
        task = client.post("/tasks", call(run_at=LATER)).json()["task_id"]
        schedule = {**call(), "name": key, "cron": "0 4 * * *"}
        made = client.post("/recurring-tasks", schedule).json()["recurring_task_id"]
        paths.append((f"/tasks/{task}", f"/recurring-tasks/{made}"))
    return client, *paths[0]


@pytest.mark.parametrize("path", ["/tasks?include=target_config,result", "/recurring-tasks"])
def test_lists_show_all_others(lost: tuple[ApiClient, str, str], path: str) -> None:
    client, *_paths = lost
    answer = client.get(path)
    assert answer.status_code == 200
    found = {
        one["target_config_error"] != "": one["target_config"] for one in answer.json()["data"]
    }
    assert found[True] is None
    assert found[False] is not None
    assert "first" not in str([one["target_config_error"] for one in answer.json()["data"]])


NEW = {"target_config": {"args": [1, 2], "kwargs": {}}}
OPERATIONS: list[tuple[int, str, Any, str]] = [
    (1, "/reschedule", {"run_at": "now"}, "PENDING"),
    (1, "/cancel", {}, "CANCELLED"),
    (1, "", NEW, "PENDING"),
    (1, "", {"priority": 3}, "PENDING"),
    (2, "/pause", {}, "PAUSED"),
    (2, "/cancel", {}, "CANCELLED"),
    (2, "", NEW, "ACTIVE"),
    (2, "", {"priority": 3}, "ACTIVE"),
]


@pytest.mark.parametrize(("kind", "suffix", "body", "status"), OPERATIONS)
def test_operations_work(
    lost: tuple[ApiClient, str, str], kind: int, suffix: str, body: Any, status: str
) -> None:
    client, path = lost[0], str(lost[kind])
    shown = client.get(path).json()
    assert shown["target_config"] is None
    if "run_at" in body:
        body = {"run_at": shown["run_at"]}
    sent = (client.post, {}) if suffix else (client.patch, {"If_Match": "*"})
    answer = sent[0](path + suffix, body, **sent[1])
    assert answer.status_code == 200, answer.content
    model: Any = Task if kind == 1 else RecurringTask
    row = model.objects.get(pk=path.rsplit("/", 1)[1])
    assert row.status == status
    if body == NEW:
        assert row.args == [1, 2]


def test_a_part_of_lost_arguments_cannot_be_kept(lost: tuple[ApiClient, str, str]) -> None:
    client, *paths = lost
    for path in paths:
        answer = client.patch(path, {"target_config": {"args": [1]}}, If_Match="*")
        assert (answer.status_code, answer.json()["code"]) == (409, "undecryptable")
