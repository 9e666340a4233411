"""Retention never deletes half a graph: a workflow is pruned as a whole, and a task is kept while
others depend on it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import override_settings

from django_durable_tasks import Workflow
from django_durable_tasks.models import (
    DeadLetter,
    EndingEvent,
    Task,
    TaskDependency,
    TaskExecutionLog,
    WorkflowRun,
)
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.tasks import operator_actions, retention
from django_durable_tasks.workflows import runs
from django_durable_tasks.workflows.builder import AddedTasks
from tests.database.commands.durable_command import json_of
from tests.database.dependencies.worker_and_leader import (
    begin,
    fail,
    fail_steps,
    of,
    question,
    recount,
    resolve_all,
    statuses,
    succeed,
    succeed_steps,
)
from tests.database.recurring.schedules import START, a_schedule, fire
from tests.factories import a_task
from tests.project.tasks import noop

pytestmark = pytest.mark.django_db
DAY = 86_400.0


def _in(days: float, limit: int = 100) -> int:
    """Run the leader's prune job with a clock `days` ahead, and return the number of deleted tasks."""
    return retention.prune(database_now() + timedelta(days=days), limit)


def _there() -> tuple[int, ...]:
    models = (Task, TaskDependency, WorkflowRun, TaskExecutionLog, EndingEvent)
    return tuple(model.objects.count() for model in models)


def _graph() -> WorkflowRun:
    """Start a workflow with a sub-workflow: five tasks, two runs."""
    inner = Workflow("inner")
    inner.add(noop, step="leaf")
    outer = Workflow("outer")
    first = outer.add(noop, step="first")
    outer.add(noop, after=outer.add_workflow(inner, after=first, step="inner"), step="last")
    outer.add(noop, after=first, step="beside")
    return outer.start()


def _all(run: WorkflowRun, *but: str) -> None:
    for step in ("first", "leaf", "inner", "last", "beside"):
        if step not in but:
            succeed(of(run, step))
            resolve_all()


# Workflows ----------------------------------------------------------------------------------------


def test_a_workflow_is_pruned_with_its_sub_workflows_after_its_retention() -> None:
    _all(_graph())
    assert _in(6.9) == 0
    assert _there() == (5, 5, 2, 5, 0)
    assert _in(7.1) == 5
    assert _there() == (0, 0, 0, 0, 0)


def test_no_task_of_a_workflow_is_pruned_before_the_last_one_may_be() -> None:
    run = _graph()
    _all(run, "beside")
    assert _in(400) == 0
    succeed(of(run, "beside"))
    assert _in(400) == 0, "its end is not counted yet"
    resolve_all()
    assert _in(400) == 5


def test_the_longest_retention_applies_to_the_whole_and_counts_from_the_last_end() -> None:
    run = _graph()
    _all(run, "beside")
    fail_steps(run, "beside")
    DeadLetter.objects.discard(by="anna")
    assert _in(29) == 0
    WorkflowRun.objects.unguarded().filter(name="inner").update(
        completed_at=database_now() + timedelta(days=5)
    )
    assert _in(31) == 0
    assert _in(36) == 5


def test_a_status_that_is_kept_indefinitely_keeps_the_whole() -> None:
    run = _graph()
    _all(run, "beside")
    fail_steps(run, "beside")
    DeadLetter.objects.discard(by="anna")
    with override_settings(DURABLE_TASKS={"RETENTION": {"FAILED": None}}):
        assert _in(4_000) == 0
    assert _in(4_000) == 5


def test_an_open_dead_letter_keeps_the_whole_and_a_closed_one_is_deleted_with_it() -> None:
    run = _graph()
    _all(run, "leaf", "inner", "last")
    fail_steps(run, "leaf")
    assert _in(400) == 0
    DeadLetter.objects.discard(by="anna")
    assert _in(400) == 5
    assert not DeadLetter.objects.exists()


def test_a_large_workflow_is_pruned_in_batches_its_runs_last_and_another_leader_continues() -> None:
    _all(_graph())
    deleted = [(_in(8, limit=2), WorkflowRun.objects.count()) for _ in range(4)]
    assert deleted == [(2, 2), (2, 2), (1, 0), (0, 0)]
    assert _there() == (0, 0, 0, 0, 0)


def test_a_reopened_task_keeps_its_ended_workflow() -> None:
    wf = Workflow("pair")
    wf.add(noop, step="one")
    wf.add(noop, step="two")
    run = wf.start()
    fail_steps(run, "one", "two")
    DeadLetter.objects.discard(by="anna")
    operator_actions.replay(question(of(run, "two")), by="anna")
    WorkflowRun.objects.unguarded().update(status="FAILED", completed_at=database_now())
    EndingEvent.objects.all().delete()
    assert (_in(400, limit=1), Task.objects.count()) == (0, 2)
    assert not any(retention.prunable(database_now() + timedelta(days=400)).values())


def test_an_open_sub_workflow_keeps_the_whole() -> None:
    _all(_graph())
    WorkflowRun.objects.unguarded().filter(name="inner").update(status="RUNNING", completed_at=None)
    assert _in(400) == 0


