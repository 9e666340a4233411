"""Many tasks at once: create, cancel and replay."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.django import TestCase

from django_durable_tasks.choices import OPEN, Status
from django_durable_tasks.contrib.api import bulk_operations, quotas
from django_durable_tasks.contrib.api.bulk_operations import TaskFilter
from django_durable_tasks.contrib.api.models import BulkKind, BulkOperation
from django_durable_tasks.models import Task
from tests.database.api.client import ADD, ApiClient, a_client, call
from tests.database.limits.limited_tasks import claim as claim_tasks
from tests.database.limits.limited_tasks import end, release_waiting
from tests.delivery import deliver
from tests.factories import QUEUE, a_node, a_task, a_tenant, many_tasks
from tests.messages import claim_due
from tests.process_state import new_process_state
from tests.repetitions import repetitions

pytestmark = pytest.mark.django_db
COLUMNS = 70
"""More than one INSERT of a task has parameters."""


def _finish(operation_id: Any, tenant: Any) -> int:
    """Perform all steps of an operation as its task does; return how many there were."""
    for number in range(1, 100):
        key = uuid.UUID(str(operation_id))
        if bulk_operations.advance(key, tenant.pk, now=timezone.now()).completed_at is not None:
            return number
    raise AssertionError("the operation does not end")


def test_each_item_has_a_result_and_a_bad_one_fails_alone(acme: ApiClient) -> None:
    items = [
        call(1),
        {"target_config": {"task": "no.such.task"}},
        call(2, priority=11),
        {"target_config": {"task": ADD, "args": [1]}},
        call(3, unknown=1),
        call(4, idempotency_key="k"),
        call(4, idempotency_key="k"),
    ]
    answer = acme.post("/tasks/bulk", {"items": items})
    assert answer.status_code == 200, answer.content
    found = answer.json()
    assert [one["status"] for one in found["data"]] == [201, 422, 422, 422, 400, 201, 200]
    assert (found["created"], found["refused"]) == (2, 4)
    places = [one["problem"]["errors"][0]["pointer"] for one in found["data"] if "problem" in one]
    assert places == [
        "#/items/1/target_config/task",
        "#/items/2/priority",
        "#/items/3/target_config",
        "#/items/4/unknown",
    ]
    created = {one["task_id"] for one in found["data"] if one["status"] == 201}
    assert {str(key) for key in Task.objects.values_list("pk", flat=True)} == created


def test_items_that_differ_in_every_option_are_created(acme: ApiClient) -> None:
    hour = timezone.now() + timedelta(hours=1)
    items = [
        call(1),
        call(2, queue="mail"),
        call(3, priority=9, max_attempts=1),
        {"target_config": {"task": "tests.project.tasks.perishable"}},
        call(4, run_at=hour.isoformat()),
        call(5, expires_at=hour.isoformat(), timeout=5),
    ]
    answer = acme.post("/tasks/bulk", {"items": items})
    assert (answer.status_code, answer.json().get("created")) == (200, 6), answer.content
    ids = [one["task_id"] for one in answer.json()["data"]]
    rows = {str(key): row for key, row in Task.objects.in_bulk(ids).items()}
    _, mail, first, perishable, later, timed = (rows[key] for key in ids)
    assert (mail.queue, first.priority, first.max_attempts) == ("mail", 9, 1)
    assert perishable.expires_at is not None
    assert timed.options is not None
    assert (perishable.expires_at - perishable.run_at).total_seconds() == 30
    assert (later.run_at, timed.expires_at, timed.options["timeout"]) == (hour, hour, 5)


def test_conflicts_within_a_request_are_reported_by_item(
    acme: ApiClient, globex: ApiClient
) -> None:
    foreign = a_task(tenant=globex.tenant)
    items = [
        call(1, idempotency_key="k"),
        call(2, idempotency_key="k"),
        call(1, idempotency_key="k", on_conflict="reject"),
        call(3, depends_on=[str(foreign.pk)]),
        call(4, key="nightly"),
        call(5, key="nightly"),
        call(6),
    ]
    answer = acme.post("/tasks/bulk", {"items": items}).json()
    assert [one["status"] for one in answer["data"]] == [201, 409, 409, 422, 201, 200, 201]
    assert (answer["created"], answer["refused"]) == (3, 3)
    assert Task.objects.for_tenant(acme.tenant).count() == 3
    assert Task.objects.get(open_key="nightly").args == [5]
    assert acme.post("/tasks/bulk", {"items": items, "atomic": True}).status_code == 422
    assert Task.objects.for_tenant(acme.tenant).count() == 3


def test_an_edit_within_a_request_needs_the_scope(acme: ApiClient) -> None:
    items = [call(4, key="nightly"), call(5, key="nightly")]
    answer = a_client(acme.tenant, "read", "create").post("/tasks/bulk", {"items": items}).json()
    assert [one["status"] for one in answer["data"]] == [201, 403]
    assert Task.objects.get(open_key="nightly").args == [4]


def test_an_atomic_request_creates_all_or_none(acme: ApiClient) -> None:
    items = [call(1), call(2, priority=11)]
    refused = acme.post("/tasks/bulk", {"items": items, "atomic": True})
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["pointer"] == "#/items/1/priority"
    assert not Task.objects.exists()
    assert acme.post("/tasks/bulk", {"items": items[:1], "atomic": True}).json()["created"] == 1


def test_a_thousand_tasks_cost_as_many_statements_as_ten(acme: ApiClient) -> None:
    def statements(number: int) -> int:
        with CaptureQueriesContext(connection) as queries:
            answer = acme.post("/tasks/bulk", {"items": [call(n) for n in range(number)]})
        assert answer.json()["created"] == number
        return sum(1 for one in queries if not one["sql"].startswith(("SAVE", "RELEASE")))

    few = statements(10)
    assert few <= 10
    parameters = connection.features.max_query_params  # of one statement, on SQLite
    batches = 2 if parameters is None else 1_000 * COLUMNS // parameters
    assert statements(1_000) <= few + batches
    assert Task.objects.for_tenant(acme.tenant).count() == 1_010


@pytest.mark.parametrize("name", ["key", "idempotency_key"])
def test_items_with_keys_cost_as_many_statements_as_one(acme: ApiClient, name: str) -> None:
    def sent(first: int, number: int) -> tuple[list[int], int]:
        numbers = range(first, first + number)
        keys: list[dict[str, Any]] = [{name: f"{name}-{n}"} for n in numbers]
        items = [call(n, **key) for n, key in zip(numbers, keys, strict=True)]
        with CaptureQueriesContext(connection) as queries:
            answer = acme.post("/tasks/bulk", {"items": items}).json()
        return [one["status"] for one in answer["data"]], len(queries)

    few, many = sent(0, 5), sent(100, 50)
    assert (few[0], many[0]) == ([201] * 5, [201] * 50)
    assert many[1] <= few[1] + 50 * COLUMNS // (connection.features.max_query_params or 100_000)
    if name == "idempotency_key":
        few, many = sent(0, 5), sent(100, 50)
        assert (few[0], many[0]) == ([200] * 5, [200] * 50)
        assert many[1] == few[1]
    assert Task.objects.for_tenant(acme.tenant).count() == 55


def test_a_key_that_is_taken_after_it_was_read_is_that_of_the_other_task(
    acme: ApiClient, monkeypatch: Any
) -> None:
    other = acme.post("/tasks", call(1, key="nightly")).json()["task_id"]
    monkeypatch.setattr("django_durable_tasks.tasks.enqueue._taken", lambda *read: set())
    items = [call(2, key="nightly"), call(3, key="weekly"), call(4)]
    answer = acme.post("/tasks/bulk", {"items": items}).json()
    assert [one["status"] for one in answer["data"]] == [200, 201, 201]
    assert (answer["created"], answer["data"][0]["task_id"]) == (2, other)
    assert Task.objects.get(pk=other).args == [2]


def test_items_that_change_existing_tasks_are_limited(acme: ApiClient, monkeypatch: Any) -> None:
    monkeypatch.setattr("django_durable_tasks.contrib.api.tasks._ALONE_MAX", 2)
    items = [call(n, key=f"nightly-{n}") for n in range(4)]
    assert acme.post("/tasks/bulk", {"items": items}).json()["created"] == 4
    changed = [call(n + 10, key=f"nightly-{n}") for n in range(4)]
    answer = acme.post("/tasks/bulk", {"items": [*changed, call(1)]}).json()
    assert [one["status"] for one in answer["data"]] == [200, 200, 422, 422, 201]
    (error,) = answer["data"][3]["problem"]["errors"]
    assert (error["pointer"], error["code"]) == ("#/items/3/key", "too_many")
    assert "another request" in error["detail"]
    assert Task.objects.get(open_key="nightly-1").args == [11]
    assert Task.objects.get(open_key="nightly-2").args == [2]


def test_items_do_not_add_dependencies_to_existing_tasks(acme: ApiClient) -> None:
    first, second = (acme.post("/tasks", call(n)).json()["task_id"] for n in range(2))
    waiting: Any = {"key": "last", "depends_on": [first]}
    items = [call(5, **waiting), call(6, **waiting), call(7, key="last", depends_on=[second])]
    answer = acme.post("/tasks/bulk", {"items": items}).json()
    assert [one["status"] for one in answer["data"]] == [201, 200, 422]
    (error,) = answer["data"][2]["problem"]["errors"]
    assert (error["pointer"], error["code"]) == ("#/items/2/depends_on", "not_in_bulk")
    assert acme.post("/tasks", items[2]).status_code == 200
    task = Task.objects.get(open_key="last")
    assert (task.args[0], task.dependencies.count()) == (7, 2)


def test_a_replayed_request_creates_nothing_again(acme: ApiClient) -> None:
    first, again = (
        acme.post("/tasks/bulk", {"items": [call(1), call(2)]}, Idempotency_Key="batch-1")
        for _ in range(2)
    )
    assert again.headers["Idempotent-Replayed"] == "true"
    assert again.json() == first.json()
    assert Task.objects.count() == 2


@pytest.mark.parametrize("items", [[], [call()] * 1_001, {}, None])
def test_wrong_lists_of_items_are_refused(acme: ApiClient, items: Any) -> None:
    answer = acme.post("/tasks/bulk", {"items": items})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"].startswith("#/items")
    assert not Task.objects.exists()


def test_an_atomic_batch_above_the_quota_is_refused_as_a_whole(acme: ApiClient) -> None:
    quotas.set_quotas(acme.tenant, open_tasks=2)
    batch = {"items": [call(n) for n in range(3)], "atomic": True}
    assert acme.post("/tasks/bulk", batch).status_code == 429
    assert not Task.objects.exists()
    assert acme.post("/tasks/bulk", {"items": [call(1), call(2)]}).json()["created"] == 2


def test_an_operation_cancels_what_matches_and_nothing_else(
    acme: ApiClient, globex: ApiClient
) -> None:
    own = many_tasks(5, queue="slow", tenant=acme.tenant)
    other = [
        *many_tasks(2, queue="fast", tenant=acme.tenant),
        *many_tasks(2, queue="slow", tenant=globex.tenant),
    ]
    started = acme.post("/tasks/bulk-cancel", {"queue": "slow", "reason": "wrong data"})
    assert started.status_code == 202, started.content
    operation = started.json()
    assert (operation["state"], operation["kind"]) == ("PENDING", "CANCEL")
    path = started.headers["Location"]
    later = a_task(queue="slow", tenant=acme.tenant)
    _finish(operation["operation_id"], acme.tenant)
    shown = acme.get(path).json()
    assert (shown["state"], shown["matched"], shown["changed"]) == ("DONE", 5, 5)
    assert acme.get("/operations").json()["data"][0] == shown
    rows = Task.objects.in_bulk([row.pk for row in [*own, *other, later]])
    assert {rows[row.pk].status for row in own} == {"CANCELLED"}
    assert {rows[row.pk].status for row in [*other, later]} == {"PENDING"}
    assert "wrong data" in rows[own[0].pk].reason
    assert Task.objects.get(pk=operation["task_id"]).status != "CANCELLED"


def test_a_replay_takes_failed_tasks_unless_another_status_is_named(acme: ApiClient) -> None:
    failed = many_tasks(3, "FAILED", tenant=acme.tenant)
    cancelled = many_tasks(2, "CANCELLED", tenant=acme.tenant)
    operation = acme.post("/tasks/bulk-replay", {}).json()
    _finish(operation["operation_id"], acme.tenant)
    rows = Task.objects.in_bulk([row.pk for row in [*failed, *cancelled]])
    assert {rows[row.pk].status for row in failed} == {"PENDING"}
    assert {rows[row.pk].status for row in cancelled} == {"CANCELLED"}


def test_a_task_that_cannot_be_replayed_is_reported_and_the_others_are_replayed(
    acme: ApiClient,
) -> None:
    failed = many_tasks(3, "FAILED", tenant=acme.tenant)
    Task.objects.filter(pk=failed[1].pk).unguarded().update(key="invoice-7")
    a_task(key="invoice-7", open_key="invoice-7", tenant=acme.tenant)
    operation = acme.post("/tasks/bulk-replay", {}).json()
    _finish(operation["operation_id"], acme.tenant)
    shown = acme.get(f"/operations/{operation['operation_id']}").json()
    assert (shown["matched"], shown["changed"], shown["failed"]) == (3, 2, 1)
    assert [one["task_id"] for one in shown["errors"]] == [str(failed[1].pk)]


def test_steps_continue_where_the_last_one_ended(
    acme: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_operations, "EXAMINED", 3)
    many_tasks(8, tenant=acme.tenant)
    operation = bulk_operations.start(acme.tenant, BulkKind.CANCEL, TaskFilter())
    bulk_operations.advance(operation.pk, acme.tenant.pk, now=timezone.now())

    def crash(*_arguments: Any, **_more: Any) -> Any:
        raise KeyError("crash")

    with monkeypatch.context() as crashing:
        crashing.setattr("django_durable_tasks.tasks.operator_actions.cancel", crash)
        with pytest.raises(KeyError):
            bulk_operations.advance(operation.pk, acme.tenant.pk, now=timezone.now())
    assert _finish(operation.pk, acme.tenant) >= 2
    operation = BulkOperation.objects.get(pk=operation.pk)
    assert (operation.matched, operation.changed) == (8, 8)


def test_a_dry_run_shows_a_sample_and_starts_nothing(acme: ApiClient) -> None:
    own = many_tasks(2, queue="slow", tenant=acme.tenant)
    answer = acme.post("/tasks/bulk-cancel?dry_run=1", {"queue": "slow"})
    assert (answer.status_code, answer.json()["would_answer"]) == (200, 202)
    sample = answer.json()["would_return"]["sample"]
    assert {str(row.pk) for row in own} == set(sample)
    assert not BulkOperation.objects.exists()
    assert Task.objects.count() == 2


@pytest.mark.django_db(transaction=True)
def test_an_operation_performs_its_steps_in_a_worker(acme: ApiClient) -> None:
    many_tasks(3, Status.PENDING, due=3_600, tenant=acme.tenant)
    operation = acme.post("/tasks/bulk-cancel", {}).json()
    row = Task.objects.get(pk=operation["task_id"])
    claim_due(row.queue, timezone.now(), 100, uuid.uuid4())
    deliver(Task.objects.get(pk=row.pk))
    shown = acme.get(f"/operations/{operation['operation_id']}").json()
    assert (shown["state"], shown["changed"]) == ("DONE", 3)


def test_a_task_performs_no_operation_of_another_tenant(acme: ApiClient, globex: ApiClient) -> None:
    waiting = many_tasks(2, tenant=globex.tenant)
    operation = bulk_operations.start(globex.tenant, BulkKind.CANCEL, TaskFilter())
    with pytest.raises(BulkOperation.DoesNotExist):
        bulk_operations.advance(operation.pk, acme.tenant.pk, now=timezone.now())
    assert Task.objects.filter(pk__in=[row.pk for row in waiting], status="PENDING").count() == 2


@pytest.mark.parametrize("used", [5, 6])
@pytest.mark.parametrize("path", ["/tasks/bulk-cancel", "/tasks/{task}/cancel"])
def test_what_frees_the_quota_is_never_refused_by_it(
    acme: ApiClient, settings: Any, used: int, path: str
) -> None:
    made = [acme.post("/tasks", call(number)).json()["task_id"] for number in range(used)]
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "QUOTAS": {"open_tasks": 5}}
    assert acme.post("/tasks", call()).status_code == 429
    assert acme.post("/tasks/bulk-replay", {}).status_code == 429
    answer = acme.post(path.format(task=made[0]), {})
    assert answer.status_code in (200, 202)
    if answer.status_code == 202:
        _finish(answer.json()["operation_id"], acme.tenant)
    assert Task.objects.filter(status="CANCELLED").count() == (used if "bulk" in path else 1)


def test_operations_that_have_not_ended_are_bounded(acme: ApiClient) -> None:
    statuses = [acme.post("/tasks/bulk-cancel", {}).status_code for _ in range(11)]
    assert statuses == [202] * 10 + [409]


@settings(
    max_examples=repetitions(12),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    ends=st.lists(st.sampled_from(["cancel", *sorted(Status), "pruned"]), min_size=10, max_size=10)
)
@example(ends=["cancel"] * 10)
@example(ends=["pruned"] * 10)
def test_an_operation_whose_task_has_ended_uses_no_place(acme: ApiClient, ends: list[str]) -> None:
    BulkOperation.objects.unguarded().all().delete()
    Task.objects.unguarded().all().delete()
    expected = {}
    for ended in ends:
        operation = acme.post("/tasks/bulk-cancel", {}).json()
        task = Task.objects.filter(pk=operation["task_id"]).unguarded()
        expected[operation["operation_id"]] = ended
        if ended == "cancel":
            assert acme.post(f"/tasks/{operation['task_id']}/cancel").status_code == 200
        elif ended == "pruned":
            task.delete()
        else:
            other = a_task(ended, tenant=acme.tenant)
            rows = BulkOperation.objects.filter(pk=operation["operation_id"]).unguarded()
            rows.update(task_id=other.pk)
    still_open = [status for status in ends if status in OPEN]
    shown = {row["operation_id"]: row["state"] for row in acme.get("/operations").json()["data"]}
    assert shown.keys() == expected.keys()
    states = {"SUCCESS": "DONE", "FAILED": "FAILED", "RUNNING": "RUNNING"}
    for operation_id, ended in expected.items():
        default = "PENDING" if ended in OPEN else "CANCELLED"
        assert shown[operation_id] == states.get(ended, default), ended
    statuses = [acme.post("/tasks/bulk-cancel", {}).status_code for _ in range(11)]
    free = 10 - len(still_open)
    assert statuses == [202] * free + [409] * (11 - free)


class Places(TestCase):
    """Draws the processes of a customer and its tasks that wait for them."""

    @settings(deadline=None, max_examples=repetitions(8))
    @given(
        concurrency=st.integers(1, 8),
        kind=st.sampled_from(sorted(BulkKind)),
        priority=st.integers(0, 8),
    )
    def test_an_operation_starts_before_the_waiting_tasks_of_its_tenant(
        self, concurrency: int, kind: BulkKind, priority: int
    ) -> None:
        a_node(concurrency=concurrency, queues=[QUEUE])
        new_process_state()
        tenant = a_tenant()
        many_tasks(30, tenant=tenant, priority=priority, due=-60)
        claim_tasks()
        started = list(Task.objects.queued().values_list("pk", flat=True))
        assert len(started) == max(1, concurrency // 2)
        operation = bulk_operations.start(tenant, kind, TaskFilter())
        release_waiting()
        claim_tasks()
        end(started[0])
        release_waiting()
        claim_tasks()
        assert Task.objects.get(pk=operation.task_id).status == Status.QUEUED


@pytest.mark.parametrize("ended", [0, 30])
def test_a_cancellation_reads_no_ended_tasks(
    acme: ApiClient, monkeypatch: pytest.MonkeyPatch, ended: int
) -> None:
    monkeypatch.setattr(bulk_operations, "EXAMINED", 5)
    for _ in range(ended):
        a_task(Status.SUCCESS, tenant=acme.tenant)
    for number in range(4):
        acme.post("/tasks", call(number))
    operation = acme.post("/tasks/bulk-cancel", {}).json()["operation_id"]
    # The fifth open task is the one of the operation, which is not before its own id.
    assert _finish(operation, acme.tenant) == 1
    assert Task.objects.filter(status="CANCELLED").count() == 4
