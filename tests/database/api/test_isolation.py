"""A tenant sees and changes its own rows only.

The tests read the URL patterns, so that a new endpoint without a row for its id fails here.
"""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from django_durable_tasks.models import DeadLetter, NotificationSetting, RecurringTask, Task
from tests.database.api.client import ApiClient, a_client
from tests.database.api.endpoints import VALID, WITH_ID, WITHOUT_ID, filled, rows_of
from tests.factories import many_tasks

pytestmark = pytest.mark.django_db


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
    foreign = rows_of(globex)
    before = _everything()
    body = None if method == "GET" else VALID.get(address, {})
    answers = []
    for ids in (foreign, _never_used(foreign)):
        path = filled(address, ids)
        if method == "DELETE" and path.endswith("/dependencies"):
            path += f"?upstream={foreign['task_id']}"
        answer = acme.send(method, path, body, If_Match="*")
        problem = answer.json()
        answers.append((answer.status_code, problem["code"], problem["detail"]))
    assert answers[0] == answers[1]
    assert answers[0][0] == 404
    assert _everything() == before


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
    own, foreign = rows_of(acme), rows_of(globex)
    answer = acme.get(filled(address, own))
    assert answer.status_code == 200
    text = answer.content.decode()
    ids = [str(value) for value in foreign.values() if isinstance(value, uuid.UUID)]
    assert not [value for value in ids if value in text]


@pytest.mark.parametrize(("address", "method"), [*WITH_ID, *WITHOUT_ID])
def test_every_endpoint_needs_a_key_and_a_scope(acme: ApiClient, address: str, method: str) -> None:
    path = filled(address, rows_of(acme))
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
    path = filled(address, rows_of(acme))
    settings.DURABLE_TASKS = {}
    answer = acme.send(method, path, None if method == "GET" else {})
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


def test_a_list_does_not_revealrows_of_others_by_its_filters(
    acme: ApiClient, globex: ApiClient
) -> None:
    many_tasks(3, tenant=globex.tenant)
    many_tasks(3, "FAILED", tenant=globex.tenant)
    for query in ("", "?status=FAILED", "?status=PENDING&queue=test", "?limit=1"):
        assert acme.get(f"/tasks{query}").json()["data"] == []
