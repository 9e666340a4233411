"""A tenant sees and changes its own rows only.

The tests read the URL patterns, so that a new endpoint without a row for its id fails here.
"""

from __future__ import annotations

import uuid
from typing import Any, NamedTuple

import pytest
from django.test import override_settings

from django_durable_tasks.contrib.api.access import ApiScope
from django_durable_tasks.contrib.notifications.models import NotificationSetting
from django_durable_tasks.models import DeadLetter, RecurringTask, Task
from tests.database.api.client import SETTINGS, ApiClient, a_client, a_tenant
from tests.database.api.endpoints import VALID, WITH_ID, WITHOUT_ID, filled, rows_of, scope_of
from tests.factories import many_tasks

pytestmark = pytest.mark.django_db


class Tenants(NamedTuple):
    """Two tenants with the ids of their rows."""

    acme: ApiClient
    globex: ApiClient
    of_acme: dict[str, Any]
    of_globex: dict[str, Any]


@pytest.fixture(scope="module")
def tenants(few_committed_rows: object) -> Tenants:
    """Create the rows once for the tests of all endpoints."""
    with override_settings(DURABLE_TASKS=dict(SETTINGS)):
        acme, globex = a_client(a_tenant("acme")), a_client(a_tenant("globex"))
        return Tenants(acme, globex, rows_of(acme), rows_of(globex))


def _everything() -> dict[str, Any]:
    return {
        **{str(row.pk): (row.epoch, row.status) for row in Task.objects.all()},
        **{str(row.pk): (row.revision, row.status) for row in RecurringTask.objects.all()},
        **{f"letter {row.pk}": row.resolution for row in DeadLetter.objects.all()},
        **{f"setting {row.pk}": row.revision for row in NotificationSetting.objects.all()},
    }


@pytest.mark.parametrize(("address", "method"), WITH_ID)
def test_the_id_of_another_tenant_is_answered_like_one_that_does_not_exist(
    tenants: Tenants, address: str, method: str
) -> None:
    foreign = tenants.of_globex
    before = _everything()
    body = None if method == "GET" else VALID.get(address, {})
    answers = []
    for ids in (foreign, _never_used(foreign)):
        path = filled(address, ids)
        if method == "DELETE" and path.endswith("/dependencies"):
            path += f"?upstream={foreign['task_id']}"
        answer = tenants.acme.send(method, path, body, If_Match="*")
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
    tenants: Tenants, address: str, settings: Any
) -> None:
    answer = tenants.acme.get(filled(address, tenants.of_acme))
    assert answer.status_code == 200
    text = answer.content.decode()
    ids = [str(value) for value in tenants.of_globex.values() if isinstance(value, uuid.UUID)]
    assert not [value for value in ids if value in text]


@pytest.mark.parametrize(("address", "method"), [*WITH_ID, *WITHOUT_ID])
def test_every_endpoint_answers_to_exactly_the_keys_with_its_scope(
    tenants: Tenants, settings: Any, address: str, method: str
) -> None:
    path, scope, before = filled(address, tenants.of_acme), scope_of(address, method), _everything()
    others = [other for other in ApiScope if other != scope]
    further = ["secrets"] if "signing-secret" in address else []
    clients = {
        401: ApiClient(tenants.acme.tenant, ""),
        403: a_client(tenants.acme.tenant, *others),
        200: a_client(tenants.acme.tenant, scope, *further),
    }
    if method != "GET":
        path += "?dry_run=1"
    body = None if method == "GET" else VALID.get(address, {})
    answers = {
        status: client.send(method, path, body, If_Match="*") for status, client in clients.items()
    }
    assert (answers[401].status_code, answers[401].json()["code"]) == (401, "unauthenticated")
    assert answers[401].headers["WWW-Authenticate"].startswith("Bearer")
    assert (answers[403].status_code, answers[403].json()["scope"]) == (403, scope)
    # The status of a row may not allow an operation, and some bodies are not complete.
    allowed = (200,) if method == "GET" else (200, 400, 409, 422)
    assert answers[200].status_code in allowed, answers[200].content
    assert _everything() == before


def test_a_list_does_not_reveal_rows_of_others_by_its_filters(tenants: Tenants) -> None:
    many_tasks(3, tenant=tenants.globex.tenant)
    many_tasks(3, "FAILED", tenant=tenants.globex.tenant)
    reader = a_client(a_tenant("initech"))
    for query in ("", "?status=FAILED", "?status=PENDING&queue=test", "?limit=1"):
        assert reader.get(f"/tasks{query}").json()["data"] == []
