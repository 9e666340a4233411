"""A change with an Idempotency-Key has its effect once: an edit, a deletion, an operation."""

from __future__ import annotations

from typing import Any

import pytest

from django_durable_tasks.contrib.api.models import IdempotentRequest
from django_durable_tasks.models import AuditEntry, Calendar
from tests.database.api.client import ApiClient, a_client, pointers
from tests.factories import a_task

pytestmark = pytest.mark.django_db


@pytest.fixture
def path(acme: ApiClient) -> str:
    """The address of a waiting task."""
    return f"/tasks/{a_task(tenant=acme.tenant, due=3_600).pk}"


def _is_replayed(answer: Any) -> bool:
    return "Idempotent-Replayed" in answer.headers


def test_a_repeated_edit_gets_the_first_answer_although_the_version_has_changed(
    acme: ApiClient, path: str
) -> None:
    tag = acme.get(path).headers["ETag"]
    first, again = (
        acme.patch(path, {"priority": 7}, If_Match=tag, Idempotency_Key="k") for _ in range(2)
    )
    assert (first.status_code, again.status_code) == (200, 200), again.content
    assert (first.json(), first.headers["ETag"]) == (again.json(), again.headers["ETag"])
    assert (_is_replayed(first), _is_replayed(again)) == (False, True)
    assert AuditEntry.objects.filter(object_id=path.removeprefix("/tasks/")).count() == 1
    assert acme.patch(path, {"priority": 8}, If_Match=tag).status_code == 412


def test_an_edit_of_another_version_with_the_same_key_is_refused(
    acme: ApiClient, path: str
) -> None:
    tag = acme.get(path).headers["ETag"]
    edited = acme.patch(path, {"priority": 7}, If_Match=tag, Idempotency_Key="k")
    for body, version in (({"priority": 7}, edited.headers["ETag"]), ({"priority": 8}, tag)):
        refused = acme.patch(path, body, If_Match=version, Idempotency_Key="k")
        assert (refused.status_code, pointers(refused)) == (422, ["Idempotency-Key"])
    assert acme.get(path).json()["priority"] == 7


def test_a_refused_edit_does_not_use_its_key(acme: ApiClient, path: str) -> None:
    stale = acme.patch(path, {"priority": 7}, If_Match='"99-x"', Idempotency_Key="k")
    assert stale.status_code == 412
    assert not IdempotentRequest.objects.exists()
    tag = acme.get(path).headers["ETag"]
    assert acme.patch(path, {"priority": 7}, If_Match=tag, Idempotency_Key="k").status_code == 200


def test_a_repeated_deletion_gets_the_first_answer(acme: ApiClient) -> None:
    created = acme.post("/calendars", {"name": "holidays", "days": []})
    assert created.status_code == 201, created.content
    path = created.headers["Location"]
    first, again = (acme.delete(path, Idempotency_Key="k") for _ in range(2))
    assert (first.status_code, again.status_code) == (200, 200), again.content
    assert first.json() == again.json()
    assert _is_replayed(again)
    assert not Calendar.objects.filter(name="holidays").exists()
    assert acme.delete(path).status_code == 404


def test_a_key_names_one_method_and_one_tenant(
    acme: ApiClient, globex: ApiClient, path: str
) -> None:
    tag = acme.get(path).headers["ETag"]
    assert acme.patch(path, {"priority": 7}, If_Match=tag, Idempotency_Key="k").status_code == 200
    other = globex.patch(path, {"priority": 7}, If_Match=tag, Idempotency_Key="k")
    assert other.status_code == 404
    upstream = a_task(tenant=acme.tenant)
    edges = f"{path}/dependencies"
    assert acme.post(edges, {"upstream": str(upstream.pk)}, Idempotency_Key="k").status_code == 200
    removed = acme.delete(f"{edges}?upstream={upstream.pk}", Idempotency_Key="k")
    assert (removed.status_code, _is_replayed(removed)) == (200, False)
    second = acme.delete(f"{edges}?upstream={upstream.pk}&reason=x", Idempotency_Key="k")
    assert (second.status_code, pointers(second)) == (422, ["Idempotency-Key"])


def test_a_replayed_operation_does_not_undo_what_happened_since(acme: ApiClient, path: str) -> None:
    cancelled = acme.post(f"{path}/cancel", {"reason": "wrong"}, Idempotency_Key="k")
    assert acme.post(f"{path}/replay", {}, Idempotency_Key="k").json()["status"] == "PENDING"
    again = acme.post(f"{path}/cancel", {"reason": "wrong"}, Idempotency_Key="k")
    assert (_is_replayed(again), again.json()) == (True, cancelled.json())
    assert acme.get(path).json()["status"] == "PENDING"


def test_a_replay_needs_the_scope_of_the_request(acme: ApiClient, path: str) -> None:
    tag = acme.get(path).headers["ETag"]
    acme.patch(path, {"priority": 7}, If_Match=tag, Idempotency_Key="k")
    reader = a_client(acme.tenant, "read")
    answer = reader.patch(path, {"priority": 7}, If_Match=tag, Idempotency_Key="k")
    assert answer.status_code == 403


@pytest.mark.parametrize("method", ["PATCH", "DELETE"])
def test_a_bad_key_of_a_change_is_named(acme: ApiClient, path: str, method: str) -> None:
    address = path if method == "PATCH" else f"{path}/dependencies?upstream={path[7:]}"
    answer = acme.send(method, address, {}, If_Match="*", Idempotency_Key="é")
    assert (answer.status_code, pointers(answer)) == (400, ["Idempotency-Key"])


def test_an_unknown_upstream_of_a_deletion_is_named_as_a_parameter(
    acme: ApiClient, path: str
) -> None:
    answer = acme.delete(f"{path}/dependencies?upstream=01a214e7-c677-77d2-a922-825970d72b58")
    assert (answer.status_code, pointers(answer)) == (422, ["upstream"])
