"""Operations on graphs: cancel and retry of runs and branches, rerun, force-run, approve, hold,
edges.
"""

from __future__ import annotations

import pytest

from django_durable_tasks import Workflow
from django_durable_tasks.exceptions import InvalidOption, TransitionRefused
from django_durable_tasks.models import DeadLetter, Task, WorkflowRun
from django_durable_tasks.tasks import attempts
from django_durable_tasks.workflows import operations, runs
from django_durable_tasks.workflows.builder import AddedTasks
from django_durable_tasks.workflows.operations import RetryMode
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
from tests.database.workflows.operated_runs import WAITS, _chain, _changes
from tests.factories import a_task
from tests.project.tasks import noop

pytestmark = pytest.mark.django_db


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


def _all(run: WorkflowRun, *steps: str) -> list[str]:
    return statuses(*(of(run, step) for step in steps))


def test_a_whole_workflow_is_cancelled_with_its_sub_workflows() -> None:
    run = _nested()
    body = begin(of(run, "beside"))
    report = operations.cancel_workflow(run, by="ann", reason="no use")
    assert set(_changes(report)) == {"leaf", "inner", "last"}
    assert report.stop_requested == (body.task_id,)
    assert {change.reason for change in report.changes} == {"CANCELLED by ann: no use"}
    assert WorkflowRun.objects.filter(cancel_requested_at=None).count() == 0
    resolve_all()
    assert attempts.succeed(body, None, "w")
    resolve_all()
    assert _again(run).status == "CANCELLED"
    assert set(WorkflowRun.objects.values_list("status", flat=True)) == {"CANCELLED"}
    assert not recount()


def test_a_body_whose_cancellation_was_requested_adds_nothing() -> None:
    run = _chain("first", "second")
    body = begin(of(run, "first"))
    operations.cancel_workflow(run, by="ann")
    growth = AddedTasks("more")
    growth.add(noop, step="more")
    assert runs.succeed(body, None, "w", [growth])
    resolve_all()
    assert not Task.objects.filter(step="more").exists()
    assert not Task.objects.open().exists()


def test_a_sub_workflow_is_cancelled_alone_and_its_dependents_are_skipped() -> None:
    run = _nested()
    inner = WorkflowRun.objects.get(name="inner")
    report = operations.cancel_workflow(inner, by="ann")
    assert {step: move.split()[1] for step, move in _changes(report).items()} == {
        "leaf": "CANCELLED",
        "inner": "FAILED",
        "last": "SKIPPED",
    }
    assert _all(run, "beside")[0] in WAITS
    assert _again(run).cancel_requested_at is None


def test_a_run_whose_tasks_have_all_ended_is_not_cancelled() -> None:
    run = _chain("only")
    succeed(of(run, "only"))
    assert operations.cancel_workflow(run, by="ann").total == 0
    resolve_all()
    assert (_again(run).status, run.reason) == ("SUCCESS", "")


def test_a_branch_is_cancelled_and_the_rest_continues() -> None:
    wf = Workflow("fork")
    top = wf.add(noop, step="top")
    left, right = wf.add(noop, step="left", after=top), wf.add(noop, step="right", after=top)
    wf.add(noop, step="below left", after=left)
    wf.add(noop, step="both", after={left: "MUST_FINISH", right: "MUST_FINISH"})
    run = wf.start()
    outside = noop.using(depends_on=[of(run, "below left")]).schedule()
    report = operations.cancel_branch(of(run, "left"), by="ann")
    assert set(_changes(report)) == {"left", "below left", "both", ""}
    assert statuses(outside) == ["CANCELLED"]
    assert _all(run, "top", "right") == [_all(run, "top")[0], "BLOCKED"]
    succeed(of(run, "top"))
    resolve_all()
    assert _all(run, "right")[0] in WAITS


def _failed_in_the_middle() -> WorkflowRun:
    run = _chain("first", "second", "third", key="nightly")
    succeed(of(run, "first"))
    resolve_all()
    fail(of(run, "second"))
    resolve_all()
    assert (_again(run).status, run.open_key) == ("FAILED", None)
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
    assert _changes(report) == expected
    assert (_again(run).status, run.open_key, run.completed_at) == ("RUNNING", "nightly", None)
    letter = DeadLetter.objects.get()
    assert (letter.resolution, letter.resolved_by, letter.comment) == (
        "REPLAYED",
        "ann",
        "disk was full",
    )
    resolve_all()
    assert not recount()
    for step in expected:
        succeed(of(run, step))
        resolve_all()
    assert (_again(run).status, run.succeeded, run.open_key) == ("SUCCESS", 3, None)
    assert not recount()


def test_a_run_is_not_retried_while_another_one_owns_its_key() -> None:
    run = _failed_in_the_middle()
    _chain("other", key="nightly")
    with pytest.raises(TransitionRefused, match="its key 'nightly' belongs to the open run"):
        operations.retry_workflow(run, "FAILED", by="ann")
    assert _all(run, "second", "third") == ["FAILED", "SKIPPED"]
    assert DeadLetter.objects.open().exists()


