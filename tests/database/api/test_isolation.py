"""A tenant sees and changes its own rows only.

The tests read the URL patterns, so that a new endpoint without a row for its id fails here.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from django.urls import URLPattern

from django_durable_tasks import Workflow
from django_durable_tasks.api import urls
from django_durable_tasks.api.endpoint import ApiEndpoint
from django_durable_tasks.engine.tenants import bulk_operations
from django_durable_tasks.models import (
    BulkKind,
    Calendar,
    DeadLetter,
    NotificationSetting,
    RecurringTask,
    Task,
)
from django_durable_tasks.rules.tenants.task_filters import TaskFilter
from tests.database.api.client import ApiClient, a_client
from tests.database.notifications.sending import a_setting
from tests.factories import many_tasks
from tests.project.tasks import noop

pytestmark = pytest.mark.django_db
PUBLIC = {"problem", "unknown", "health", "schema", "docs"}
"""Endpoints that answer without a key."""


def _patterns() -> Iterator[tuple[str, URLPattern, type[ApiEndpoint]]]:
    for pattern in urls.urlpatterns:
        if pattern.name not in PUBLIC:
            yield str(pattern.pattern), pattern, pattern.callback.cls


def _methods(endpoint: type[ApiEndpoint]) -> list[str]:
    return [name.upper() for name in ("get", "post", "patch", "delete") if hasattr(endpoint, name)]


def _rows_of(client: ApiClient) -> dict[str, Any]:
    """Create one row for each kind of id in the addresses, and return the ids."""
    task = many_tasks(1, "FAILED", tenant=client.tenant)[0]
    schedule = RecurringTask.objects.upsert(
        name="nightly", task=noop, cron="0 2 * * *", tenant=client.tenant
    )
    workflow = Workflow("flow")
    workflow.add(noop)
    return {
        "task_id": task.pk,
        "recurring_task_id": schedule.pk,
        "workflow_id": workflow.start(tenant=client.tenant).pk,
        "letter_id": task.dead_letters.get().pk,
        "calendar_id": Calendar.objects.upsert("office", tenant=client.tenant).pk,
        "operation_id": bulk_operations.start(client.tenant, BulkKind.CANCEL, TaskFilter()).pk,
        "notification_setting_id": a_setting(tenant=client.tenant).pk,
    }


SHARED = "queues/"
"""Objects that all tenants share, behind a scope of their own."""
WITH_ID = [
    (address, method)
    for address, _pattern, endpoint in _patterns()
    if "<" in address and not address.startswith(SHARED)
    for method in _methods(endpoint)
]
WITHOUT_ID = [
    (address, method)
    for address, _pattern, endpoint in _patterns()
    if "<" not in address or address.startswith(SHARED)
    for method in _methods(endpoint)
]


def _filled(address: str, ids: dict[str, Any]) -> str:
    address = address.replace("<str:queue>", "mail")
    for name, value in ids.items():
        address = address.replace(f"<uuid:{name}>", str(value)).replace(f"<int:{name}>", str(value))
    assert "<" not in address, f"_rows_of() creates no row for {address}"
    return f"/{address}{'?at=2027-01-01T00:00:00Z' if address.endswith('/explain') else ''}"


def _everything() -> dict[str, Any]:
    return {
        **{str(row.pk): (row.epoch, row.status) for row in Task.objects.all()},
        **{str(row.pk): (row.revision, row.status) for row in RecurringTask.objects.all()},
        **{f"letter {row.pk}": row.resolution for row in DeadLetter.objects.all()},
        **{f"setting {row.pk}": row.revision for row in NotificationSetting.objects.all()},
    }


@pytest.mark.parametrize(("address", "method"), WITH_ID)
def test_the_id_of_another_tenant_is_answered_like_one_that_does_not_exist(
    acme: ApiClient, globex: ApiClient, address: str, method: str
) -> None:
    foreign = _rows_of(globex)
    before = _everything()
    body = None if method == "GET" else _VALID.get(address, {})
    answers = []
    for ids in (foreign, _never_used(foreign)):
        path = _filled(address, ids)
        if method == "DELETE" and path.endswith("/dependencies"):
            path += f"?upstream={foreign['task_id']}"
        answer = acme.send(method, path, body, If_Match="*")
        problem = answer.json()
        answers.append((answer.status_code, problem["code"], problem["detail"]))
    assert answers[0] == answers[1]
    assert answers[0][0] == 404
    assert _everything() == before


_VALID: dict[str, Any] = {
    "tasks/<uuid:task_id>/reschedule": {"run_at": "2026-12-01T00:00:00Z"},
    "tasks/<uuid:task_id>/dependencies": {"upstream": str(uuid.uuid4()), "type": "MUST_SUCCEED"},
    "recurring-tasks/<uuid:recurring_task_id>/snooze": {"until": "2027-01-01T00:00:00Z"},
    "recurring-tasks/<uuid:recurring_task_id>/override": {
        "fire_time": "2027-01-01T00:00:00Z",
        "action": "SKIP",
        "reason": "holiday",
    },
    "recurring-tasks/<uuid:recurring_task_id>/remove-override": {
        "fire_time": "2027-01-01T00:00:00Z"
    },
    "recurring-tasks/<uuid:recurring_task_id>/backfill": {
        "start": "2026-01-01T00:00:00Z",
        "end": "2026-01-02T00:00:00Z",
    },
    "recurring-tasks/<uuid:recurring_task_id>/explain": None,
    "dead-letters/<int:letter_id>/discard": {"reason": "old"},
}
"""Bodies of the endpoints that need one; the tests of single endpoints check the others."""


def _never_used(ids: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value + 10**6 if isinstance(value, int) else f"{str(value)[:-12]}{'f' * 12}"
        for name, value in ids.items()
    }


@pytest.mark.parametrize(
    "address",
    [address for address, method in WITHOUT_ID if method == "GET"]
    + [address for address, method in WITH_ID if method == "GET"],
)
def test_a_list_contains_no_row_of_another_tenant(
    acme: ApiClient, globex: ApiClient, address: str, settings: Any
) -> None:
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "METRICS": True}
    own, foreign = _rows_of(acme), _rows_of(globex)
    answer = acme.get(_filled(address, own))
    assert answer.status_code == 200
    text = answer.content.decode()
    ids = [str(value) for value in foreign.values() if isinstance(value, uuid.UUID)]
    assert not [value for value in ids if value in text]


@pytest.mark.parametrize(("address", "method"), [*WITH_ID, *WITHOUT_ID])
def test_every_endpoint_needs_a_key_and_a_scope(acme: ApiClient, address: str, method: str) -> None:
    path = _filled(address, _rows_of(acme))
    unknown = ApiClient(acme.tenant, "")
    answer = unknown.send(method, path, None if method == "GET" else {})
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
    assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    powerless = a_client(acme.tenant, "secrets")
    answer = powerless.send(method, path, None if method == "GET" else {})
    assert (answer.status_code, answer.json()["code"]) == (403, "scope_missing")


@pytest.mark.parametrize(("address", "method"), [*WITH_ID, *WITHOUT_ID])
def test_nothing_answers_unless_the_api_is_switched_on(
    acme: ApiClient, settings: Any, address: str, method: str
) -> None:
    path = _filled(address, _rows_of(acme))
    settings.DURABLE_TASKS = {}
    answer = acme.send(method, path, None if method == "GET" else {})
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


def test_a_list_does_not_reveal_rows_of_others_by_its_filters(
    acme: ApiClient, globex: ApiClient
) -> None:
    many_tasks(3, tenant=globex.tenant)
    many_tasks(3, "FAILED", tenant=globex.tenant)
    for query in ("", "?status=FAILED", "?status=PENDING&queue=test", "?limit=1"):
        assert acme.get(f"/tasks{query}").json()["data"] == []
