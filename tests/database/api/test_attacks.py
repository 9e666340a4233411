"""Requests of clients that want more than their key allows, or more than a request should cost."""

from __future__ import annotations

import base64
import json
import tracemalloc
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from django_durable_tasks import Workflow
from django_durable_tasks.contrib.api import tasks
from django_durable_tasks.contrib.api.parsing import loads
from django_durable_tasks.contrib.api.problems import Problem
from django_durable_tasks.dependencies import resolve
from django_durable_tasks.models import DEFAULT_TENANT_ID, Task, Tenant
from django_durable_tasks.signals import tasks_transitioned
from tests.database.api.client import ADD, ROOT, SETTINGS, ApiClient, a_client, call, pointers
from tests.factories import a_task, many_tasks
from tests.project.tasks import echo

pytestmark = pytest.mark.django_db
ECHO, MASK = "tests.project.tasks.echo", "********"
LATER = timezone.now() + timedelta(hours=1)


@pytest.mark.parametrize("limit", ["0" * 5_000, "000000200999999", "0200", "+5", "1e2", "²"])
def test_a_limit_in_another_form_is_refused(acme: ApiClient, limit: str) -> None:
    assert acme.get(f"/tasks?limit={limit}").status_code == 400


def test_the_check_of_a_body_takes_memory_in_proportion_to_it() -> None:
    body = json.dumps({"k" * 900: ["x"] * 20_000}).encode()
    tracemalloc.start()
    loads(body)
    _now, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100 * len(body)
    with pytest.raises(Problem, match="key of more than"):
        loads(json.dumps({"k" * 2_000: 1}).encode())


@pytest.mark.parametrize("path", ["replay", "retry"])
@pytest.mark.parametrize(
    "more",
    [
        {"CONTENT_LENGTH": "", "HTTP_TRANSFER_ENCODING": "chunked"},
        {"CONTENT_LENGTH": "-1"},
        {"CONTENT_LENGTH": "²"},
        {"CONTENT_LENGTH": "9" * 5_000},
    ],
)
def test_a_body_of_unknown_length_is_not_ignored(
    acme: ApiClient, path: str, more: dict[str, Any]
) -> None:
    row = a_task("FAILED", name=ADD, args=[1, 2], tenant=acme.tenant)
    answer = Client().generic(
        "POST",
        f"{ROOT}/tasks/{row.pk}/{path}",
        b'{"args": [7, 8]}',
        content_type="application/json",
        headers={"Authorization": f"Bearer {acme.key}"},
        **more,
    )
    assert (answer.status_code, pointers(answer)) == (400, ["Content-Length"])
    row.refresh_from_db()
    assert row.status == "FAILED"


def test_masks_are_not_stored(acme: ApiClient) -> None:
    secret = {"task": ECHO, "kwargs": {"token": "t0p"}}
    body = {"target_config": secret, "key": "k", "run_at": LATER.isoformat()}
    assert acme.post("/tasks", body).status_code == 201
    body["target_config"] = {"task": ECHO, "kwargs": {"token": MASK}}
    assert pointers(acme.post("/tasks", body)) == ["#/target_config"]
    schedule = {"name": "n", "interval_seconds": 60, "target_config": body["target_config"]}
    assert pointers(acme.post("/recurring-tasks", schedule)) == ["#/target_config"]
    assert Task.objects.get().kwargs == {"token": "t0p"}


