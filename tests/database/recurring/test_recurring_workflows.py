"""A recurring task may start one workflow per fire time, which keeps the overlap key of its
schedule until it ends.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_durable_tasks import Workflow
from django_durable_tasks.limits import overlap
from django_durable_tasks.models import OccurrenceRecord, RecurringTask, Task, WorkflowRun
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.tasks import attempts, operator_actions
from django_durable_tasks.workflows import runs
from tests.database.dependencies.worker_and_leader import (
    HOPELESS,
    begin,
    fail,
    recount,
    resolve_all,
    succeed,
)
from tests.database.recurring.schedules import START, a_schedule, at, fire
from tests.database.transitions.transition_calls import CRASH, FAILURE, PLACE, question
from tests.factories import QUEUE
from tests.messages import claim_due
from tests.project import tasks

pytestmark = pytest.mark.django_db
SECOND, THIRD = at(60), at(120)


def closing(steps: int = 2) -> Workflow:
    """Return the result of a builder's body: a chain of this many tasks."""
    found, before = Workflow("closing"), None
    for number in range(steps):
        before = found.add(tasks.noop.using(queue=QUEUE), after=before, step=f"step {number}")
    return found


def of(fire_time: datetime) -> Task:
    """Return the current task of a fire time."""
    found: Task = Task.objects.get(fire_time=fire_time)
    return found


def build(fire_time: datetime, steps: int = 2) -> WorkflowRun:
    """Run the body of a fire time, which returns a workflow, and return the workflow run."""
    assert runs.succeed(begin(of(fire_time)), None, "worker@host", (closing(steps),))
    found: WorkflowRun = WorkflowRun.objects.filter(fire_time=fire_time).latest("pk")
    return found


def finish(run: WorkflowRun) -> WorkflowRun:
    """Run the remaining tasks of a workflow to success."""
    for task in Task.objects.filter(workflow=run).open().order_by("step"):
        succeed(task)
        resolve_all()
    run.refresh_from_db()
    return run


def due() -> list[datetime]:
    """Claim due tasks as a scheduler does, and return the fire times to be published."""
    ids = [message.task_id for message in claim_due(QUEUE, database_now(), 10, PLACE.node)]
    rows = Task.objects.filter(pk__in=ids, recurring_task__isnull=False)
    return sorted(task.fire_time for task in rows if task.fire_time)


def outcome(fire_time: datetime) -> tuple[str, str]:
    """Return the outcome that the ledger has for a fire time, and its reason."""
    line = OccurrenceRecord.objects.get(fire_time=fire_time)
    return line.outcome, line.reason


def with_a_run_open(overlap: str, **given: Any) -> tuple[RecurringTask, WorkflowRun]:
    """Fire once and start a workflow that stays open."""
    row = a_schedule(overlap=overlap, misfire_grace=1, **given)
    fire(START)
    return row, build(START)


# One run a fire time ------------------------------------------------------------------------------


def test_a_fire_starts_one_workflow_which_stores_its_schedule() -> None:
    row = a_schedule(priority=7)
    fire(START)
    run = build(START)
    assert (run.recurring_task, run.fire_time, run.total) == (row.pk, START, 2)
    assert set(Task.objects.filter(workflow=run).values_list("priority", flat=True)) == {7}
    assert finish(run).status == "SUCCESS"
    assert WorkflowRun.objects.count() == 1
    assert not recount()


@pytest.mark.parametrize("outcome", [FAILURE, CRASH])
def test_only_the_attempt_that_succeeds_starts_it(outcome: Any) -> None:
    a_schedule()
    fire(START)
    first = begin(of(START))
    attempts.end_runs(question(of(START)), lambda _: outcome, worker="worker@host")
    operator_actions.retry(question(of(START)), by="anna")
    run = build(START)
    assert not runs.succeed(first, None, "worker@host", (closing(),)), (
        "a paused worker wakes: it is fenced"
    )
    assert list(WorkflowRun.objects.values_list("pk", flat=True)) == [run.pk]


def test_recording_a_success_again_after_a_lost_reply_starts_no_second_workflow() -> None:
    a_schedule()
    fire(START)
    body = begin(of(START))
    assert runs.succeed(body, None, "worker@host", (closing(),))
    assert runs.succeed(body, None, "worker@host", (closing(),))
    assert (WorkflowRun.objects.count(), Task.objects.filter(workflow__isnull=False).count()) == (
        1,
        2,
    )


def test_a_refused_start_fails_the_body_and_leaves_nothing() -> None:
    a_schedule()
    fire(START)
    stray = Workflow("stray")
    first = stray.add(tasks.noop)
    stray.add(tasks.echo, first.result)
    with pytest.raises(Exception, match="not upstream"):
        runs.succeed(begin(of(START)), None, "worker@host", (stray,))
    assert (of(START).status, WorkflowRun.objects.count()) == ("RUNNING", 0)


