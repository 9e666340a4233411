"""What operators do to single tasks of a workflow: complete by force, approve, hold, add edges."""

from __future__ import annotations

import pytest

from django_durable_tasks import Workflow
from django_durable_tasks.engine.workflows import operations
from django_durable_tasks.exceptions import (
    DependencyCycle,
    InvalidDependency,
    InvalidOption,
    TransitionRefused,
)
from django_durable_tasks.models import (
    TaskDependency,
    TaskExecutionLog,
    WorkflowRun,
)
from tests.database.dependencies.worker_and_leader import fail, of, question, recount, stands, tell
from tests.database.workflows.operated_runs import WAITS, _chain, _moves
from tests.factories import a_task, a_tenant
from tests.project.tasks import noop

pytestmark = pytest.mark.django_db


def test_a_task_that_is_called_done_brings_back_and_releases() -> None:
    run = _chain("first", "second", "third")
    fail(of(run, "first"))
    tell()
    report = operations.force_complete(question(of(run, "first")), by="ann", reason="by hand")
    moves = _moves(report)
    assert moves["first"] == "FAILED SUCCESS"
    assert moves["second"].split()[1] in WAITS
    assert moves["third"] == "SKIPPED BLOCKED"
    assert (
        TaskExecutionLog.objects.filter(task=of(run, "first"), status="SUCCESS").get().error_message
        == "by hand"
    )
    tell()
    assert not recount()


def _guarded() -> WorkflowRun:
    wf = Workflow("guarded")
    wf.add(noop, step="after it", after=wf.add(noop, step="guarded", approval="four eyes"))
    return wf.start()


def test_an_approval_lets_the_task_run_and_says_who_and_why() -> None:
    run = _guarded()
    report = operations.approve(of(run, "guarded"), by="ann", reason="looked at it")
    assert _moves(report)["guarded"].split()[1] in WAITS
    gate = TaskDependency.objects.gates().get()
    assert (gate.outcome, gate.resolved_by, gate.comment, gate.resolved_at is not None) == (
        "APPROVED",
        "ann",
        "looked at it",
        True,
    )
    with pytest.raises(TransitionRefused, match="waits for no APPROVAL"):
        operations.approve(of(run, "guarded"), by="bob")


def test_a_rejected_task_is_cancelled_and_asks_again_when_it_is_replayed() -> None:
    run = _guarded()
    report = operations.reject(of(run, "guarded"), by="ann", reason="too early")
    assert _moves(report) == {"guarded": "BLOCKED CANCELLED", "after it": "BLOCKED SKIPPED"}
    assert of(run, "guarded").reason == "REJECTED by ann: too early"
    assert TaskDependency.objects.gates().get().outcome == "REJECTED"
    tell()
    report = operations.retry_workflow(run, "FAILED", by="bob")
    assert _moves(report) == {"guarded": "CANCELLED BLOCKED", "after it": "SKIPPED BLOCKED"}
    assert _moves(operations.approve(of(run, "guarded"), by="bob"))["guarded"].split()[1] in WAITS
    with pytest.raises(TransitionRefused, match="waits for no APPROVAL"):
        operations.reject(of(run, "after it"), by="bob")
    tell()
    assert not recount()


def test_a_task_is_held_and_let_go() -> None:
    row = a_task()
    assert _moves(operations.hold(row, by="ann", reason="month end")) == {"": "PENDING BLOCKED"}
    gate = TaskDependency.objects.get()
    assert (gate.gate, gate.placed_by, gate.comment) == ("HOLD", "ann", "month end")
    with pytest.raises(TransitionRefused, match="is held already"):
        operations.hold(row, by="ann")
    report = operations.unhold(row, by="bob")
    assert report.changes[0].before == "BLOCKED"
    assert stands(row)[0] in WAITS
    with pytest.raises(TransitionRefused, match="waits for no HOLD"):
        operations.unhold(row, by="bob")


def test_a_hold_of_a_task_that_waits_already_is_reported_though_it_stays_where_it_is() -> None:
    run = _chain("first", "second")
    report = operations.hold(of(run, "second"), by="ann", reason="look first")
    assert _moves(report) == {"second": "BLOCKED BLOCKED"}
    assert report.changes[0].reason == "held by ann: look first"


def test_an_edge_is_added_and_taken_away() -> None:
    low, high = a_task(), a_task()
    assert _moves(operations.add_edge(low, high, "MUST_FINISH", by="ann", policy="FAIL")) == {
        "": "PENDING BLOCKED"
    }
    edge = TaskDependency.objects.get()
    assert (edge.placed_by, edge.dependency_type, edge.on_upstream_failure) == (
        "ann",
        "MUST_FINISH",
        "FAIL",
    )
    with pytest.raises(InvalidDependency, match="already"):
        operations.add_edge(low, high, "MUST_FINISH", by="ann")
    operations.remove_edge(low, high, by="ann")
    assert stands(low)[0] in WAITS
    with pytest.raises(InvalidDependency, match="there is no such edge"):
        operations.remove_edge(low, high, by="ann")
    assert not recount()


def test_an_edge_to_a_task_that_failed_is_told_at_once() -> None:
    run = _chain("first", "second")
    report = operations.add_edge(of(run, "first"), a_task("FAILED"), "MUST_SUCCEED", by="ann")
    assert {step: move.split()[1] for step, move in _moves(report).items()} == {
        "first": "SKIPPED",
        "second": "SKIPPED",
    }
    tell()
    assert not recount()


def test_an_edge_that_closes_a_circle_or_leaves_the_tenant_is_refused() -> None:
    run = _chain("first", "second")
    with pytest.raises(DependencyCycle, match=r"first .* -> second .* -> first"):
        operations.add_edge(of(run, "first"), of(run, "second"), "MUST_SUCCEED", by="ann")
    with pytest.raises(InvalidDependency, match="none for this tenant"):
        operations.add_edge(
            of(run, "first"), a_task(tenant_id=a_tenant().pk), "MUST_SUCCEED", by="ann"
        )
    with pytest.raises(InvalidOption, match="Did you mean 'MUST_SUCCEED'"):
        operations.add_edge(of(run, "first"), a_task(), "MUST_SUCCED", by="ann")
    assert not TaskDependency.objects.filter(task=of(run, "first")).exists()
