"""A refused body is refused before its arguments are read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from django_durable_tasks.contrib.api import parsing, targets
from django_durable_tasks.contrib.api.serializers import Body
from django_durable_tasks.models import LimitBucket
from tests.database.api.client import ADD, ApiClient, call
from tests.factories import many_tasks
from tests.repetitions import repetitions

pytestmark = pytest.mark.django_db
BODIES = {
    "lists": [[]] * 200_000,
    "numbers": [1] * 200_000,
    "objects": [{}] * 100_000,
    "keys": [{f"k{number}": 1 for number in range(60_000)}],
    "nested": [[[]] * 1_000] * 100,
}


@pytest.mark.parametrize("kind", BODIES)
def test_a_body_with_too_many_values_is_not_walked(
    acme: ApiClient, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    seen: list[Any] = []
    inside = parsing._inside

    def counted(value: Any, place: Any) -> Any:
        seen.append(value)
        return inside(value, place)

    monkeypatch.setattr(parsing, "_inside", counted)
    config = {"task": ADD, "args": BODIES[kind]}
    answer = acme.post("/tasks", {"target_type": "CELERY_TASK", "target_config": config})
    assert (answer.status_code, answer.json()["errors"][0]["code"]) == (400, "too_many_values")
    assert len(seen) <= parsing._VALUES_MAX


@pytest.mark.parametrize("path", ["/tasks", "/recurring-tasks"])
@pytest.mark.parametrize("kind", ["CELERY_TASK", "HTTP_CALLBACK"])
def test_the_quota_of_the_payload_is_checked_first(
    acme: ApiClient, settings: Any, monkeypatch: pytest.MonkeyPatch, path: str, kind: str
) -> None:
    quotas = {"payload_bytes": 1_000, "requests": None}
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "QUOTAS": quotas}

    def walked(*_given: Any) -> None:
        raise AssertionError("the arguments are read")

    monkeypatch.setattr(targets, "_has_mask", walked)
    config = {"task": ADD, "args": [[]] * 20_000} if kind == "CELERY_TASK" else {"url": "x" * 2_000}
    body = {"target_type": kind, "target_config": config, "name": "a", "cron": "0 4 * * *"}
    if path == "/tasks":
        del body["name"], body["cron"]
    answer = acme.post(path, body)
    assert answer.status_code == 422, json.dumps(answer.json())
    assert "payload_bytes" in answer.content.decode()


@pytest.mark.parametrize("path", ["/tasks", "/recurring-tasks"])
@pytest.mark.parametrize("operation", ["patch", "replay"])
def test_the_quota_of_the_payload_is_checked_first_in_edits(
    acme: ApiClient, settings: Any, monkeypatch: pytest.MonkeyPatch, path: str, operation: str
) -> None:
    body = {"target_type": "CELERY_TASK", "target_config": {"task": ADD, "args": [1, 2]}}
    more = {} if path == "/tasks" else {"name": "a", "cron": "0 4 * * *"}
    created = acme.post(path, {**body, **more}).json()
    address = f"{path}/{created['task_id' if path == '/tasks' else 'recurring_task_id']}"
    quotas = {"payload_bytes": 1_000, "requests": None}
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "QUOTAS": quotas}

    def walked(*_given: Any) -> None:
        raise AssertionError("the arguments are read")

    monkeypatch.setattr(targets, "_references", walked)
    monkeypatch.setattr(targets, "_has_mask", walked)
    change: dict[str, Any] = {"target_config": {"args": [[]] * 20_000}}
    if operation == "patch":
        answer = acme.patch(address, change, If_Match="*")
    elif path == "/tasks":
        failed = many_tasks(1, "FAILED", tenant=acme.tenant)[0]
        answer = acme.post(f"/tasks/{failed.pk}/replay", change)
    else:
        return
    assert answer.status_code == 422, answer.content
    assert "payload_bytes" in answer.content.decode()


def _left(answer: Any) -> int:
    return int(answer.headers["RateLimit"].split("r=")[1].split(";")[0])


@hypothesis_settings(
    max_examples=repetitions(12),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    number=st.integers(1, 300),
    kind=st.sampled_from(["bulk", "workflow", "edges", "unknown", "wrong"]),
    is_dry=st.booleans(),
)
def test_many_items_count_as_many_requests(
    acme: ApiClient, settings: Any, number: int, kind: str, is_dry: bool
) -> None:
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "QUOTAS": {"requests": "1000/d"}}
    LimitBucket.objects.all().delete()
    config = {"task": ADD, "args": [1, 2]}
    steps: list[Any] = [{"step": f"s{n}", "target_config": config} for n in range(number)]
    further = (number - 1) // 10
    if kind == "edges":
        edges = [f"s{n}" for n in range(number)]
        steps = [{"step": "x", "target_config": config, "after": edges}] * 20
        further = (20 + 20 * number // 100 - 1) // 10
    kinds: dict[str, list[Any]] = {"bulk": [call()], "unknown": [{"x": 1}], "wrong": [5]}
    items = kinds.get(kind, [])
    path = "/tasks/bulk" if items else "/workflows"
    body = {"items": items * number} if items else {"name": "w", "steps": steps}
    before = _left(acme.get("/quota"))
    after = _left(acme.post(f"{path}{'?dry_run=1' if is_dry else ''}", body))
    assert before - after == 1 + further


@pytest.mark.parametrize("path", ["/tasks/bulk", "/workflows"])
def test_a_request_that_the_rate_refuses_is_not_validated(
    acme: ApiClient, settings: Any, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "QUOTAS": {"requests": "150/d"}}
    body = {"items": [5] * 1_000} if path == "/tasks/bulk" else {"steps": [5] * 1_000, "name": "w"}
    assert acme.post(path, body).status_code != 429

    def validated(*_given: Any, **_options: Any) -> None:
        raise AssertionError("the items are read")

    with monkeypatch.context() as patched:
        patched.setattr(Body, "valid", validated)
        refused = acme.post(path, body)
    assert (refused.status_code, refused.json()["code"]) == (429, "too_many_requests")
    assert int(refused.headers["Retry-After"]) > 0
    LimitBucket.objects.all().delete()
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "QUOTAS": {"requests": "20/d"}}
    assert acme.post(path, body).status_code != 429, "a whole window is enough"


def test_the_unknown_fields_of_some_refused_items_are_explained(acme: ApiClient) -> None:
    item = {f"priorit{number}": 1 for number in range(20)}
    answer = acme.post("/tasks/bulk", {"items": [item] * 1_000})
    found = [one["problem"]["errors"] for one in answer.json()["data"]]
    assert [len(errors) for errors in found] == [20] * 20 + [1] * 980
    assert "priority" in found[0][0]["detail"]
    assert found[999][0]["pointer"] == "#/items/999/priorit0"
    assert len(answer.content) < 400_000