def test_a_failed_fire_that_is_replayed_starts_it_then() -> None:
    a_schedule()
    fire(START)
    assert attempts.fail(begin(of(START)), HOPELESS, "worker@host")
    operator_actions.replay(question(of(START)), by="anna")
    assert build(START).status == "RUNNING"
    assert WorkflowRun.objects.count() == 1


def test_a_fire_whose_task_succeeded_cannot_be_replayed_into_a_second_run() -> None:
    a_schedule()
    fire(START)
    build(START)
    assert operator_actions.replay(question(of(START)), by="anna") == []
    assert of(START).status == "SUCCESS"


# Overlap ------------------------------------------------------------------------------------------


def test_allow_starts_them_concurrently() -> None:
    with_a_run_open("ALLOW")
    fire(SECOND)
    assert build(SECOND).status == "RUNNING"
    assert WorkflowRun.objects.open().count() == 2


def test_skip_omits_fires_while_the_workflow_is_open_and_names_its_run() -> None:
    row, run = with_a_run_open("SKIP")
    fire(SECOND)
    assert outcome(SECOND) == ("SKIPPED_OVERLAP", f"workflow run {run.pk} is open")
    assert OccurrenceRecord.objects.get(fire_time=SECOND).blocked_by == run.pk
    assert f"workflow run {run.pk} of an earlier fire was still open" in row.explain(SECOND)
    finish(run)
    assert fire(THIRD) == 1


def test_a_detached_sub_workflow_keeps_the_overlap_key_too() -> None:
    a_schedule(overlap="SKIP", misfire_grace=1)
    fire(START)
    whole = Workflow("whole")
    sub = Workflow("sub", deadline=1)
    sub.add(tasks.noop)
    whole.add_workflow(sub, step="sub")
    assert runs.succeed(begin(of(START)), None, "worker@host", (whole,))
    begin(Task.objects.get(step="noop"))
    runs.cancel_late(at(days=36_500), 10)
    runs.cancel_called_off(10)
    resolve_all()
    WorkflowRun.objects.unguarded().filter(name="whole").update(
        status="FAILED", completed_at=database_now()
    )
    fire(SECOND)
    assert outcome(SECOND)[0] == "SKIPPED_OVERLAP"


def test_a_failed_run_frees_the_overlap_key_and_a_retry_takes_it_again() -> None:
    _, run = with_a_run_open("SKIP")
    fail(Task.objects.get(step="step 0"))
    resolve_all()
    assert fire(SECOND) == 1
    succeed(of(SECOND))
    operator_actions.replay(question(Task.objects.get(step="step 0")), by="anna")
    resolve_all()
    fire(THIRD)
    assert outcome(THIRD) == ("SKIPPED_OVERLAP", f"workflow run {run.pk} is open")


def test_queue_one_keeps_the_first_fire_waiting_until_the_workflow_has_ended() -> None:
    row, run = with_a_run_open("QUEUE_ONE")
    fire(SECOND)
    fire(THIRD)
    assert [outcome(time)[0] for time in (SECOND, THIRD)] == ["DISPATCHED", "SKIPPED_OVERLAP"]
    assert f"is held behind workflow run {run.pk} until" in row.explain(SECOND)
    assert (overlap.release(10), due()) == (0, [])
    finish(run)
    assert (overlap.release(10), due()) == (1, [SECOND])


def test_queue_all_runs_one_workflow_after_the_other_in_order() -> None:
    _, run = with_a_run_open("QUEUE_ALL")
    fire(SECOND)
    fire(THIRD)
    for following in (SECOND, THIRD):
        assert overlap.release(10) == 0
        finish(run)
        assert overlap.release(10) == 1
        run = build(following)
    assert WorkflowRun.objects.open().count() == 1


def test_cancel_running_cancels_the_workflow_and_waits_until_it_has_ended() -> None:
    _, run = with_a_run_open("CANCEL_RUNNING")
    body = begin(Task.objects.get(step="step 0"))
    fire(SECOND)
    assert (overlap.release(10), due()) == (0, [])
    runs.cancel_called_off(10)
    resolve_all()
    assert (overlap.release(10), due()) == (0, []), "a body still runs"
    attempts.fail(body, FAILURE, "worker@host")
    resolve_all()
    run.refresh_from_db()
    assert (run.status, run.reason) == ("CANCELLED", "REPLACED")
    assert (overlap.release(10), due()) == (1, [SECOND])


def test_replace_pending_lets_the_workflow_end_and_keeps_the_newest_fire_behind_it() -> None:
    _, run = with_a_run_open("REPLACE_PENDING")
    fire(SECOND)
    fire(THIRD)
    assert (of(SECOND).status, of(SECOND).reason) == ("CANCELLED", "REPLACED")
    assert (overlap.release(10), due()) == (0, [])
    assert finish(run).status == "SUCCESS"
    assert (overlap.release(10), due()) == (1, [THIRD])


