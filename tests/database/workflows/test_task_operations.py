"""Operations on single tasks of a workflow: force-complete, approve, hold, add edges."""

from __future__ import annotations

import pytest

from django_durable_tasks import Workflow
from django_durable_tasks.exceptions import (
    DependencyCycle,
    InvalidDependency,
    InvalidOption,
    TransitionRefused,
)
from django_durable_tasks.models import TaskDependency, TaskExecutionLog, WorkflowRun
from django_durable_tasks.workflows import operations
from tests.database.dependencies.worker_and_leader import (
    fail,
    of,
    question,
    recount,
    resolve_all,
    statuses,
)
from tests.database.workflows.operated_runs import WAITS, _chain, _changes
from tests.factories import a_task, a_tenant
from tests.project.tasks import noop

pytestmark = pytest.mark.django_db


def test_force_complete_reactivates_and_releases_dependents() -> None:
    run = _chain("first", "second", "third")
    fail(of(run, "first"))
    resolve_all()
    report = operations.force_complete(question(of(run, "first")), by="ann", reason="by hand")
    moves = _changes(report)
    assert moves["first"] == "FAILED SUCCESS"
    assert moves["second"].split()[1] in WAITS
    assert moves["third"] == "SKIPPED BLOCKED"
    assert (
        TaskExecutionLog.objects.filter(task=of(run, "first"), status="SUCCESS").get().error_message
        == "by hand"
    )
    resolve_all()
    assert not recount()


def _guarded() -> WorkflowRun:
    wf = Workflow("guarded")
    wf.add(noop, step="after it", after=wf.add(noop, step="guarded", approval="four eyes"))
    return wf.start()


def test_an_approval_lets_the_task_run_and_stores_user_and_reason() -> None:
    run = _guarded()
    report = operations.approve(of(run, "guarded"), by="ann", reason="looked at it")
    assert _changes(report)["guarded"].split()[1] in WAITS
    gate = TaskDependency.objects.gates().get()
    assert (gate.outcome, gate.resolved_by, gate.comment, gate.resolved_at is not None) == (
        "APPROVED",
        "ann",
        "looked at it",
        True,
    )
    with pytest.raises(TransitionRefused, match="waits for no APPROVAL"):
        operations.approve(of(run, "guarded"), by="bob")


def test_a_rejected_task_is_cancelled_and_needs_a_new_approval_when_it_is_replayed() -> None:
    run = _guarded()
    report = operations.reject(of(run, "guarded"), by="ann", reason="too early")
    assert _changes(report) == {"guarded": "BLOCKED CANCELLED", "after it": "BLOCKED SKIPPED"}
    assert of(run, "guarded").reason == "REJECTED by ann: too early"
    assert TaskDependency.objects.gates().get().outcome == "REJECTED"
    resolve_all()
    report = operations.retry_workflow(run, "FAILED", by="bob")
    assert _changes(report) == {"guarded": "CANCELLED BLOCKED", "after it": "SKIPPED BLOCKED"}
    assert _changes(operations.approve(of(run, "guarded"), by="bob"))["guarded"].split()[1] in WAITS
    with pytest.raises(TransitionRefused, match="waits for no APPROVAL"):
        operations.reject(of(run, "after it"), by="bob")
    resolve_all()
    assert not recount()


def test_a_task_is_held_and_released() -> None:
    row = a_task()
    assert _changes(operations.hold(row, by="ann", reason="month end")) == {"": "PENDING BLOCKED"}
    gate = TaskDependency.objects.get()
    assert (gate.gate, gate.placed_by, gate.comment) == ("HOLD", "ann", "month end")
    with pytest.raises(TransitionRefused, match="is held already"):
        operations.hold(row, by="ann")
    report = operations.unhold(row, by="bob")
    assert report.changes[0].before == "BLOCKED"
    assert statuses(row)[0] in WAITS
    with pytest.raises(TransitionRefused, match="waits for no HOLD"):
        operations.unhold(row, by="bob")


def test_holding_a_blocked_task_is_reported_although_its_status_stays() -> None:
    run = _chain("first", "second")
    report = operations.hold(of(run, "second"), by="ann", reason="look first")
    assert _changes(report) == {"second": "BLOCKED BLOCKED"}
    assert report.changes[0].reason == "held by ann: look first"


def test_an_edge_is_added_and_removed() -> None:
    low, high = a_task(), a_task()
    assert _changes(operations.add_edge(low, high, "MUST_FINISH", by="ann", policy="FAIL")) == {
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
    assert statuses(low)[0] in WAITS
    with pytest.raises(InvalidDependency, match="there is no such edge"):
        operations.remove_edge(low, high, by="ann")
    assert not recount()


def test_an_edge_to_a_failed_task_is_resolved_at_once() -> None:
    run = _chain("first", "second")
    report = operations.add_edge(of(run, "first"), a_task("FAILED"), "MUST_SUCCEED", by="ann")
    assert {step: move.split()[1] for step, move in _changes(report).items()} == {
        "first": "SKIPPED",
        "second": "SKIPPED",
    }
    resolve_all()
    assert not recount()


def test_an_edge_that_closes_a_cycle_or_leaves_the_tenant_is_refused() -> None:
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