def test_successes_below_a_failure_run_again_with_the_downstream_option() -> None:
    wf = Workflow("cleanup")
    work = wf.add(noop, step="work")
    wf.add(noop, step="cleanup", after={work: "MUST_FINISH"})
    run = wf.start()
    fail(of(run, "work"))
    resolve_all()
    succeed(of(run, "cleanup"))
    resolve_all()
    assert _changes(operations.retry_workflow(run, "FAILED", by="ann", dry_run=True)) == {
        "work": "FAILED PENDING"
    }
    report = operations.retry_workflow(run, "FAILED_AND_DOWNSTREAM", by="ann")
    assert _changes(report) == {"work": "FAILED PENDING", "cleanup": "SUCCESS BLOCKED"}
    for step in ("work", "cleanup"):
        succeed(of(run, step))
        resolve_all()
    assert _again(run).status == "SUCCESS"
    assert not recount()


def test_a_cancelled_run_is_retried_and_is_no_longer_cancelled() -> None:
    run = _chain("first", "second")
    operations.cancel_workflow(run, by="ann")
    resolve_all()
    assert _again(run).status == "CANCELLED"
    operations.retry_workflow(run, "FAILED", by="ann")
    assert (_again(run).status, run.cancel_requested_at, run.reason) == ("RUNNING", None, "")
    for step in ("first", "second"):
        succeed(of(run, step))
        resolve_all()
    assert _again(run).status == "SUCCESS"


def test_a_rerun_task_runs_with_all_below_it_and_released_tasks_wait_again() -> None:
    run = _chain("first", "second", "third", "fourth")
    for step in ("first", "second"):
        succeed(of(run, step))
        resolve_all()
    assert _all(run, "third")[0] in WAITS
    report = operations.retry_from(of(run, "first"), by="ann")
    moves = _changes(report)
    assert (moves["first"], moves["second"]) == ("SUCCESS PENDING", "SUCCESS BLOCKED")
    assert moves["third"].split()[1] == "BLOCKED"
    resolve_all()
    assert not recount()
    for step in ("first", "second", "third", "fourth"):
        assert _all(run, step)[0] in WAITS
        succeed(of(run, step))
        resolve_all()
    assert _again(run).status == "SUCCESS"


def test_nothing_is_rerun_above_a_running_task() -> None:
    run = _chain("first", "second")
    succeed(of(run, "first"))
    resolve_all()
    begin(of(run, "second"))
    with pytest.raises(
        TransitionRefused,
        match=r"second \(.*\) is RUNNING and depends on a task that would run again",
    ):
        operations.retry_from(of(run, "first"), by="ann")
    with pytest.raises(TransitionRefused, match="RUNNING: only an ended task runs again"):
        operations.retry_from(of(run, "second"), by="ann")
    assert _all(run, "first", "second") == ["SUCCESS", "RUNNING"]


def test_a_retry_that_finds_nothing_or_an_unknown_mode_is_refused() -> None:
    run = _chain("first")
    with pytest.raises(TransitionRefused, match="there is nothing to retry"):
        operations.retry_workflow(run, "FAILED", by="ann")
    with pytest.raises(TransitionRefused, match="None of these tasks has ended"):
        operations.retry_workflow(run, "ALL", by="ann")
    with pytest.raises(InvalidOption, match="Did you mean 'FAILED'"):
        operations.retry_workflow(run, "FAILD", by="ann")


def test_a_missed_deadline_does_not_end_a_retried_run_at_once() -> None:
    run = _chain("first")
    operations.cancel_workflow(run, by="ann")
    WorkflowRun.objects.unguarded().update(deadline_at="2020-01-01T00:00:00Z")
    resolve_all()
    operations.retry_workflow(run, "FAILED", by="ann")
    assert _again(run).deadline_at is None


def test_a_skipped_task_is_forced_to_run_and_skipped_tasks_below_it_wait_again() -> None:
    run = _chain("first", "second", "third")
    fail(of(run, "first"))
    resolve_all()
    report = operations.force_run(question(of(run, "second")), by="ann", reason="data is there")
    assert _changes(report) == {"second": "SKIPPED PENDING", "third": "SKIPPED BLOCKED"}
    assert of(run, "second").reason == "forced by ann: data is there"
    for step in ("second", "third"):
        succeed(of(run, step))
        resolve_all()
    assert (_again(run).status, run.succeeded, run.failed) == ("FAILED", 2, 1)
    assert not recount()


def test_only_blocked_or_skipped_tasks_are_forced() -> None:
    with pytest.raises(TransitionRefused, match="BLOCKED or SKIPPED"):
        operations.force_run(question(a_task()), by="ann")
    with pytest.raises(TransitionRefused, match="can be set to SUCCESS"):
        operations.force_complete(question(a_task("SUCCESS")), by="ann")
