"""The operations of the registry on one task, through the API."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_durable_tasks.models import Task
from tests.database.api.client import ADD, ApiClient, pointers
from tests.factories import a_task

pytestmark = pytest.mark.django_db


def _now(row: Task) -> Task:
    found: Task = Task.objects.get(pk=row.pk)
    return found


def _ok(response: Any) -> Any:
    assert response.status_code == 200, response.content
    return response.json()


def test_retry_releases_a_waiting_retry_and_replays_an_ended_task(acme: ApiClient) -> None:
    soon = timezone.now() + timedelta(hours=1)
    waiting = a_task(failures=1, due_at=soon, tenant=acme.tenant)
    failed = a_task("FAILED", tenant=acme.tenant)
    assert _ok(acme.post(f"/tasks/{waiting.pk}/retry"))["failures"] == 1
    due_at = _now(waiting).due_at
    assert due_at is not None
    assert due_at < soon
    assert _ok(acme.post(f"/tasks/{failed.pk}/retry"))["status"] == "PENDING"
    first_try = a_task(tenant=acme.tenant)
    assert acme.post(f"/tasks/{first_try.pk}/retry").status_code == 409


def test_an_ended_task_is_replayed_with_other_arguments(acme: ApiClient) -> None:
    row = a_task("FAILED", name=ADD, args=[1, "x"], tenant=acme.tenant)
    bad = acme.post(f"/tasks/{row.pk}/replay", {"target_config": {"args": [1]}})
    assert (bad.status_code, _now(row).status) == (422, "FAILED")
    assert (
        _ok(acme.post(f"/tasks/{row.pk}/replay", {"target_config": {"args": [1, 2]}}))["status"]
        == "PENDING"
    )
    assert _now(row).args == [1, 2]
    assert not row.dead_letters.open().exists()


def test_a_replayed_callback_takes_an_edited_target(acme: ApiClient, settings: Any) -> None:
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "API_TASKS": ["django_durable_tasks.*"]}
    stored = {"url": "https://a.example/", "body": {"n": 1}}
    name = "django_durable_tasks.http_callback"
    row = a_task(
        "FAILED", name=name, target_type="HTTP_CALLBACK", kwargs=stored, tenant=acme.tenant
    )
    path = f"/tasks/{row.pk}/replay"
    old = acme.post(path, {"kwargs": {**stored, "body": {"n": 2}}})
    assert (old.status_code, pointers(old)) == (400, ["#/kwargs"])
    bad = acme.post(path, {"target_config": {"adress": "https://a.example/"}})
    assert (bad.status_code, _now(row).status) == (422, "FAILED")
    _ok(acme.post(path, {"target_config": {**stored, "body": {"n": 2}}, "reason": "corrected"}))
    assert "2" in _now(row).kwargs["body"]
    assert _now(row).status == "PENDING"


def test_an_edited_replay_is_within_the_payload_quota(acme: ApiClient, settings: Any) -> None:
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "QUOTAS": {"payload_bytes": 40}}
    row = a_task("FAILED", name=ADD, args=[1, 2], tenant=acme.tenant)
    config = {"args": [1, 2], "kwargs": {"x" * 50: 1}}
    answer = acme.post(f"/tasks/{row.pk}/replay", {"target_config": config})
    assert (answer.status_code, pointers(answer)) == (422, ["#/target_config"])
    assert _now(row).status == "FAILED"


def test_a_waiting_task_is_rescheduled(acme: ApiClient) -> None:
    row = a_task(tenant=acme.tenant)
    later = (timezone.now() + timedelta(days=2)).replace(microsecond=0)
    _ok(acme.post(f"/tasks/{row.pk}/reschedule", {"run_at": later.isoformat()}))
    assert _now(row).run_at == later
    for body, pointer in (
        ({}, "#/run_at"),
        ({"run_at": "8000-01-01T00:00:00Z"}, "#/run_at"),
        ({"run_at": None}, "#/run_at"),
        ({"run_at": later.isoformat(), "when": 5}, "#/when"),
        ({"run_at": later.isoformat(), "reason": "x" * 501}, "#/reason"),
    ):
        response = acme.post(f"/tasks/{row.pk}/reschedule", body)
        assert response.status_code in (400, 422)
        assert pointers(response) == [pointer]


def test_a_task_without_a_gate_cannot_be_approved(acme: ApiClient) -> None:
    answer = acme.post(f"/tasks/{a_task(tenant=acme.tenant).pk}/approve")
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
