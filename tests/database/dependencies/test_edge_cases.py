"""Edge cases of dependencies: very many dependents, cycles by added tasks, deleted and stale
upstreams, shrinking joins.
"""

from __future__ import annotations

from typing import Any

import pytest

from django_durable_tasks import Workflow
from django_durable_tasks.dependencies import edges, edit, replay, resolve
from django_durable_tasks.dependencies.joins import edges_to
from django_durable_tasks.exceptions import DependencyCycle
from django_durable_tasks.models import Task
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
    succeed,
)
from tests.factories import a_task
from tests.project.tasks import noop

pytestmark = pytest.mark.django_db
READY = ("PENDING", "QUEUED")


def _after(*upstreams: Any, **options: Any) -> Task:
    return noop.using(depends_on=list(upstreams), **options).schedule()


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
    assert statuses(of(run, "low"), of(run, "added")) == ["BLOCKED", "BLOCKED"]
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
