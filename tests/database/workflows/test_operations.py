"""Operations on graphs: cancel and retry of runs and branches, rerun, force-run, approve, hold,
edges.
"""

from __future__ import annotations

from typing import Any

import pytest

from django_durable_tasks import Workflow
from django_durable_tasks.exceptions import (
    DependencyCycle,
    InvalidDependency,
    InvalidOption,
    TransitionRefused,
)
from django_durable_tasks.models import (
    DeadLetter,
    Task,
    TaskDependency,
    TaskExecutionLog,
    WorkflowRun,
)
from django_durable_tasks.tasks import attempts
from django_durable_tasks.workflows import operations, runs
from django_durable_tasks.workflows.builder import AddedTasks
from django_durable_tasks.workflows.operations import GraphReport, RetryMode
from tests.database.dependencies.worker_and_leader import (
    begin,
    fail_steps,
    of,
    question,
    recount,
    resolve_all,
    statuses,
    statuses_of,
    succeed,
    succeed_steps,
)
from tests.factories import a_task, a_tenant
from tests.project.tasks import noop

pytestmark = pytest.mark.django_db


def test_a_whole_workflow_is_cancelled_with_its_sub_workflows() -> None:
    run = nested_run()
    body = begin(of(run, "beside"))
    report = operations.cancel_workflow(run, by="ann", reason="no use")
    assert set(changes(report)) == {"leaf", "inner", "last"}
    assert report.stop_requested == (body.task_id,)
    assert {change.reason for change in report.changes} == {"CANCELLED by ann: no use"}
    assert WorkflowRun.objects.filter(cancel_requested_at=None).count() == 0
    resolve_all()
    assert attempts.succeed(body, None, "w")
    resolve_all()
    assert read_again(run).status == "CANCELLED"
    assert set(WorkflowRun.objects.values_list("status", flat=True)) == {"CANCELLED"}
    assert not recount()


def test_a_body_whose_cancellation_was_requested_adds_nothing() -> None:
    run = chain("first", "second")
    body = begin(of(run, "first"))
    operations.cancel_workflow(run, by="ann")
    growth = AddedTasks("more")
    growth.add(noop, step="more")
    assert runs.succeed(body, None, "w", [growth])
    resolve_all()
    assert not Task.objects.filter(step="more").exists()
    assert not Task.objects.open().exists()


def test_a_sub_workflow_is_cancelled_alone_and_its_dependents_are_skipped() -> None:
    run = nested_run()
    inner = WorkflowRun.objects.get(name="inner")
    report = operations.cancel_workflow(inner, by="ann")
    assert {step: move.split()[1] for step, move in changes(report).items()} == {
        "leaf": "CANCELLED",
        "inner": "FAILED",
        "last": "SKIPPED",
    }
    assert statuses_of(run, "beside")[0] in WAITS
    assert read_again(run).cancel_requested_at is None


def test_a_run_whose_tasks_have_all_ended_is_not_cancelled() -> None:
    run = chain("only")
    succeed(of(run, "only"))
    assert operations.cancel_workflow(run, by="ann").total == 0
    resolve_all()
    assert (read_again(run).status, run.reason) == ("SUCCESS", "")


def test_a_branch_is_cancelled_and_the_rest_continues() -> None:
    wf = Workflow("fork")
    top = wf.add(noop, step="top")
    left, right = wf.add(noop, step="left", after=top), wf.add(noop, step="right", after=top)
    wf.add(noop, step="below left", after=left)
    wf.add(noop, step="both", after={left: "MUST_FINISH", right: "MUST_FINISH"})
    run = wf.start()
    outside = noop.using(depends_on=[of(run, "below left")]).schedule()
    report = operations.cancel_branch(of(run, "left"), by="ann")
    assert set(changes(report)) == {"left", "below left", "both", ""}
    assert statuses(outside) == ["CANCELLED"]
    assert statuses_of(run, "top", "right") == [statuses_of(run, "top")[0], "BLOCKED"]
    succeed_steps(run, "top")
    assert statuses_of(run, "right")[0] in WAITS


