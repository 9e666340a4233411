"""What an operator does to a graph: whole, branch, again, forced, approved, held, edges."""

from __future__ import annotations

from typing import Any

import pytest

from django_durable_tasks import Workflow
from django_durable_tasks.exceptions import DependencyCycle, InvalidDependency, InvalidOption, TransitionRefused
from django_durable_tasks.lifecycle import attempts, graph_operations
from django_durable_tasks.lifecycle.graph_operations import Report, RetryMode
from django_durable_tasks.models import DeadLetter, Task, TaskDependency, TaskExecutionLog, WorkflowRun
from django_durable_tasks.rules.building import Growth
from tests.database.graphs.playing import begin, fail, of, question, recount, stands, succeed, tell
from tests.factories import a_task, a_tenant
from tests.project.tasks import noop

pytestmark = pytest.mark.django_db
WAITS = ("PENDING", "QUEUED")


def _chain(*steps: str, **given: Any) -> WorkflowRun:
    wf, before = Workflow("chain"), None
    for step in steps:
        before = wf.add(noop, step=step, after=before)
    run: WorkflowRun = wf.start(**given)
    return run


def _nested() -> WorkflowRun:
    inner = Workflow("inner")
    inner.add(noop, step="leaf")
    outer = Workflow("outer")
    outer.add(noop, step="beside")
    outer.add(noop, step="last", after=outer.add_workflow(inner, step="inner"))
    return outer.start()


def _again(run: WorkflowRun) -> WorkflowRun:
    run.refresh_from_db()
    return run


def _moves(report: Report) -> dict[str, str]:
    return {change.step: f"{change.before} {change.after}" for change in report.changes}


def _all(run: WorkflowRun, *steps: str) -> list[str]:
    return stands(*(of(run, step) for step in steps))


# Cancel -----------------------------------------------------------------------------------------------------------


def test_a_whole_workflow_is_cancelled_with_what_runs_inside_it() -> None:
    run = _nested()
    body = begin(of(run, "beside"))
    report = graph_operations.cancel_workflow(run, by="ann", reason="no use")
    assert set(_moves(report)) == {"leaf", "inner", "last"}
    assert report.asked == (body.task_id,)
    assert {change.reason for change in report.changes} == {"CANCELLED by ann: no use"}
    assert WorkflowRun.objects.filter(cancel_requested_at=None).count() == 0
    tell()
    assert attempts.succeed(body, None, "w")
    tell()
    assert _again(run).status == "CANCELLED"
    assert set(WorkflowRun.objects.values_list("status", flat=True)) == {"CANCELLED"}
    assert not recount()


def test_a_body_that_was_asked_to_stop_adds_nothing_any_more() -> None:
    run = _chain("first", "second")
    body = begin(of(run, "first"))
    graph_operations.cancel_workflow(run, by="ann")
    growth = Growth("more")
    growth.add(noop, step="more")
    assert attempts.succeed(body, None, "w", [growth])
    tell()
    assert not Task.objects.filter(step="more").exists()
    assert not Task.objects.open().exists()


def test_a_part_is_cancelled_alone_and_what_waits_for_it_is_skipped() -> None:
    run = _nested()
    inner = WorkflowRun.objects.get(name="inner")
    report = graph_operations.cancel_workflow(inner, by="ann")
    assert {step: move.split()[1] for step, move in _moves(report).items()} == {
        "leaf": "CANCELLED", "inner": "FAILED", "last": "SKIPPED"}  # fmt: skip
    assert _all(run, "beside")[0] in WAITS
    assert _again(run).cancel_requested_at is None


def test_a_run_whose_tasks_have_all_ended_is_not_called_cancelled() -> None:
    run = _chain("only")
    succeed(of(run, "only"))
    assert graph_operations.cancel_workflow(run, by="ann").total == 0
    tell()
    assert (_again(run).status, run.reason) == ("SUCCESS", "")


def test_a_branch_is_cancelled_and_the_rest_goes_on() -> None:
    wf = Workflow("fork")
    top = wf.add(noop, step="top")
    left, right = wf.add(noop, step="left", after=top), wf.add(noop, step="right", after=top)
    wf.add(noop, step="below left", after=left)
    wf.add(noop, step="both", after={left: "MUST_FINISH", right: "MUST_FINISH"})
    run = wf.start()
    outside = noop.using(depends_on=[of(run, "below left")]).schedule()
    report = graph_operations.cancel_branch(of(run, "left"), by="ann")
    assert set(_moves(report)) == {"left", "below left", "both", ""}
    assert stands(outside) == ["CANCELLED"]
    assert _all(run, "top", "right") == [_all(run, "top")[0], "BLOCKED"]
    succeed(of(run, "top"))
    tell()
    assert _all(run, "right")[0] in WAITS


