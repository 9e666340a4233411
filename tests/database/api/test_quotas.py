"""Quotas of tenants: enforced together with what they count, and shown with their usage."""

from __future__ import annotations

import io
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connections
from django.utils import timezone

from django_durable_tasks.contrib.api import quotas
from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.models import DEFAULT_TENANT_ID, RecurringTask, Task, Tenant
from tests.database.api.client import ADD, ApiClient, call, pointers
from tests.factories import many_tasks
from tests.project.tasks import noop

pytestmark = pytest.mark.django_db


def allow(client: ApiClient, **values: Any) -> None:
    """Set quotas of the client's tenant."""
    quotas.set_quotas(client.tenant, **values, by="test")


def _usage(client: ApiClient) -> dict[str, tuple[Any, Any]]:
    rows = client.get("/quota").json()["data"]
    return {row["name"]: (row["limit"], row["used"]) for row in rows}


def test_a_task_above_the_quota_of_open_tasks_is_refused_and_not_written(acme: ApiClient) -> None:
    allow(acme, open_tasks=2)
    assert [acme.post("/tasks", call(n)).status_code for n in (1, 2)] == [201, 201]
    refused = acme.post("/tasks", call(3))
    assert (refused.status_code, refused.json()["code"]) == (429, "quota_exceeded")
    assert refused.json()["violated-policies"] == ["open_tasks"]
    assert (refused.json()["limit"], refused.json()["used"]) == (2, 2)
    assert Task.objects.for_tenant(acme.tenant).count() == 2
    assert _usage(acme)["open_tasks"] == (2, 2)


def test_an_ended_task_frees_its_place(acme: ApiClient) -> None:
    allow(acme, open_tasks=1)
    first = acme.post("/tasks", call(1)).json()["task_id"]
    assert acme.post("/tasks", call(2)).status_code == 429
    assert acme.post(f"/tasks/{first}/cancel").status_code == 200
    assert acme.post("/tasks", call(2)).status_code == 201


def test_ended_tasks_and_those_of_other_tenants_do_not_count(
    acme: ApiClient, globex: ApiClient
) -> None:
    many_tasks(5, "FAILED", tenant=acme.tenant)
    many_tasks(5, tenant=globex.tenant)
    allow(acme, open_tasks=1)
    assert acme.post("/tasks", call()).status_code == 201


def test_a_task_that_existed_already_is_not_charged(acme: ApiClient) -> None:
    allow(acme, open_tasks=1)
    body = call(1, idempotency_key="order-1")
    assert [acme.post("/tasks", body).status_code for _ in range(3)] == [201, 200, 200]


def test_a_replay_is_charged_like_a_new_task(acme: ApiClient) -> None:
    failed = many_tasks(1, "FAILED", tenant=acme.tenant)[0]
    allow(acme, open_tasks=0)
    refused = acme.post(f"/tasks/{failed.pk}/replay")
    assert (refused.status_code, refused.json()["code"]) == (429, "quota_exceeded")
    failed.refresh_from_db()
    assert failed.status == "FAILED"


def test_a_task_that_is_open_already_is_retried_above_the_quota(acme: ApiClient) -> None:
    later = timezone.now() + timedelta(hours=1)
    waiting = many_tasks(1, failures=1, due_at=later, tenant=acme.tenant)[0]
    allow(acme, open_tasks=0)
    assert acme.post(f"/tasks/{waiting.pk}/retry").status_code == 200


def test_a_forced_run_of_a_skipped_task_is_charged(acme: ApiClient) -> None:
    skipped = many_tasks(1, "SKIPPED", tenant=acme.tenant)[0]
    allow(acme, open_tasks=0)
    assert acme.post(f"/tasks/{skipped.pk}/force-run").status_code == 429


def test_tasks_that_the_project_creates_count_with_the_next_count(acme: ApiClient) -> None:
    many_tasks(3, tenant=acme.tenant)
    allow(acme, open_tasks=3)
    assert acme.post("/tasks", call()).status_code == 429


def test_the_quota_of_recurring_tasks_leaves_out_cancelled_ones(acme: ApiClient) -> None:
    allow(acme, recurring_tasks=1)
    body = {"target_config": {"task": ADD, "args": [1, 2]}, "cron": "0 2 * * *"}
    first = acme.post("/recurring-tasks", {**body, "name": "one"})
    assert first.status_code == 201, first.content
    refused = acme.post("/recurring-tasks", {**body, "name": "two"})
    assert refused.json()["violated-policies"] == ["recurring_tasks"]
    assert not RecurringTask.objects.filter(name="two").exists()
    key = first.json()["recurring_task_id"]
    assert acme.post(f"/recurring-tasks/{key}/cancel").status_code == 200
    assert acme.post("/recurring-tasks", {**body, "name": "two"}).status_code == 201