def _failed_in_the_middle() -> WorkflowRun:
    run = chain("first", "second", "third", key="nightly")
    succeed_steps(run, "first")
    fail_steps(run, "second")
    assert (read_again(run).status, run.open_key) == ("FAILED", None)
    return run


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (RetryMode.FAILED, {"second": "FAILED PENDING", "third": "SKIPPED BLOCKED"}),
        (RetryMode.FAILED_AND_DOWNSTREAM, {"second": "FAILED PENDING", "third": "SKIPPED BLOCKED"}),
        (
            RetryMode.ALL,
            {"first": "SUCCESS PENDING", "second": "FAILED BLOCKED", "third": "SKIPPED BLOCKED"},
        ),
    ],
)
def test_a_failed_run_is_retried_under_its_key_and_succeeds(
    mode: str, expected: dict[str, str]
) -> None:
    run = _failed_in_the_middle()
    report = operations.retry_workflow(run, mode, by="ann", reason="disk was full")
    assert changes(report) == expected
    assert (read_again(run).status, run.open_key, run.completed_at) == ("RUNNING", "nightly", None)
    letter = DeadLetter.objects.get()
    assert (letter.resolution, letter.resolved_by, letter.comment) == (
        "REPLAYED",
        "ann",
        "disk was full",
    )
    resolve_all()
    assert not recount()
    succeed_steps(run, *expected)
    assert (read_again(run).status, run.succeeded, run.open_key) == ("SUCCESS", 3, None)
    assert not recount()


def test_a_run_is_not_retried_while_another_one_owns_its_key() -> None:
    run = _failed_in_the_middle()
    chain("other", key="nightly")
    with pytest.raises(TransitionRefused, match="its key 'nightly' belongs to the open run"):
        operations.retry_workflow(run, "FAILED", by="ann")
    assert statuses_of(run, "second", "third") == ["FAILED", "SKIPPED"]
    assert DeadLetter.objects.open().exists()


def test_successes_below_a_failure_run_again_with_the_downstream_option() -> None:
    wf = Workflow("cleanup")
    work = wf.add(noop, step="work")
    wf.add(noop, step="cleanup", after={work: "MUST_FINISH"})
    run = wf.start()
    fail_steps(run, "work")
    succeed_steps(run, "cleanup")
    assert changes(operations.retry_workflow(run, "FAILED", by="ann", dry_run=True)) == {
        "work": "FAILED PENDING"
    }
    report = operations.retry_workflow(run, "FAILED_AND_DOWNSTREAM", by="ann")
    assert changes(report) == {"work": "FAILED PENDING", "cleanup": "SUCCESS BLOCKED"}
    succeed_steps(run, "work", "cleanup")
    assert read_again(run).status == "SUCCESS"
    assert not recount()


def test_a_cancelled_run_is_retried_and_is_no_longer_cancelled() -> None:
    run = chain("first", "second")
    operations.cancel_workflow(run, by="ann")
    resolve_all()
    assert read_again(run).status == "CANCELLED"
    operations.retry_workflow(run, "FAILED", by="ann")
    assert (read_again(run).status, run.cancel_requested_at, run.reason) == ("RUNNING", None, "")
    succeed_steps(run, "first", "second")
    assert read_again(run).status == "SUCCESS"


def test_a_rerun_task_runs_with_all_below_it_and_released_tasks_waitread_again() -> None:
    run = chain("first", "second", "third", "fourth")
    succeed_steps(run, "first", "second")
    assert statuses_of(run, "third")[0] in WAITS
    report = operations.retry_from(of(run, "first"), by="ann")
    moves = changes(report)
    assert (moves["first"], moves["second"]) == ("SUCCESS PENDING", "SUCCESS BLOCKED")
    assert moves["third"].split()[1] == "BLOCKED"
    resolve_all()
    assert not recount()
    for step in ("first", "second", "third", "fourth"):
        assert statuses_of(run, step)[0] in WAITS
        succeed(of(run, step))
        resolve_all()
    assert read_again(run).status == "SUCCESS"


