"""A workflow that has not ended by its deadline fails: its open tasks and those of its
sub-workflows are cancelled.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from django_durable_tasks import Workflow
from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.models import Task, WorkflowRun
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.tasks import attempts, operator_actions
from django_durable_tasks.workflows import runs
from django_durable_tasks.workflows.builder import AddedTasks
from tests.database.dependencies.worker_and_leader import (
    HOPELESS,
    begin,
    of,
    recount,
    resolve_all,
    statuses_of,
    succeed,
    succeed_steps,
)
from tests.project.tasks import echo, failing, noop

pytestmark = pytest.mark.django_db


def _chain(name: str, *steps: str, **given: Any) -> Workflow:
    wf = Workflow(name, **given)
    before = None
    for step in steps:
        before = wf.add(noop, after=before, step=step)
    return wf


def _pass_deadlines(batch: int = 500) -> int:
    """Run the leader's deadline job with a clock some minutes ahead, and return the number of late
    runs.
    """
    late = runs.cancel_late(database_now() + timedelta(minutes=10), batch)
    while runs.cancel_called_off(batch):
        pass
    resolve_all()
    return late


def _runs() -> dict[str, tuple[str, str]]:
    return {run.name: (run.status, run.reason) for run in WorkflowRun.objects.all()}


def test_a_late_run_is_cancelled_and_has_failed() -> None:
    run = _chain(
        "slow", "first", "second", "third", deadline=300, on_failure=echo, on_success=failing
    ).start()
    succeed_steps(run, "first")
    assert _pass_deadlines() == 1
    assert statuses_of(run, "first", "second", "third") == ["SUCCESS", "CANCELLED", "CANCELLED"]
    assert set(Task.objects.filter(status="CANCELLED").values_list("reason", flat=True)) == {
        "DEADLINE"
    }
    assert _runs() == {"slow": ("FAILED", "DEADLINE")}
    assert list(Task.objects.filter(workflow=None).values_list("name", flat=True)) == [
        "tests.project.tasks.echo"
    ]
    assert _pass_deadlines() == 0
    assert Task.objects.filter(workflow=None).count() == 1
    assert not recount()


def test_a_run_before_its_deadline_continues() -> None:
    run = _chain("in-time", "first", deadline=3_600).start()
    assert _pass_deadlines() == 0
    assert statuses_of(run, "first")[0] in ("PENDING", "QUEUED")


def test_a_run_that_ended_in_time_stays_unchanged() -> None:
    run = _chain("done", "first", deadline=300).start()
    succeed(of(run, "first"))
    assert _pass_deadlines() == 0
    assert _runs() == {"done": ("SUCCESS", "")}


def test_cancellation_of_a_running_body_is_requested_and_its_ending_ends_the_run() -> None:
    run = _chain("busy", "first", "second", deadline=300).start()
    body = begin(of(run, "first"))
    _pass_deadlines()
    assert of(run, "first").cancel_requested_at is not None
    assert _runs() == {"busy": ("RUNNING", "DEADLINE")}
    attempts.fail(body, HOPELESS, "worker@host")
    resolve_all()
    assert statuses_of(run, "first", "second") == ["CANCELLED", "CANCELLED"]
    assert _runs() == {"busy": ("FAILED", "DEADLINE")}


def test_additions_of_a_late_body_are_not_written() -> None:
    run = _chain("growing", "first", deadline=300).start()
    body = begin(of(run, "first"))
    growth = AddedTasks("growth")
    growth.add(noop, step="more")
    _pass_deadlines()
    assert runs.succeed(body, None, "worker@host", (growth,))
    resolve_all()
    assert (Task.objects.count(), _runs()) == (1, {"growing": ("FAILED", "DEADLINE")})


def _nested(**deadlines: float) -> WorkflowRun:
    inmost = _chain("inmost", "leaf", deadline=deadlines.get("inmost"))
    inner = _chain("inner", "before leaf", deadline=deadlines.get("inner"))
    inner.add_workflow(inmost, step="inmost", after=inner.add(noop, step="beside"))
    outer = _chain("outer", "aside", deadline=deadlines.get("outer"))
    outer.add(noop, after=outer.add_workflow(inner, step="inner"), step="last")
    return outer.start()


def test_the_deadline_of_a_workflow_ends_its_sub_workflows() -> None:
    run = _nested(outer=300)
    assert _pass_deadlines() == 1
    assert set(Task.objects.values_list("status", flat=True)) == {"CANCELLED"}
    assert _runs() == {
        "outer": ("FAILED", "DEADLINE"),
        "inner": ("CANCELLED", "DEADLINE of outer"),
        "inmost": ("CANCELLED", "DEADLINE of outer"),
    }
    assert run.root == run.pk
    assert not recount()


def test_the_deadline_of_a_sub_workflow_ends_it_and_the_tasks_that_depend_on_it() -> None:
    run = _nested(inner=300)
    assert _pass_deadlines() == 1
    assert statuses_of(run, "leaf", "inmost", "beside") == ["CANCELLED"] * 3
    assert statuses_of(run, "inner", "last") == ["FAILED", "SKIPPED"]
    assert statuses_of(run, "aside")[0] in ("PENDING", "QUEUED")
    assert _runs()["inner"] == ("FAILED", "DEADLINE")
    assert _runs()["outer"] == ("RUNNING", "")
    succeed_steps(run, "aside")
    assert _runs()["outer"] == ("FAILED", "")
    assert not recount()


def test_tasks_are_cancelled_in_batches_and_a_crash_between_two_is_recovered() -> None:
    run = _chain("long", *(f"step {number}" for number in range(7)), deadline=300).start()
    assert runs.cancel_late(database_now() + timedelta(minutes=10), 5) == 1
    assert [runs.cancel_called_off(3) for _ in range(4)] == [3, 3, 1, 0]
    assert runs.cancel_late(database_now() + timedelta(minutes=10), 5) == 0
    resolve_all()
    assert _runs() == {"long": ("FAILED", "DEADLINE")}
    assert statuses_of(run, "step 6") == ["CANCELLED"]


def test_a_replay_after_the_deadline_has_no_deadline() -> None:
    run = _chain("again", "first", "second", deadline=300).start()
    _pass_deadlines()
    operator_actions.replay(Task.objects.all(), by="anna")
    resolve_all()
    assert _runs() == {"again": ("RUNNING", "")}
    assert _pass_deadlines() == 0
    succeed_steps(run, "first", "second")
    assert _runs() == {"again": ("SUCCESS", "")}


def test_a_replay_that_ends_before_it_was_counted_has_no_deadline_either() -> None:
    run = _chain("quick", "first", deadline=300).start()
    _pass_deadlines()
    operator_actions.replay(Task.objects.all(), by="anna")
    succeed_steps(run, "first")
    assert _runs() == {"quick": ("SUCCESS", "")}


@pytest.mark.parametrize("deadline", [-1, "soon"])
def test_a_past_or_invalid_deadline_is_refused(deadline: Any) -> None:
    with pytest.raises(InvalidOption, match="deadline"):
        Workflow("never", deadline=deadline)
