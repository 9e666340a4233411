"""Tasks are created, listed, read and edited through the API."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_durable_tasks.models import Task
from tests.database.api.client import ADD, ApiClient, a_client, call, pointers
from tests.factories import a_task, many_tasks

pytestmark = pytest.mark.django_db
LATER = (timezone.now() + timedelta(days=1)).isoformat(timespec="seconds")


def _created(client: ApiClient, **options: Any) -> Any:
    response = client.post("/tasks", call(**{"run_at": LATER, **options}))
    assert response.status_code == 201, response.content
    return response


def test_a_created_task_has_the_fields_of_the_specification(acme: ApiClient) -> None:
    response = _created(acme, idempotency_key="invoice-7", priority=9)
    found = response.json()
    row = Task.objects.get(pk=found["task_id"])
    assert (row.name, row.args, row.kwargs, row.tenant_id) == (
        ADD,
        [1],
        {"right": 2},
        acme.tenant.pk,
    )
    shown = ("target_type", "status", "priority", "idempotency_key", "attempts", "last_error")
    assert [found[name] for name in shown] == ["CELERY_TASK", "PENDING", 9, "invoice-7", 0, ""]
    assert (found["started_at"], found["completed_at"]) == (None, None)
    assert found["run_at"].endswith("Z")
    assert response.headers["Location"] == f"/api/v1/tasks/{row.pk}"
    assert acme.get(response.headers["Location"]).json()["target_config"] == {
        "task": ADD,
        "args": [1],
        "kwargs": {"right": 2},
    }


def test_the_same_idempotency_key_returns_the_first_task(acme: ApiClient) -> None:
    first = _created(acme, idempotency_key="k")
    again = acme.post("/tasks", call(run_at=LATER, idempotency_key="k"))
    assert (again.status_code, again.json()["task_id"]) == (200, first.json()["task_id"])
    other = acme.post("/tasks", call(left=5, run_at=LATER, idempotency_key="k"))
    assert (other.status_code, other.json()["code"]) == (409, "conflict")
    rejected = acme.post("/tasks", call(run_at=LATER, idempotency_key="k", on_conflict="reject"))
    assert rejected.status_code == 409
    assert Task.objects.count() == 1


def test_the_keys_of_two_tenants_are_independent(acme: ApiClient, globex: ApiClient) -> None:
    for client in (acme, globex):
        _created(client, idempotency_key="k", key="editable")
    assert Task.objects.count() == 2


def test_a_task_may_depend_on_tasks_of_its_tenant_only(acme: ApiClient, globex: ApiClient) -> None:
    own, foreign = _created(acme).json()["task_id"], _created(globex).json()["task_id"]
    assert _created(acme, depends_on=[own]).json()["status"] == "BLOCKED"
    refused = acme.post("/tasks", call(depends_on=[foreign]))
    absent = acme.post("/tasks", call(depends_on=[str(uuid.uuid4())]))
    for response in (refused, absent):
        assert (response.status_code, pointers(response)) == (422, ["#/depends_on"])


@pytest.mark.parametrize(
    ("change", "pointer", "status"),
    [
        ({"target_type": "SHELL"}, "#/target_type", 422),
        ({"target_config": None}, "#/target_config", 422),
        ({"target_config": {}}, "#/target_config/task", 422),
        ({"target_config": {"task": "os.system"}}, "#/target_config/task", 422),
        (
            {"target_config": {"task": "django_durable_tasks.verify"}},
            "#/target_config/task",
            422,
        ),
        ({"target_config": {"task": ADD, "arg": []}}, "#/target_config/arg", 422),
        ({"target_config": {"task": ADD, "args": [1, 2, 3]}}, "#/target_config", 422),
        ({"run_at": "2020-01-01T00:00:00Z"}, "#/run_at", 422),
        ({"run_at": "8999-01-01T00:00:00Z"}, "#/run_at", 422),
        ({"run_at": "2030-01-01T00:00:00"}, "#/run_at", 422),
        ({"run_at": "../../etc/passwd"}, "#/run_at", 422),
        ({"run_at": 5}, "#/run_at", 422),
        ({"expires_at": "2020-01-01T00:00:00Z"}, "#/expires_at", 422),
        ({"priority": "5"}, "#/priority", 422),
        ({"priority": 10}, "#/priority", 422),
        ({"priority": True}, "#/priority", 422),
        ({"queue": "a queue"}, "#/queue", 422),
        ({"idempotency_key": "x" * 201}, "#/idempotency_key", 422),
        ({"depends_on": ["x"]}, "#/depends_on/0", 422),
        ({"prioritiy": 5}, "#/prioritiy", 400),
        ({"tenant": 1}, "#/tenant", 400),
    ],
)
def test_a_bad_field_is_named(
    acme: ApiClient, change: dict[str, Any], pointer: str, status: int
) -> None:
    response = acme.post("/tasks", {**call(), **change})
    assert response.status_code == status, response.content
    assert response.headers["Content-Type"] == "application/problem+json"
    assert pointer in pointers(response), response.content
    assert not Task.objects.exists()


def test_a_list_is_filtered_and_continued_by_its_cursor(acme: ApiClient) -> None:
    waiting = many_tasks(7, tenant=acme.tenant)
    many_tasks(3, "FAILED", tenant=acme.tenant)
    a_task(queue="other", tenant=acme.tenant)
    path, found = "/tasks?status=PENDING&queue=test&limit=3", []
    while path:
        answer = acme.get(path)
        page = answer.json()
        found += [row["task_id"] for row in page["data"]]
        cursor = page["next_cursor"]
        assert (
            page["has_more"]
            == (cursor is not None)
            == ('rel="next"' in answer.headers.get("Link", ""))
        )
        path = cursor and f"/tasks?status=PENDING&queue=test&limit=3&cursor={cursor}"
    assert found == [str(row.pk) for row in reversed(waiting)]
    assert len(acme.get("/tasks?status=FAILED").json()["data"]) == 3
    assert "target_config" not in acme.get("/tasks").json()["data"][0]
    assert "target_config" in acme.get("/tasks?include=target_config").json()["data"][0]


def test_a_list_is_limited_to_a_range_of_creation_times(acme: ApiClient) -> None:
    row = a_task(tenant=acme.tenant)
    before, after = (
        (timezone.now() + timedelta(minutes=minutes)).strftime("%Y-%m-%dT%H:%M:%SZ")
        for minutes in (-1, 1)
    )
    found = acme.get(f"/tasks?from={before}&to={after}").json()["data"]
    assert [one["task_id"] for one in found] == [str(row.pk)]
    assert acme.get(f"/tasks?from={after}").json()["data"] == []
    assert acme.get(f"/tasks?to={before}").json()["data"] == []


def test_a_cursor_is_refused_with_other_filters_and_by_another_tenant(
    acme: ApiClient, globex: ApiClient
) -> None:
    many_tasks(3, tenant=acme.tenant)
    cursor = acme.get("/tasks?limit=1").json()["next_cursor"]
    assert acme.get(f"/tasks?limit=2&cursor={cursor}").status_code == 200
    for client, path in (
        (acme, f"/tasks?status=PENDING&cursor={cursor}"),
        (globex, f"/tasks?limit=1&cursor={cursor}"),
        (acme, "/tasks?cursor=abc"),
        (acme, "/tasks?cursor=%00%ff"),
        (acme, f"/tasks?cursor={cursor[:-3]}"),
    ):
        response = client.get(path)
        assert (response.status_code, pointers(response)) == (400, ["cursor"])


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=201",
        "limit=x",
        "limit=1&limit=2",
        f"limit={'9' * 5000}",
        "status=DONE",
        "from=yesterday",
        "states=PENDING",
        "queue=",
        "queue=%00",
        "include=secrets",
    ],
)
def test_a_bad_parameter_is_named(acme: ApiClient, query: str) -> None:
    response = acme.get(f"/tasks?{query}")
    assert response.status_code == 400
    assert pointers(response) == [query.partition("=")[0]]


def test_a_patch_needs_the_present_version(acme: ApiClient) -> None:
    path = _created(acme).headers["Location"]
    tag = acme.get(path).headers["ETag"]
    missing = acme.patch(path, {"priority": 3})
    assert (missing.status_code, pointers(missing)) == (428, ["If-Match"])
    edited = acme.patch(path, {"priority": 3}, If_Match=tag)
    assert (edited.status_code, edited.json()["priority"]) == (200, 3)
    assert edited.headers["ETag"] != tag
    stale = acme.patch(path, {"priority": 4}, If_Match=tag)
    assert (stale.status_code, Task.objects.get().priority) == (412, 3)
    weakened = f"W/{edited.headers['ETag']}"
    assert acme.patch(path, {"priority": 5}, If_Match=weakened).status_code == 200
    assert acme.patch(path, {"priority": 6}, If_Match="*").status_code == 200


def test_an_unchanged_object_is_not_sent_again(acme: ApiClient) -> None:
    path = _created(acme).headers["Location"]
    tag = acme.get(path).headers["ETag"]
    unchanged = acme.get(path, If_None_Match=f"W/{tag}")
    assert (unchanged.status_code, unchanged.content) == (304, b"")


def test_arguments_and_times_of_a_waiting_task_are_edited(acme: ApiClient) -> None:
    path = _created(acme).headers["Location"]
    config = {"task": ADD, "args": [5, 6], "kwargs": {}}
    answer = acme.patch(path, {"target_config": config, "queue": "durable-side"}, If_Match="*")
    row = Task.objects.get()
    assert answer.status_code == 200, answer.content
    assert (row.args, row.kwargs, row.queue) == ([5, 6], {}, "durable-side")
    for change, pointer in (
        ({"target_config": {"task": "tests.project.tasks.fail"}}, "#/target_config"),
        ({"target_config": {"task": ADD, "args": [1]}}, "#/target_config"),
        ({"expires_at": LATER, "run_at": "2020-01-01T00:00:00Z"}, "#/run_at"),
        ({"attempts": 3}, "#/attempts"),
    ):
        response = acme.patch(path, change, If_Match="*")
        assert response.status_code in (400, 422)
        assert pointers(response)[0].startswith(pointer)


def test_a_task_that_has_started_is_not_edited(acme: ApiClient) -> None:
    running = a_task("RUNNING", tenant=acme.tenant)
    response = acme.patch(f"/tasks/{running.pk}", {"priority": 1}, If_Match="*")
    assert (response.status_code, response.json()["object_status"]) == (409, "RUNNING")


def test_secrets_are_masked_and_a_mask_that_is_sent_back_keeps_them(acme: ApiClient) -> None:
    config = {"task": "tests.project.tasks.echo", "kwargs": {"token": "t0p", "note": "a"}}
    row = a_task(
        name=config["task"],
        kwargs={"token": "t0p", "note": "a"},
        tenant=acme.tenant,
        run_at=timezone.now() + timedelta(hours=1),
    )
    reader = a_client(acme.tenant, "read", "operate")
    path = f"/tasks/{row.pk}"
    shown = reader.get(path).json()["target_config"]
    assert shown["kwargs"] == {"token": "********", "note": "a"}
    assert acme.get(path).json()["target_config"] == {**config, "args": []}
    change = {"target_config": shown, "priority": 4}
    assert reader.patch(path, change, If_Match="*").status_code == 200
    row.refresh_from_db()
    assert (row.kwargs, row.priority) == ({"token": "t0p", "note": "a"}, 4)
    shown["kwargs"]["note"] = "b"
    redirected = reader.patch(path, {"target_config": shown}, If_Match="*")
    assert pointers(redirected) == ["#/target_config"]
    assert acme.patch(path, {"target_config": shown}, If_Match="*").status_code == 200
    assert Task.objects.get().kwargs == {"token": "t0p", "note": "b"}
    shown["kwargs"]["key"] = "********"
    refused = acme.patch(path, {"target_config": shown}, If_Match="*")
    assert pointers(refused) == ["#/target_config/kwargs/key"]


def test_the_attempts_of_a_task_are_listed(acme: ApiClient) -> None:
    failed = a_task("FAILED", tenant=acme.tenant)
    (attempt,) = acme.get(f"/tasks/{failed.pk}/executions").json()["data"]
    assert (attempt["status"], attempt["attempt_number"]) == ("FAILED", 1)