@pytest.mark.parametrize("resolved", [True, False])
def test_an_unprocessed_ending_event_keeps_the_whole(resolved: bool) -> None:
    run = _graph()
    _all(run)
    task = of(run, "beside")
    workflow_id = task.workflow_id if resolved else None
    EndingEvent.objects.create(
        task_id=task.pk,
        epoch=task.epoch,
        workflow_id=workflow_id,
        status="SUCCESS",
        resolved=resolved,
    )
    assert _in(400) == 0


def test_a_workflow_stays_while_a_task_outside_depends_on_one_of_its_tasks() -> None:
    run = _graph()
    gate = a_task()
    after = noop.using(depends_on=[of(run, "last"), gate]).schedule()
    _all(run)
    assert _in(400) == 0
    succeed(gate)
    resolve_all()
    succeed(after)
    assert _in(400) == 7


def test_a_workflow_stays_at_least_a_day_if_its_tasks_have_idempotency_keys() -> None:
    wf = Workflow("keyed")
    wf.add(noop.using(idempotency_key="once"))
    run = wf.start()
    succeed_steps(run, "noop")
    with override_settings(DURABLE_TASKS={"RETENTION": {"SUCCESS": 60}}):
        assert _in(0.9) == 0
        assert _in(1.1) == 1


def test_additions_of_a_body_are_pruned_with_the_rest() -> None:
    run = _graph()
    body = begin(of(run, "first"))
    growth = AddedTasks("growth")
    part = Workflow("part")
    part.add(noop, step="added")
    growth.add_workflow(part, step="part")
    assert runs.succeed(body, None, "worker@host", (growth,))
    resolve_all()
    succeed_steps(run, "added", "part")
    _all(run, "first")
    assert not recount()
    assert _in(8) == 7
    assert _there() == (0, 0, 0, 0, 0)


def test_one_workflow_that_must_stay_does_not_keep_others() -> None:
    stays, goes = _graph(), _graph()
    _all(stays, "beside")
    _all(goes)
    assert _in(8) == 5
    assert set(WorkflowRun.objects.values_list("root", flat=True)) == {stays.pk}


def test_a_dry_run_counts_what_would_be_deleted() -> None:
    run = _graph()
    _all(run, "beside")
    fail_steps(run, "beside")
    _all(_graph())
    a_task("SUCCESS", completed_at=database_now() - timedelta(days=40))
    assert retention.prunable(database_now() + timedelta(days=8))["SUCCESS"] == 6
    DeadLetter.objects.discard(by="anna")
    would = retention.prunable(database_now() + timedelta(days=31))
    assert (would["SUCCESS"], would["FAILED"]) == (10, 1)
    assert _in(31) == sum(would.values())


def test_the_command_deletes_what_its_dry_run_counts() -> None:
    _all(_graph())
    long_ago = database_now() - timedelta(days=8)
    WorkflowRun.objects.unguarded().update(completed_at=long_ago)
    assert json_of("prune", "--dry-run")["would_delete"]["SUCCESS"] == 5
    assert json_of("prune")["deleted"] == 5


# Tasks without a workflow -------------------------------------------------------------------------


def _after(*upstreams: Any, **options: Any) -> Task:
    return noop.using(depends_on=list(upstreams), **options).schedule()


def test_an_upstream_stays_until_its_dependents_have_ended() -> None:
    first, other = a_task(), a_task()
    last = _after(first, other)
    succeed(first)
    resolve_all()
    assert TaskDependency.objects.unresolved().count() == 1
    assert _in(400) == 0
    succeed(other)
    resolve_all()
    assert _in(400) == 0, "what it waited for is still there while it is open"
    succeed(last)
    assert _in(400) == 3
    assert not TaskDependency.objects.exists()


def test_an_ended_task_stays_while_an_upstream_of_it_is_open() -> None:
    quick, slow = a_task(), a_task()
    last = _after(quick, slow, join="ANY")
    succeed(quick)
    resolve_all()
    succeed(last)
    assert _in(400) == 1, "only the one that is tied to ended tasks alone"
    assert statuses(last) == ["SUCCESS"]
    succeed(slow)
    resolve_all()
    assert _in(400) == 2


def test_an_unresolved_ending_keeps_its_task() -> None:
    first = a_task()
    last = _after(first)
    fail(first)
    DeadLetter.objects.discard(by="anna")
    Task.objects.unguarded().filter(pk=last.pk).update(
        status="CANCELLED", completed_at=database_now()
    )
    assert _in(400) == 1
    assert statuses(first) == ["FAILED"]
    resolve_all()
    assert _in(400) == 1


def test_a_pruned_upstream_leaves_its_outcome_with_the_edge() -> None:
    first, other = a_task(), a_task()
    last = _after(first, other)
    succeed(first, other)
    resolve_all()
    fail(last)
    assert _in(8) == 2
    operator_actions.replay(question(last), by="anna")
    assert statuses(last)[0] in ("PENDING", "QUEUED")
    assert not recount()


def test_the_task_that_started_an_open_workflow_stays_with_it() -> None:
    a_schedule()
    fire(START)
    wf = Workflow("closing")
    wf.add(noop)
    starter = Task.objects.get()
    assert runs.succeed(begin(starter), None, "worker@host", (wf,))
    assert _in(400) == 0
    succeed(Task.objects.get(step="noop"))
    resolve_all()
    assert _in(400) == 2