def test_arguments_above_the_quota_of_bytes_are_refused_in_every_write(acme: ApiClient) -> None:
    allow(acme, payload_bytes=200)
    task = acme.post("/tasks", call()).json()["task_id"]
    large = {"task": ADD, "args": ["x" * 200]}
    schedule = {"name": "large", "cron": "0 2 * * *", "target_config": large}
    answers = [
        acme.post("/tasks", {"target_config": large}),
        acme.patch(f"/tasks/{task}", {"target_config": large}, If_Match="*"),
        acme.post("/recurring-tasks", schedule),
    ]
    for answer in answers:
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["code"] == "too_large"
        assert "200" in answer.json()["detail"]


def test_the_name_of_a_task_does_not_count_for_the_quota_of_bytes(acme: ApiClient) -> None:
    target = {"task": ADD, "args": [1, 2]}
    allow(acme, payload_bytes=len("[[1,2],{}]"))
    assert acme.post("/tasks", {"target_config": target}).status_code == 201
    flow = {"name": "flow", "steps": [{"step": "one", "target_config": target}]}
    assert acme.post("/workflows", flow).status_code == 201
    target["args"] = [1, 20]
    answer = acme.post("/workflows", flow)
    assert (answer.status_code, pointers(answer)) == (422, ["#/steps/0/target_config"])


def test_a_dry_run_is_charged_and_takes_no_place(acme: ApiClient) -> None:
    allow(acme, open_tasks=1)
    assert acme.post("/tasks?dry_run=1", call()).status_code == 200
    assert acme.post("/tasks", call()).status_code == 201
    assert acme.post("/tasks?dry_run=1", call()).status_code == 429


def test_a_quota_without_a_value_of_the_tenant_is_that_of_the_setting(
    acme: ApiClient, settings: Any
) -> None:
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "QUOTAS": {"open_tasks": 0}}
    assert acme.post("/tasks", call()).status_code == 429
    allow(acme, open_tasks=1)
    assert acme.post("/tasks", call()).status_code == 201


def test_the_command_shows_and_sets_quotas(acme: ApiClient) -> None:
    out = io.StringIO()
    call_command("durable", "quota", "acme", "--open-tasks", "7", "--requests", "60/m", stdout=out)
    assert "open_tasks" in out.getvalue()
    assert "60/m" in out.getvalue()
    assert _usage(acme)["open_tasks"] == (7, 0)
    assert _usage(acme)["requests"][0] == "60/m"
    call_command("durable", "quota", "acme", "--reset", stdout=out)
    assert _usage(acme)["open_tasks"][0] is None


def test_the_default_tenant_has_no_quota_of_tasks(db: None) -> None:
    default = Tenant.objects.get(pk=DEFAULT_TENANT_ID)
    with pytest.raises(InvalidOption, match="default tenant"):
        quotas.set_quotas(default, open_tasks=5)


def test_a_task_of_the_project_is_never_refused_by_a_quota(acme: ApiClient) -> None:
    allow(acme, open_tasks=0)
    noop.using(tenant=acme.tenant).schedule()
    assert _usage(acme)["open_tasks"] == (0, 1)


def test_clients_may_choose_only_the_queues_of_the_setting(acme: ApiClient, settings: Any) -> None:
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "API_QUEUES": ["acme.*"]}
    refused = acme.post("/tasks", call(queue="billing"))
    assert (refused.status_code, refused.json()["errors"][0]["code"]) == (422, "unknown_queue")
    created = acme.post("/tasks", call(queue="acme.slow"))
    assert created.status_code == 201
    path = f"/tasks/{created.json()['task_id']}"
    assert acme.patch(path, {"queue": "billing"}, If_Match="*").status_code == 422
    schedule = {"name": "n", "cron": "0 2 * * *", "target_config": {"task": ADD, "args": [1, 2]}}
    assert acme.post("/recurring-tasks", {**schedule, "queue": "billing"}).status_code == 422


@pytest.mark.django_db(transaction=True)
def test_concurrent_requests_never_exceed_the_quota_together(acme: ApiClient) -> None:
    allow(acme, open_tasks=10)

    def send(number: int) -> int:
        try:
            return int(acme.post("/tasks", call(number)).status_code)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(20) as pool:
        counted = Counter(pool.map(send, range(60)))
    # 503: a lock was not free within the lock timeout of the request, as SQLite may answer.
    assert set(counted) <= {201, 429, 503}
    assert counted[201] == Task.objects.for_tenant(acme.tenant).count()
    assert 0 < counted[201] <= 10
    while acme.post("/tasks", call()).status_code == 201:
        pass
    assert Task.objects.for_tenant(acme.tenant).count() == 10
