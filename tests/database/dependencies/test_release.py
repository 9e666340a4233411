"""A blocked task is released once its join is met. Every other ending of an upstream is recorded
with its edge.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import pytest

from django_durable_tasks import Workflow
from django_durable_tasks.choices import Status
from django_durable_tasks.dependencies import edges, edit, replay, resolve
from django_durable_tasks.dependencies.rules import edges_to
from django_durable_tasks.exceptions import DependencyCycle, InvalidDependency, InvalidOption
from django_durable_tasks.models import DeadLetter, Task, TaskDependency
from django_durable_tasks.tasks import operator_actions
from django_durable_tasks.workflows import runs
from django_durable_tasks.workflows.builder import AddedTasks
from tests.database.dependencies.worker_and_leader import (
    begin,
    fail,
    of,
    question,
    recount,
    resolve_all,
    statuses,
    statuses_of,
    succeed,
)
from tests.factories import a_task, a_tenant
from tests.project.tasks import noop

pytestmark = pytest.mark.django_db
READY = ("PENDING", "QUEUED")


def _after(*upstreams: Any, **options: Any) -> Task:
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
    assert last.status in READY
    assert last.unresolved_dependencies_count == 0
    assert list(TaskDependency.objects.values_list("outcome", "met")) == [("SUCCESS", True)] * 2


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("SKIP", ["SKIPPED"]), ("FAIL", ["FAILED"]), ("WAIT", ["BLOCKED"]), ("RUN", READY)],
)
def test_the_policy_decides_after_a_failed_upstream(policy: str, expected: Sequence[str]) -> None:
    first = a_task()
    last = _after(first, on_upstream_failure=policy)
    fail(first)
    resolve_all()
    assert statuses(last)[0] in expected
    assert not recount()
    last.refresh_from_db()
    if policy in ("SKIP", "FAIL"):
        assert last.cause == first.pk
    assert DeadLetter.objects.filter(open_task=last.pk, reason="UPSTREAM").count() == (
        policy == "FAIL"
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
    assert (statuses(last)[0] in READY) is released


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
    assert statuses(last)[0] in READY


def test_a_task_whose_join_can_no_longer_be_met_is_skipped() -> None:
    ups = [a_task() for _ in range(3)]
    last = _after(*ups, join=2)
    fail(ups[0], ups[1])
    resolve_all()
    assert statuses(last) == ["SKIPPED"]


def test_a_succeeded_upstream_does_not_block() -> None:
    last = _after(a_task(Status.SUCCESS))
    assert last.status in READY


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


# Edge cases of dependencies: very many dependents, cycles by added tasks, deleted and stale
# upstreams, shrinking joins.


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one batch resolve few edges, so that few dependents count as very many."""
    monkeypatch.setattr(resolve, "_EDGES", 3)


def _resolve_within(batches: int) -> None:
    for _ in range(batches):
        if not resolve.resolve_endings(500).events:
            return
    raise AssertionError(
        f"{batches} batches did not resolve {edges.endings().unresolved().count()} endings"
    )


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize(
    ("policy", "well", "expected"),
    [
        ("SKIP", False, "SKIPPED"),
        ("FAIL", False, "FAILED"),
        ("WAIT", False, "BLOCKED"),
        ("SKIP", True, "PENDING"),
    ],
)
def test_more_dependents_than_a_batch_resolves_are_resolved_batch_by_batch(
    policy: str, well: bool, expected: str
) -> None:
    first = a_task()
    lows = [_after(first, on_upstream_failure=policy, run_at=None) for _ in range(10)]
    (succeed if well else fail)(first)
    _resolve_within(20)
    assert {"PENDING" if status in READY else status for status in statuses(*lows)} == {expected}
    assert not recount()


@pytest.mark.usefixtures("narrow")
def test_a_stale_ending_event_of_very_many_dependents_blocks_nothing() -> None:
    first, other = a_task(), a_task()
    lows, low = [_after(first) for _ in range(10)], _after(other)
    fail(first)
    operator_actions.replay(question(first), by="bob")
    succeed(other)
    _resolve_within(6)
    assert statuses(low)[0] in READY
    assert set(statuses(*lows)) == {"BLOCKED"}