# Run again --------------------------------------------------------------------------------------------------------


def _failed_in_the_middle() -> WorkflowRun:
    run = _chain("first", "second", "third", key="nightly")
    succeed(of(run, "first"))
    tell()
    fail(of(run, "second"))
    tell()
    assert (_again(run).status, run.open_key) == ("FAILED", None)
    return run


@pytest.mark.parametrize(("mode", "expected"), [
    (RetryMode.FAILED, {"second": "FAILED PENDING", "third": "SKIPPED BLOCKED"}),
    (RetryMode.FAILED_AND_DOWNSTREAM, {"second": "FAILED PENDING", "third": "SKIPPED BLOCKED"}),
    (RetryMode.ALL, {"first": "SUCCESS PENDING", "second": "FAILED BLOCKED", "third": "SKIPPED BLOCKED"}),
])  # fmt: skip
def test_a_failed_run_goes_on_under_its_key_and_ends_well(mode: str, expected: dict[str, str]) -> None:
    run = _failed_in_the_middle()
    report = graph_operations.retry_workflow(run, mode, by="ann", reason="disk was full")
    assert _moves(report) == expected
    assert (_again(run).status, run.open_key, run.completed_at) == ("RUNNING", "nightly", None)
    letter = DeadLetter.objects.get()
    assert (letter.resolution, letter.resolved_by, letter.note) == ("REPLAYED", "ann", "disk was full")
    tell()
    assert not recount()
    for step in expected:
        succeed(of(run, step))
        tell()
    assert (_again(run).status, run.succeeded, run.open_key) == ("SUCCESS", 3, None)
    assert not recount()


def test_a_run_does_not_go_on_while_another_one_holds_its_key() -> None:
    run = _failed_in_the_middle()
    _chain("other", key="nightly")
    with pytest.raises(TransitionRefused, match="its key 'nightly' is held by the run"):
        graph_operations.retry_workflow(run, "FAILED", by="ann")
    assert _all(run, "second", "third") == ["FAILED", "SKIPPED"]
    assert DeadLetter.objects.open().exists()


def test_successes_below_a_failure_run_again_when_downstream_is_asked_for() -> None:
    wf = Workflow("cleanup")
    work = wf.add(noop, step="work")
    wf.add(noop, step="cleanup", after={work: "MUST_FINISH"})
    run = wf.start()
    fail(of(run, "work"))
    tell()
    succeed(of(run, "cleanup"))
    tell()
    assert _moves(graph_operations.retry_workflow(run, "FAILED", by="ann", dry_run=True)) == {"work": "FAILED PENDING"}
    report = graph_operations.retry_workflow(run, "FAILED_AND_DOWNSTREAM", by="ann")
    assert _moves(report) == {"work": "FAILED PENDING", "cleanup": "SUCCESS BLOCKED"}
    for step in ("work", "cleanup"):
        succeed(of(run, step))
        tell()
    assert _again(run).status == "SUCCESS"
    assert not recount()


def test_a_cancelled_run_is_retried_and_nobody_cancels_it_any_more() -> None:
    run = _chain("first", "second")
    graph_operations.cancel_workflow(run, by="ann")
    tell()
    assert _again(run).status == "CANCELLED"
    graph_operations.retry_workflow(run, "FAILED", by="ann")
    assert (_again(run).status, run.cancel_requested_at, run.reason) == ("RUNNING", None, "")
    for step in ("first", "second"):
        succeed(of(run, step))
        tell()
    assert _again(run).status == "SUCCESS"


def test_a_task_runs_again_with_all_below_it_and_what_was_released_waits_again() -> None:
    run = _chain("first", "second", "third", "fourth")
    for step in ("first", "second"):
        succeed(of(run, step))
        tell()
    assert _all(run, "third")[0] in WAITS
    report = graph_operations.retry_from(of(run, "first"), by="ann")
    moves = _moves(report)
    assert (moves["first"], moves["second"]) == ("SUCCESS PENDING", "SUCCESS BLOCKED")
    assert moves["third"].split()[1] == "BLOCKED"
    tell()
    assert not recount()
    for step in ("first", "second", "third", "fourth"):
        assert _all(run, step)[0] in WAITS
        succeed(of(run, step))
        tell()
    assert _again(run).status == "SUCCESS"