def _edited(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {"target_config": {"kwargs": kwargs}}


def test_a_replay_keeps_a_masked_value_and_does_not_send_it_elsewhere(acme: ApiClient) -> None:
    stored = {"token": "t0p", "url": "https://a.example"}
    row = a_task("FAILED", name=ECHO, kwargs=stored, tenant=acme.tenant)
    operator, path = a_client(acme.tenant, "read", "operate"), f"/tasks/{row.pk}/replay"
    stolen = operator.post(path, _edited({"token": MASK, "url": "https://b.example"}))
    assert (stolen.status_code, pointers(stolen)) == (422, ["#/target_config"])
    kept = operator.post(path, _edited({**stored, "token": MASK}))
    assert kept.status_code == 200, kept.content
    row.refresh_from_db()
    assert row.kwargs == stored


def test_masks_in_a_list_are_not_moved_to_other_values(acme: ApiClient) -> None:
    stored = {"hooks": [{"url": "a", "token": "1"}, {"url": "b", "token": "2"}]}
    row = a_task(name=ECHO, kwargs=stored, due=3_600, tenant=acme.tenant)
    operator = a_client(acme.tenant, "read", "operate")
    shorter = {"hooks": [{"url": "b", "token": MASK}]}
    answer = operator.patch(
        f"/tasks/{row.pk}", {"target_config": {"kwargs": shorter}}, If_Match="*"
    )
    assert answer.status_code == 422
    row.refresh_from_db()
    assert row.kwargs == stored


def test_edited_arguments_need_a_task_that_clients_may_create(
    acme: ApiClient, settings: Any
) -> None:
    row = a_task("FAILED", name=ADD, args=[1, 2], tenant=acme.tenant)
    settings.DURABLE_TASKS = {**SETTINGS, "API_TASKS": []}
    assert (
        acme.post(f"/tasks/{row.pk}/replay", {"target_config": {"args": [3, 4]}}).status_code == 422
    )
    assert acme.post(f"/tasks/{row.pk}/replay").status_code == 200


def test_members_that_a_patch_leaves_out_keep_their_values(acme: ApiClient) -> None:
    row = a_task(name=ECHO, args=[5], kwargs={"n": 1}, due=3_600, tenant=acme.tenant)
    body = {"target_config": {"task": ECHO, "kwargs": {"n": 2}}}
    assert acme.patch(f"/tasks/{row.pk}", body, If_Match="*").status_code == 200
    row.refresh_from_db()
    assert (row.args, row.kwargs) == ([5], {"n": 2})


def test_a_reference_does_not_read_the_result_of_another_tenant(
    acme: ApiClient, globex: ApiClient
) -> None:
    foreign = a_task("SUCCESS", result={"iban": 1}, tenant=globex.tenant)
    flow = Workflow("flow")
    first = flow.add(echo, step="first")
    flow.add(echo, first.result, step="second", after=[first])
    run = flow.start(tenant=acme.tenant, run_at=LATER)
    second = Task.objects.get(workflow=run, step="second")
    reference = {"$result": str(foreign.pk), "path": []}
    for config in (
        {"args": [reference]},
        {"kwargs": {"deep": [{"x": reference}]}},
        {"args": [{"$result": "no uuid"}]},
    ):
        answer = acme.patch(f"/tasks/{second.pk}", {"target_config": config}, If_Match="*")
        assert (answer.status_code, pointers(answer)) == (422, ["#/target_config"])
    same = {"args": second.args, "kwargs": {"more": 1}}
    kept = acme.patch(f"/tasks/{second.pk}", {"target_config": same}, If_Match="*")
    assert kept.status_code == 200, kept.content
    assert resolve.resolve_references([reference], {}, acme.tenant.pk) == ([None], {})
    assert resolve.resolve_references([reference], {}, globex.tenant.pk) == ([{"iban": 1}], {})


def test_a_cursor_contains_no_id_of_another_tenant(
    globex: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "ROWS_EXAMINED", 3)
    foreign = {str(row.pk) for row in many_tasks(9, tenant=globex.tenant)}
    own = a_task(id=_oldest())
    default = a_client(Tenant.objects.get(pk=DEFAULT_TENANT_ID))
    path, found, pages = "/tasks?limit=2", list[str](), 0
    while path and pages < 20:
        page = default.get(path).json()
        found += [row["task_id"] for row in page["data"]]
        cursor, pages = page["next_cursor"], pages + 1
        if cursor:
            content = base64.urlsafe_b64decode(f"{cursor}==").decode()
            assert not [one for one in foreign if one in content]
        path = cursor and f"/tasks?limit=2&cursor={cursor}"
    assert found == [str(own.pk)]


def _oldest() -> Any:
    return Task._meta.pk.to_python("01000000-0000-7000-8000-000000000001")


def test_editing_by_key_needs_the_scope_of_edits(acme: ApiClient) -> None:
    creator = a_client(acme.tenant, "create")
    body = call(key="k", run_at=LATER.isoformat())
    assert creator.post("/tasks", body).status_code == 201
    again = creator.post("/tasks", call(left=9, key="k", run_at=LATER.isoformat()))
    assert (again.status_code, again.json()["scope"]) == (403, "operate")
    assert Task.objects.get().args == [1]


def test_the_stored_answer_to_a_write_contains_no_secret(acme: ApiClient) -> None:
    error = "Broken: token=t0p"
    row = a_task(failures=1, last_error=error, due=3_600, tenant=acme.tenant)
    first = acme.post(f"/tasks/{row.pk}/retry", Idempotency_Key="k")
    assert "t0p" not in first.content.decode()
    other = a_client(acme.tenant, "operate")
    replayed = other.post(f"/tasks/{row.pk}/retry", Idempotency_Key="k")
    assert replayed.headers["Idempotent-Replayed"] == "true"
    assert "t0p" not in replayed.content.decode()


def test_a_dry_run_sends_no_signal(acme: ApiClient) -> None:
    received: list[str] = []

    def receive(**values: Any) -> None:
        received.append(str(values.get("transition")))

    tasks_transitioned.connect(receive)
    try:
        row = a_task(tenant=acme.tenant)
        acme.post(f"/tasks/{row.pk}/cancel?dry_run=1")
        acme.post("/tasks?dry_run=1", call())
        assert received == []
        acme.post(f"/tasks/{row.pk}/cancel")
        assert len(received) == 1
    finally:
        tasks_transitioned.disconnect(receive)


def test_a_client_cannot_choose_which_conflict_is_answered(acme: ApiClient) -> None:
    key = "Idempotency-Key"
    assert acme.post("/tasks", call(idempotency_key=key)).status_code == 201
    other = acme.post("/tasks", call(left=9, idempotency_key=key), Idempotency_Key="x")
    assert (other.status_code, other.json()["code"]) == (409, "conflict")


def test_a_problem_names_a_bounded_number_of_fields(acme: ApiClient) -> None:
    unknown = acme.post("/tasks", {f"field{number}": 1 for number in range(500)})
    assert len(unknown.json()["errors"]) <= 20
    many = acme.post("/tasks", call(depends_on=["x"] * 49_000))
    assert pointers(many) == ["#/depends_on"]


def test_a_reschedule_is_checked_like_an_edit(acme: ApiClient) -> None:
    row = a_task(due=60, expires_at=LATER, tenant=acme.tenant)
    for run_at in ("1999-01-01T00:00:00Z", (LATER + timedelta(hours=1)).isoformat()):
        answer = acme.post(f"/tasks/{row.pk}/reschedule", {"run_at": run_at})
        assert answer.status_code == 422, answer.content
    row.refresh_from_db()
    assert row.epoch == 0


def test_times_before_1970_are_read(acme: ApiClient) -> None:
    assert acme.get("/tasks?from=1970-01-01T00:00:00%2B01:00").status_code == 200