def test_a_task_deleted_before_its_ending_was_resolved_keeps_its_ending() -> None:
    first, second = a_task(), a_task()
    lows = [_after(first), _after(second)]
    succeed(first)
    Task.objects.unguarded().filter(pk__in=[first.pk, second.pk]).delete()
    resolve.find_deleted(0, 100)
    resolve_all()
    assert statuses(lows[0])[0] in READY
    assert statuses(lows[1]) == ["SKIPPED"]


def test_a_body_cannot_add_an_upstream_that_depends_on_the_body() -> None:
    wf = Workflow("circle")
    body = wf.add(noop, step="body")
    wf.add(noop, after=wf.add(noop, after=body, step="low"), step="lower")
    run = wf.start()
    running = begin(of(run, "body"))
    for step in ("low", "lower"):
        growth = AddedTasks("growth")
        growth.add(noop, after=of(run, step))
        with pytest.raises(DependencyCycle, match=r"lower|low"):
            runs.succeed(running, None, "w", (growth,))
    growth = AddedTasks("growth")
    growth.add(noop, after=[a_task(), running.task_id], step="added")
    assert runs.succeed(running, None, "w", (growth,))
    resolve_all()
    assert statuses_of(run, "low", "added") == ["BLOCKED", "BLOCKED"]
    assert not recount()


def test_removing_an_edge_may_leave_a_join_that_cannot_be_met() -> None:
    dead, gone, left = a_task(), a_task(), a_task()
    low = _after(dead, gone, left, join=2)
    fail(dead)
    resolve_all()
    assert statuses(low) == ["BLOCKED"]
    edit.unlink(low.pk, [gone.pk])
    low.refresh_from_db()
    assert (low.status, low.cause) == ("SKIPPED", dead.pk)
    assert operator_actions.replay(question(dead), by="bob")
    assert statuses(low) == ["BLOCKED"]
    assert not recount()


def test_an_edge_to_a_succeeded_task_may_be_the_last_that_a_join_needs() -> None:
    ups, done = [a_task() for _ in range(3)], a_task()
    succeed(done)
    low = _after(*ups, join=2)
    succeed(ups[0])
    resolve_all()
    assert statuses(low) == ["BLOCKED"]
    assert edit.link(low.pk, edges_to(done)) == 1
    assert statuses(low)[0] in READY


@pytest.mark.parametrize("join", ["ALL", 2])
def test_a_forced_task_on_hold_runs_once_it_is_released(join: str | int) -> None:
    ups = [a_task() for _ in range(3)]
    low = _after(*ups, join=join)
    fail(*ups[:2])
    resolve_all()
    assert replay.force_run(question(low), "forced")[0] == [low.pk]
    assert edit.place_gate(low.pk, "HOLD", by="bob")
    assert statuses(low) == ["BLOCKED"]
    assert not recount()
    edit.open_gate(low.pk, "HOLD", by="bob")
    assert statuses(low)[0] in READY


def test_a_cancelled_task_runs_again_once_its_failed_upstream_has_succeeded() -> None:
    first = a_task()
    low = _after(first, on_upstream_failure="WAIT")
    fail(first)
    resolve_all()
    operator_actions.cancel(question(low), by="bob")
    operator_actions.replay(question(first), by="bob")
    assert operator_actions.replay(question(low), by="bob") == [low.pk]
    assert statuses(low) == ["BLOCKED"]
    operator_actions.cancel(question(low), by="bob")
    succeed(first)
    resolve_all()
    assert operator_actions.replay(question(low), by="bob") == [low.pk]
    assert statuses(low)[0] in READY


def test_a_task_that_failed_after_it_was_forced_is_replayed_without_its_upstreams() -> None:
    first = a_task()
    low = _after(first)
    fail(first)
    resolve_all()
    replay.force_run(question(low), "forced")
    fail(low)
    assert operator_actions.replay(question(low), by="bob") == [low.pk]
    assert statuses(low) == ["PENDING"]