def test_nothing_runs_again_above_a_task_that_runs() -> None:
    run = _chain("first", "second")
    succeed(of(run, "first"))
    tell()
    begin(of(run, "second"))
    with pytest.raises(TransitionRefused, match=r"second \(.*\) runs, and waited for a task that would run again"):
        graph_operations.retry_from(of(run, "first"), by="ann")
    with pytest.raises(TransitionRefused, match="RUNNING: only an ended task runs again"):
        graph_operations.retry_from(of(run, "second"), by="ann")
    assert _all(run, "first", "second") == ["SUCCESS", "RUNNING"]


def test_a_retry_that_finds_nothing_or_an_unknown_mode_is_refused() -> None:
    run = _chain("first")
    with pytest.raises(TransitionRefused, match="there is nothing to retry"):
        graph_operations.retry_workflow(run, "FAILED", by="ann")
    with pytest.raises(TransitionRefused, match="None of these tasks has ended"):
        graph_operations.retry_workflow(run, "ALL", by="ann")
    with pytest.raises(InvalidOption, match="Did you mean 'FAILED'"):
        graph_operations.retry_workflow(run, "FAILD", by="ann")


def test_a_missed_deadline_does_not_end_a_retried_run_at_once() -> None:
    run = _chain("first")
    graph_operations.cancel_workflow(run, by="ann")
    WorkflowRun.objects.unguarded().update(deadline_at="2020-01-01T00:00:00Z")
    tell()
    graph_operations.retry_workflow(run, "FAILED", by="ann")
    assert _again(run).deadline_at is None


# By an operator's word --------------------------------------------------------------------------------------------


def test_a_skipped_task_is_forced_to_run_and_what_was_skipped_below_it_waits_again() -> None:
    run = _chain("first", "second", "third")
    fail(of(run, "first"))
    tell()
    report = graph_operations.force_run(question(of(run, "second")), by="ann", reason="data is there")
    assert _moves(report) == {"second": "SKIPPED PENDING", "third": "SKIPPED BLOCKED"}
    assert of(run, "second").reason == "forced by ann: data is there"
    for step in ("second", "third"):
        succeed(of(run, step))
        tell()
    assert (_again(run).status, run.succeeded, run.failed) == ("FAILED", 2, 1)
    assert not recount()


def test_only_tasks_that_wait_or_were_skipped_are_forced() -> None:
    with pytest.raises(TransitionRefused, match="BLOCKED or SKIPPED"):
        graph_operations.force_run(question(a_task()), by="ann")
    with pytest.raises(TransitionRefused, match="can be called done"):
        graph_operations.force_complete(question(a_task("SUCCESS")), by="ann")


def test_a_task_that_is_called_done_brings_back_and_releases() -> None:
    run = _chain("first", "second", "third")
    fail(of(run, "first"))
    tell()
    report = graph_operations.force_complete(question(of(run, "first")), by="ann", reason="by hand")
    moves = _moves(report)
    assert moves["first"] == "FAILED SUCCESS"
    assert moves["second"].split()[1] in WAITS
    assert moves["third"] == "SKIPPED BLOCKED"
    assert TaskExecutionLog.objects.filter(task=of(run, "first"), status="SUCCESS").get().error_message == "by hand"
    tell()
    assert not recount()


# Gates ------------------------------------------------------------------------------------------------------------


def _guarded() -> WorkflowRun:
    wf = Workflow("guarded")
    wf.add(noop, step="after it", after=wf.add(noop, step="guarded", approval="four eyes"))
    return wf.start()


def test_an_approval_lets_the_task_run_and_says_who_and_why() -> None:
    run = _guarded()
    report = graph_operations.approve(of(run, "guarded"), by="ann", reason="looked at it")
    assert _moves(report)["guarded"].split()[1] in WAITS
    gate = TaskDependency.objects.gates().get()
    assert (gate.outcome, gate.resolved_by, gate.note, gate.resolved_at is not None) == (
        "APPROVED", "ann", "looked at it", True)  # fmt: skip
    with pytest.raises(TransitionRefused, match="waits for no APPROVAL"):
        graph_operations.approve(of(run, "guarded"), by="bob")