def test_schedules_with_the_same_key_exclude_each_others_workflows() -> None:
    for name, start in (("hourly", START), ("nightly", at(30))):
        a_schedule(name, overlap="SKIP", overlap_key="books", misfire_grace=1, start_time=start)
    fire(START)
    run = build(START)
    fire(at(30))
    assert outcome(at(30)) == ("SKIPPED_OVERLAP", f"workflow run {run.pk} is open")


def test_an_older_fire_that_is_replayed_waits_for_the_workflow_at_its_claim() -> None:
    a_schedule(overlap="SKIP", misfire_grace=1)
    fire(START)
    attempts.fail(begin(of(START)), HOPELESS, "worker@host")
    fire(SECOND)
    run = build(SECOND)
    operator_actions.replay(question(of(START)), by="anna")
    assert due() == []
    assert of(START).is_waiting
    finish(run)
    assert (overlap.release(10), due()) == (1, [START])


def test_keys_of_workflows_do_not_hide_a_free_one() -> None:
    for number in range(4):
        a_schedule(f"schedule {number}", overlap="QUEUE_ALL", start_time=at(number))
        fire(at(number))
        build(at(number))
        fire(at(number + 60))
    run = WorkflowRun.objects.get(fire_time=at(3))
    finish(run)
    assert overlap.release(1) == 1
    assert not of(at(63)).is_waiting


def test_a_tick_needs_as_many_statements_with_many_open_workflows_as_with_one() -> None:
    def statements(number: int) -> int:
        for each in range(number):
            name = f"{number} {each}"
            a_schedule(name, overlap="CANCEL_RUNNING", start_time=START)
        fire(START)
        for task in Task.objects.filter(fire_time=START, status="PENDING"):
            runs.succeed(begin(task), None, "worker@host", (closing(),))
        with CaptureQueriesContext(connection) as seen:
            fire(SECOND)
        assert WorkflowRun.objects.filter(reason="REPLACED").count() == number
        for model in (WorkflowRun, Task, OccurrenceRecord, RecurringTask):
            model._base_manager.all().delete()
        return len(seen)

    assert statements(8) == statements(1)


# Manual runs and backfills ------------------------------------------------------------------------


def test_a_manual_run_waits_for_the_workflow_and_starts_its_own() -> None:
    row, run = with_a_run_open("SKIP")
    task = row.trigger_now(by="anna")
    assert task.is_waiting
    finish(run)
    assert overlap.release(10) == 1
    second = build(task.fire_time or START)
    assert second.recurring_task == row.pk
    said = row.explain(task.fire_time or START)
    assert f"It started workflow run {second.pk}, which is RUNNING: 0 of 2 tasks" in said


def test_a_manual_run_under_cancel_running_cancels_the_workflow() -> None:
    row, run = with_a_run_open("CANCEL_RUNNING")
    assert row.trigger_now().is_waiting
    run.refresh_from_db()
    assert run.reason == "REPLACED"


def test_the_explanation_of_a_fire_shows_the_progress_of_its_workflow() -> None:
    row, run = with_a_run_open("SKIP")
    succeed(Task.objects.get(step="step 0"))
    resolve_all()
    assert (
        f"It started workflow run {run.pk}, which is RUNNING: 1 of 2 tasks have ended."
        in row.explain(START)
    )
    finish(run)
    assert "which is SUCCESS: 2 of 2" in row.explain(START)


def test_a_backfill_runs_one_workflow_after_the_other() -> None:
    row = a_schedule(catch_up_mode="SKIP_MISSED", misfire_grace=1)
    fire(at(150))
    assert row.backfill(START, THIRD).created == 3
    for fire_time in (START, SECOND, THIRD):
        overlap.release(10)
        assert due() == [fire_time]
        run = build(fire_time)
        assert overlap.release(10) == 0
        finish(run)
    assert WorkflowRun.objects.count() == 3


def test_a_backfill_skips_an_open_workflow_and_reruns_an_ended_one_on_request() -> None:
    row, run = with_a_run_open("SKIP")

    def report(reprocess: str) -> tuple[str, str]:
        (step,) = row.backfill(START, START, reprocess=reprocess).steps
        return step.action, step.why

    assert report("ALL") == ("UNCHANGED", f"its workflow run {run.pk} is RUNNING")
    fail(Task.objects.get(step="step 0"))
    resolve_all()
    assert report("FAILED") == ("UNCHANGED", f"its workflow run {run.pk} is FAILED"), (
        "it is retried in the run itself"
    )
    assert report("ALL") == ("REPLAYED", "was SUCCESS")
    second = build(START)
    assert second.pk != run.pk
    assert f"workflow run {second.pk}" in row.explain(START)
