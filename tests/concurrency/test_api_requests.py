"""Duplicates of one request with an Idempotency-Key that arrive at the same time have one effect."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import pytest

from django_durable_tasks.models import AuditEntry, Calendar, Task, TaskDependency
from tests.concurrency.racing import no_errors, race
from tests.database.api.client import SETTINGS, ApiClient, a_client, a_tenant, call
from tests.factories import a_task
from tests.repetitions import repetitions

ROUNDS, DUPLICATES = repetitions(4), 5


@pytest.fixture
def acme(settings: Any) -> ApiClient:
    """A client with all scopes."""
    settings.DURABLE_TASKS = SETTINGS
    return a_client(a_tenant())


def _send_together(act: Any) -> tuple[Any, Counter[bool]]:
    """Send duplicates; return the body of the answers, and how many were replayed.

    A duplicate that arrives too early is asked to repeat its request.
    """
    answers = no_errors(race([act] * DUPLICATES))
    statuses = {one.status_code for one in answers}
    assert statuses <= {200, 201, 409, 503}, [one.content for one in answers]
    done = [one for one in answers if one.status_code < 300]
    assert done, statuses
    bodies = [one.json() for one in done]
    assert bodies.count(bodies[0]) == len(bodies)
    again = act()
    assert (again.json(), again.headers["Idempotent-Replayed"]) == (bodies[0], "true")
    return bodies[0], Counter("Idempotent-Replayed" in one.headers for one in done)


def _audited(row: Task) -> int:
    return AuditEntry.objects.filter(object_id=str(row.pk)).count()


def test_duplicates_of_an_edit_change_the_task_once(acme: ApiClient) -> None:
    for _ in range(ROUNDS):
        row = a_task(tenant=acme.tenant, due=3_600)
        path, epoch = f"/tasks/{row.pk}", row.epoch
        tag = acme.get(path).headers["ETag"]
        edit = partial(acme.patch, path, {"priority": 7}, If_Match=tag, Idempotency_Key="k")
        _, replayed = _send_together(edit)
        row.refresh_from_db()
        assert (row.epoch, row.priority, replayed[False]) == (epoch + 1, 7, 1)
        assert _audited(row) == 1


def test_duplicates_of_an_operation_replay_the_task_once(acme: ApiClient) -> None:
    for _ in range(ROUNDS):
        row = a_task("CANCELLED", tenant=acme.tenant)
        path, epoch = f"/tasks/{row.pk}/replay", row.epoch
        _, replayed = _send_together(partial(acme.post, path, {}, Idempotency_Key="k"))
        row.refresh_from_db()
        assert (row.epoch, row.status, replayed[False]) == (epoch + 1, "PENDING", 1)
        assert _audited(row) == 1


def test_duplicates_of_a_deletion_get_the_same_answer(acme: ApiClient) -> None:
    for number in range(1, ROUNDS + 1):
        created = acme.post("/calendars", {"name": f"holidays {number}", "days": []})
        delete = partial(acme.delete, created.headers["Location"], Idempotency_Key="k")
        _, replayed = _send_together(delete)
        assert replayed[False] == 1
        assert not Calendar.objects.filter(name=f"holidays {number}").exists()


def test_duplicates_of_a_removed_dependency_release_the_task_once(acme: ApiClient) -> None:
    for _ in range(ROUNDS):
        row, upstream = (a_task(tenant=acme.tenant, due=3_600) for _ in range(2))
        path = f"/tasks/{row.pk}/dependencies"
        assert acme.post(path, {"upstream": str(upstream.pk)}).status_code == 200
        remove = partial(acme.delete, f"{path}?upstream={upstream.pk}", Idempotency_Key="k")
        _, replayed = _send_together(remove)
        assert replayed[False] == 1
        assert not TaskDependency.objects.filter(task_id=row.pk).exists()


def test_duplicates_of_a_bulk_request_create_its_tasks_once(acme: ApiClient) -> None:
    for number in range(1, ROUNDS + 1):
        items = [call(1), call(2, queue="mail"), call(3, idempotency_key=f"order {number}")]
        send = partial(acme.post, "/tasks/bulk", {"items": items}, Idempotency_Key=f"k{number}")
        body, replayed = _send_together(send)
        assert (body["created"], replayed[False]) == (3, 1)
        assert Task.objects.for_tenant(acme.tenant).count() == 3 * number


def test_bulk_requests_with_the_same_keys_of_tasks_create_each_task_once(acme: ApiClient) -> None:
    for number in range(1, ROUNDS + 1):
        items = [call(place, idempotency_key=f"{number} {place}") for place in range(5)]
        both = ({"items": items}, {"items": items[::-1]})
        acts = [partial(acme.post, "/tasks/bulk", body) for body in both]
        answers = no_errors(race(acts * 2))
        assert {one.status_code for one in answers} <= {200, 503}, [one.content for one in answers]
        done = [one.json() for one in answers if one.status_code == 200]
        assert sum(one["created"] for one in done) == 5
        assert not any(one["refused"] for one in done)
        assert Task.objects.for_tenant(acme.tenant).count() == 5 * number