def test_a_rejected_task_is_cancelled_and_asks_again_when_it_is_replayed() -> None:
    run = _guarded()
    report = graph_operations.reject(of(run, "guarded"), by="ann", reason="too early")
    assert _moves(report) == {"guarded": "BLOCKED CANCELLED", "after it": "BLOCKED SKIPPED"}
    assert of(run, "guarded").reason == "REJECTED by ann: too early"
    assert TaskDependency.objects.gates().get().outcome == "REJECTED"
    tell()
    report = graph_operations.retry_workflow(run, "FAILED", by="bob")
    assert _moves(report) == {"guarded": "CANCELLED BLOCKED", "after it": "SKIPPED BLOCKED"}
    assert _moves(graph_operations.approve(of(run, "guarded"), by="bob"))["guarded"].split()[1] in WAITS
    with pytest.raises(TransitionRefused, match="waits for no APPROVAL"):
        graph_operations.reject(of(run, "after it"), by="bob")
    tell()
    assert not recount()


def test_a_task_is_held_and_let_go() -> None:
    row = a_task()
    assert _moves(graph_operations.hold(row, by="ann", reason="month end")) == {"": "PENDING BLOCKED"}
    gate = TaskDependency.objects.get()
    assert (gate.gate, gate.placed_by, gate.note) == ("HOLD", "ann", "month end")
    with pytest.raises(TransitionRefused, match="is held already"):
        graph_operations.hold(row, by="ann")
    report = graph_operations.unhold(row, by="bob")
    assert report.changes[0].before == "BLOCKED"
    assert stands(row)[0] in WAITS
    with pytest.raises(TransitionRefused, match="waits for no HOLD"):
        graph_operations.unhold(row, by="bob")


def test_a_hold_of_a_task_that_waits_already_is_reported_though_it_stays_where_it_is() -> None:
    run = _chain("first", "second")
    report = graph_operations.hold(of(run, "second"), by="ann", reason="look first")
    assert _moves(report) == {"second": "BLOCKED BLOCKED"}
    assert report.changes[0].reason == "held by ann: look first"


# Edges ------------------------------------------------------------------------------------------------------------


def test_an_edge_is_added_and_taken_away() -> None:
    low, high = a_task(), a_task()
    assert _moves(graph_operations.add_edge(low, high, "MUST_FINISH", by="ann", policy="FAIL")) == {
        "": "PENDING BLOCKED"
    }
    edge = TaskDependency.objects.get()
    assert (edge.placed_by, edge.dependency_type, edge.on_upstream_failure) == ("ann", "MUST_FINISH", "FAIL")
    with pytest.raises(InvalidDependency, match="already"):
        graph_operations.add_edge(low, high, "MUST_FINISH", by="ann")
    graph_operations.remove_edge(low, high, by="ann")
    assert stands(low)[0] in WAITS
    with pytest.raises(InvalidDependency, match="there is no such edge"):
        graph_operations.remove_edge(low, high, by="ann")
    assert not recount()


def test_an_edge_to_a_task_that_failed_is_told_at_once() -> None:
    run = _chain("first", "second")
    report = graph_operations.add_edge(of(run, "first"), a_task("FAILED"), "MUST_SUCCEED", by="ann")
    assert {step: move.split()[1] for step, move in _moves(report).items()} == {"first": "SKIPPED", "second": "SKIPPED"}
    tell()
    assert not recount()


def test_an_edge_that_closes_a_circle_or_leaves_the_tenant_is_refused() -> None:
    run = _chain("first", "second")
    with pytest.raises(DependencyCycle, match=r"first .* -> second .* -> first"):
        graph_operations.add_edge(of(run, "first"), of(run, "second"), "MUST_SUCCEED", by="ann")
    with pytest.raises(InvalidDependency, match="none for this tenant"):
        graph_operations.add_edge(of(run, "first"), a_task(tenant_id=a_tenant().pk), "MUST_SUCCEED", by="ann")
    with pytest.raises(InvalidOption, match="Did you mean 'MUST_SUCCEED'"):
        graph_operations.add_edge(of(run, "first"), a_task(), "MUST_SUCCED", by="ann")
    assert not TaskDependency.objects.filter(task=of(run, "first")).exists()
