"""A blocked task is released once its join is met. Every other ending of an upstream is recorded
with its edge.
"""

from __future__ import annotations

import uuid

import pytest

from django_durable_tasks.choices import Status
from django_durable_tasks.dependencies import resolve
from django_durable_tasks.exceptions import InvalidDependency, InvalidOption
from django_durable_tasks.models import DeadLetter, Task, TaskDependency
from tests.database.dependencies.worker_and_leader import (
    fail,
    recount,
    resolve_all,
    statuses,
    succeed,
)
from tests.factories import a_task, a_tenant
from tests.project.tasks import noop

pytestmark = pytest.mark.django_db


def _after(*upstreams: object, **options: object) -> Task:
    return noop.using(depends_on=list(upstreams), **options).schedule()


def test_a_task_waits_for_all_its_upstreams() -> None:
    first, second = a_task(), a_task()
    last = _after(first, second)
    assert (last.status, last.unresolved_dependencies_count, last.due_at) == ("BLOCKED", 2, None)
    succeed(first)
    resolve_all()
    assert statuses(last) == ["BLOCKED"]
    assert not recount()
    succeed(second)
    resolve_all()
    last.refresh_from_db()
    assert last.status in ("PENDING", "QUEUED")
    assert last.unresolved_dependencies_count == 0
    assert list(TaskDependency.objects.values_list("outcome", "met")) == [("SUCCESS", True)] * 2


@pytest.mark.parametrize(
    ("policy", "expected"), [("SKIP", "SKIPPED"), ("FAIL", "FAILED"), ("WAIT", "BLOCKED")]
)
def test_the_policy_decides_after_a_failed_upstream(policy: str, expected: str) -> None:
    first = a_task()
    last = _after(first, on_upstream_failure=policy)
    fail(first)
    resolve_all()
    assert statuses(last) == [expected]
    assert not recount()
    last.refresh_from_db()
    if expected != "BLOCKED":
        assert last.cause == first.pk
    assert DeadLetter.objects.filter(open_task=last.pk, reason="UPSTREAM").count() == (
        expected == "FAILED"
    )


def test_an_ending_is_resolved_although_all_its_dependents_keep_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resolve, "_EDGES", 2)
    first = a_task()
    waiting = [_after(first, on_upstream_failure="WAIT") for _ in range(5)]
    fail(first)
    batches = 0
    while resolve.resolve_endings(10).events:
        batches += 1
        assert batches < 10
    assert statuses(*waiting) == ["BLOCKED"] * 5
    assert TaskDependency.objects.filter(outcome="FAILED", resolved_at=None).count() == 5


def test_a_task_may_run_although_its_upstream_failed() -> None:
    first = a_task()
    last = _after(first, on_upstream_failure="RUN")
    fail(first)
    resolve_all()
    assert statuses(last)[0] in ("PENDING", "QUEUED")


def test_a_failure_cascades_level_by_level_with_its_cause() -> None:
    first = a_task()
    second = _after(first)
    third = _after(second)
    fail(first)
    resolve.resolve_endings(10)
    assert statuses(second, third) == ["SKIPPED", "BLOCKED"]
    resolve.resolve_endings(10)
    assert statuses(third) == ["SKIPPED"]
    assert set(
        Task.objects.filter(pk__in=[second.pk, third.pk]).values_list("cause", flat=True)
    ) == {first.pk}


@pytest.mark.parametrize(
    ("kind", "outcome", "released"),
    [
        ("MUST_FINISH", "fail", True),
        ("MUST_FINISH", "succeed", True),
        ("MUST_FAIL", "fail", True),
        ("MUST_FAIL", "succeed", False),
    ],
)
def test_an_edge_waits_for_one_kind_of_ending(kind: str, outcome: str, released: bool) -> None:
    first = a_task()
    last = noop.using(depends_on={first: kind}).schedule()
    {"fail": fail, "succeed": succeed}[outcome](first)
    resolve_all()
    assert (statuses(last)[0] in ("PENDING", "QUEUED")) is released


def test_a_partial_join_needs_only_its_number_of_upstreams() -> None:
    ups = [a_task() for _ in range(3)]
    last = _after(*ups, join=2)
    fail(ups[0])
    succeed(ups[1])
    resolve_all()
    assert statuses(last) == ["BLOCKED"]
    assert not recount()
    succeed(ups[2])
    resolve_all()
    assert statuses(last)[0] in ("PENDING", "QUEUED")


def test_a_task_whose_join_can_no_longer_be_met_is_skipped() -> None:
    ups = [a_task() for _ in range(3)]
    last = _after(*ups, join=2)
    fail(ups[0], ups[1])
    resolve_all()
    assert statuses(last) == ["SKIPPED"]


def test_a_succeeded_upstream_does_not_block() -> None:
    last = _after(a_task(Status.SUCCESS))
    assert last.status in ("PENDING", "QUEUED")


def test_a_failed_upstream_is_resolved_for_a_new_task_at_once() -> None:
    last = _after(a_task(Status.FAILED))
    assert last.status == "BLOCKED"
    resolve_all()
    assert statuses(last) == ["SKIPPED"]


def test_a_deleted_upstream_is_noticed() -> None:
    first = a_task()
    last = _after(first)
    Task.objects.unguarded().filter(pk=first.pk).delete()
    assert resolve.find_deleted(0, 100)
    resolve_all()
    assert statuses(last) == ["SKIPPED"]
    assert not resolve.find_deleted(TaskDependency.objects.latest("pk").pk, 100)


def test_a_missing_or_foreign_upstream_is_refused() -> None:
    with pytest.raises(InvalidDependency, match="there is none"):
        _after(uuid.uuid4())
    with pytest.raises(InvalidDependency, match="there is none"):
        _after(a_task(tenant_id=a_tenant().pk))
    with pytest.raises(InvalidOption, match="join=3"):
        _after(a_task(), a_task(), join=3)
    assert not Task.objects.filter(status="BLOCKED").exists()