def test_nothing_is_rerun_above_a_running_task() -> None:
    run = chain("first", "second")
    succeed_steps(run, "first")
    begin(of(run, "second"))
    with pytest.raises(
        TransitionRefused,
        match=r"second \(.*\) is RUNNING and depends on a task that would run again",
    ):
        operations.retry_from(of(run, "first"), by="ann")
    with pytest.raises(TransitionRefused, match="RUNNING: only an ended task runs again"):
        operations.retry_from(of(run, "second"), by="ann")
    assert statuses_of(run, "first", "second") == ["SUCCESS", "RUNNING"]


def test_a_retry_that_finds_nothing_or_an_unknown_mode_is_refused() -> None:
    run = chain("first")
    with pytest.raises(TransitionRefused, match="there is nothing to retry"):
        operations.retry_workflow(run, "FAILED", by="ann")
    with pytest.raises(TransitionRefused, match="None of these tasks has ended"):
        operations.retry_workflow(run, "ALL", by="ann")
    with pytest.raises(InvalidOption, match="Did you mean 'FAILED'"):
        operations.retry_workflow(run, "FAILD", by="ann")


def test_a_missed_deadline_does_not_end_a_retried_run_at_once() -> None:
    run = chain("first")
    operations.cancel_workflow(run, by="ann")
    WorkflowRun.objects.unguarded().update(deadline_at="2020-01-01T00:00:00Z")
    resolve_all()
    operations.retry_workflow(run, "FAILED", by="ann")
    assert read_again(run).deadline_at is None


def test_a_skipped_task_is_forced_to_run_and_skipped_tasks_below_it_waitread_again() -> None:
    run = chain("first", "second", "third")
    fail_steps(run, "first")
    report = operations.force_run(question(of(run, "second")), by="ann", reason="data is there")
    assert changes(report) == {"second": "SKIPPED PENDING", "third": "SKIPPED BLOCKED"}
    assert of(run, "second").reason == "forced by ann: data is there"
    succeed_steps(run, "second", "third")
    assert (read_again(run).status, run.succeeded, run.failed) == ("FAILED", 2, 1)
    assert not recount()


def test_only_blocked_or_skipped_tasks_are_forced() -> None:
    with pytest.raises(TransitionRefused, match="BLOCKED or SKIPPED"):
        operations.force_run(question(a_task()), by="ann")
    with pytest.raises(TransitionRefused, match="can be set to SUCCESS"):
        operations.force_complete(question(a_task("SUCCESS")), by="ann")


# Workflow runs for the tests of operations.


WAITS = ("PENDING", "QUEUED")


def chain(*steps: str, **given: Any) -> WorkflowRun:
    """Start a workflow whose steps depend on each other in this order."""
    wf, before = Workflow("chain"), None
    for step in steps:
        before = wf.add(noop, step=step, after=before)
    run: WorkflowRun = wf.start(**given)
    return run


def nested_run() -> WorkflowRun:
    """Start a workflow with a sub-workflow: beside, and last after the leaf of inner."""
    inner = Workflow("inner")
    inner.add(noop, step="leaf")
    outer = Workflow("outer")
    outer.add(noop, step="beside")
    outer.add(noop, step="last", after=outer.add_workflow(inner, step="inner"))
    return outer.start()


def read_again(run: WorkflowRun) -> WorkflowRun:
    """Return the run as the database has it now."""
    run.refresh_from_db()
    return run


def changes(report: GraphReport) -> dict[str, str]:
    """Return the status before and after of each changed step."""
    return {change.step: f"{change.before} {change.after}" for change in report.changes}


# Operations on single tasks of a workflow: force-complete, approve, hold, add edges.


def test_force_complete_reactivates_and_releases_dependents() -> None:
    run = chain("first", "second", "third")
    fail_steps(run, "first")
    report = operations.force_complete(question(of(run, "first")), by="ann", reason="by hand")
    moves = changes(report)
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
    assert changes(report)["guarded"].split()[1] in WAITS
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
    assert changes(report) == {"guarded": "BLOCKED CANCELLED", "after it": "BLOCKED SKIPPED"}
    assert of(run, "guarded").reason == "REJECTED by ann: too early"
    assert TaskDependency.objects.gates().get().outcome == "REJECTED"
    resolve_all()
    report = operations.retry_workflow(run, "FAILED", by="bob")
    assert changes(report) == {"guarded": "CANCELLED BLOCKED", "after it": "SKIPPED BLOCKED"}
    assert changes(operations.approve(of(run, "guarded"), by="bob"))["guarded"].split()[1] in WAITS
    with pytest.raises(TransitionRefused, match="waits for no APPROVAL"):
        operations.reject(of(run, "after it"), by="bob")
    resolve_all()
    assert not recount()


def test_a_task_is_held_and_released() -> None:
    row = a_task()
    assert changes(operations.hold(row, by="ann", reason="month end")) == {"": "PENDING BLOCKED"}
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
    run = chain("first", "second")
    report = operations.hold(of(run, "second"), by="ann", reason="look first")
    assert changes(report) == {"second": "BLOCKED BLOCKED"}
    assert report.changes[0].reason == "held by ann: look first"


def test_an_edge_is_added_and_removed() -> None:
    low, high = a_task(), a_task()
    assert changes(operations.add_edge(low, high, "MUST_FINISH", by="ann", policy="FAIL")) == {
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
    run = chain("first", "second")
    report = operations.add_edge(of(run, "first"), a_task("FAILED"), "MUST_SUCCEED", by="ann")
    assert {step: move.split()[1] for step, move in changes(report).items()} == {
        "first": "SKIPPED",
        "second": "SKIPPED",
    }
    resolve_all()
    assert not recount()


def test_an_edge_that_closes_a_cycle_or_leaves_the_tenant_is_refused() -> None:
    run = chain("first", "second")
    with pytest.raises(DependencyCycle, match=r"first .* -> second .* -> first"):
        operations.add_edge(of(run, "first"), of(run, "second"), "MUST_SUCCEED", by="ann")
    with pytest.raises(InvalidDependency, match="none for this tenant"):
        operations.add_edge(
            of(run, "first"), a_task(tenant_id=a_tenant().pk), "MUST_SUCCEED", by="ann"
        )
    with pytest.raises(InvalidOption, match="Did you mean 'MUST_SUCCEED'"):
        operations.add_edge(of(run, "first"), a_task(), "MUST_SUCCED", by="ann")
    assert not TaskDependency.objects.filter(task=of(run, "first")).exists()


# A cancelled run stores who cancelled it, whether the operation or the leader reaches its tasks
# first.


@pytest.mark.parametrize("is_running", [False, True])
def test_a_run_whose_tasks_the_leader_cancels_first_keeps_the_user_of_the_request(
    is_running: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = nested_run()
    bodies = [begin(of(run, "beside"))] if is_running else []
    carry_out = operations.carry_out

    def after_the_leader(*given: Any, **named: Any) -> GraphReport:
        assert runs.cancel_called_off(100)
        return carry_out(*given, **named)

    monkeypatch.setattr(operations, "carry_out", after_the_leader)
    assert operations.cancel_workflow(run, by="ann", reason="no use").total == 0
    for body in bodies:
        assert attempts.succeed(body, None, "w")
    resolve_all()
    assert (read_again(run).status, run.reason) == ("CANCELLED", "CANCELLED by ann: no use")


def test_a_run_is_not_cancelled_because_one_of_its_tasks_was_cancelled_before() -> None:
    run = nested_run()
    operations.cancel_branch(of(run, "beside"), by="ann")
    succeed(of(run, "leaf"))
    Task.objects.unguarded().open().update(status="SUCCESS")
    operations.cancel_workflow(run, by="ann")
    assert (read_again(run).cancel_requested_at, run.reason) == (None, "")
