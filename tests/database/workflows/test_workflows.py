"""A workflow is built in Python, started as a whole, and runs to its end."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from django_durable_tasks import Workflow, registry
from django_durable_tasks.dependencies import resolve
from django_durable_tasks.exceptions import InvalidArguments, UnknownTask, WorkflowTooLarge
from django_durable_tasks.models import DeadLetter, Task, WorkflowRun
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.tasks import operator_actions
from django_durable_tasks.workflows import runs
from django_durable_tasks.workflows.builder import AddedTasks
from tests.database.dependencies.worker_and_leader import (
    begin,
    fail_steps,
    of,
    question,
    recount,
    resolve_all,
    statuses_of,
    succeed,
    succeed_steps,
)
from tests.process_state import new_process_state
from tests.project.tasks import add, echo, failing, noop

pytestmark = pytest.mark.django_db


def _diamond() -> Workflow:
    wf = Workflow("diamond")
    top = wf.add(noop, step="top")
    left = wf.add(noop, after=top, step="left")
    right = wf.add(noop, after=top, step="right")
    wf.add(noop, after=[left, right], step="bottom")
    return wf


def _run(run: WorkflowRun) -> WorkflowRun:
    run.refresh_from_db()
    return run


def test_a_diamond_runs_from_top_to_bottom() -> None:
    run = _diamond().start()
    assert (run.status, run.total) == ("RUNNING", 4)
    assert statuses_of(run, "left", "right", "bottom") == ["BLOCKED"] * 3
    succeed_steps(run, "top")
    succeed(of(run, "left"), of(run, "right"))
    resolve_all()
    assert (_run(run).succeeded, run.status) == (3, "RUNNING")
    succeed_steps(run, "bottom")
    assert (_run(run).succeeded, run.status, run.completed_at is not None) == (4, "SUCCESS", True)
    assert not recount()


def test_a_replay_reactivates_exactly_the_skipped_tasks() -> None:
    run = _diamond().start()
    succeed_steps(run, "top")
    fail_steps(run, "left")
    assert statuses_of(run, "bottom") == ["SKIPPED"]
    succeed_steps(run, "right")
    assert _run(run).status == "FAILED"
    operator_actions.replay(question(of(run, "left")), by="anna")
    assert statuses_of(run, "left", "right", "bottom") == ["PENDING", "SUCCESS", "BLOCKED"]
    resolve_all()
    assert _run(run).status == "RUNNING"
    assert not recount()
    succeed_steps(run, "left", "bottom")
    assert _run(run).status == "SUCCESS"
    assert not recount()


def test_results_are_passed_by_reference() -> None:
    wf = Workflow("results")
    first = wf.add(add, 1, 2)
    wf.add(echo, first.result, whole=first.result["rows"][1], after=first, step="second")
    run = wf.start()
    succeed(of(run, "add"), result=json.dumps({"rows": [5, 7]}))
    resolve_all()
    started = begin(of(run, "second"))
    assert resolve.resolve_references(started.args, started.kwargs, started.tenant_id) == (
        [{"rows": [5, 7]}],
        {"whole": 7},
    )


def test_a_workflow_over_the_limit_is_refused(settings: Any) -> None:
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "WORKFLOW_MAX_TASKS": 3}
    with pytest.raises(WorkflowTooLarge, match="4 tasks"):
        _diamond().start()


def test_sub_workflows_nest_and_pass_their_results_to_the_parent() -> None:
    inmost = Workflow("inmost")
    inmost.add(add, 1, 1, step="leaf")
    inner = Workflow("inner")
    inner.add_workflow(inmost, step="inmost")
    outer = Workflow("outer")
    before = outer.add(noop, step="before")
    nested = outer.add_workflow(inner, after=before, step="inner")
    outer.add(echo, nested.result, after=nested, step="last")
    run = outer.start()
    assert WorkflowRun.objects.filter(root=run.pk).count() == 3
    assert statuses_of(run, "leaf") == ["BLOCKED"]
    succeed_steps(run, "before", "leaf")
    assert statuses_of(run, "inner", "last") == ["BLOCKED", "BLOCKED"]
    succeed_steps(run, "inmost")
    succeed(of(run, "inner"), result='{"inmost": {"leaf": 2}}')
    resolve_all()
    started = begin(of(run, "last"))
    assert resolve.resolve_references(started.args, started.kwargs, started.tenant_id)[0] == [
        {"inmost": {"leaf": 2}}
    ]
    assert not recount()


def test_a_failed_sub_workflow_fails_the_whole_and_is_retried_with_it() -> None:
    inner = Workflow("inner")
    inner.add(noop, after=inner.add(noop, step="bad"), step="leaf")
    outer = Workflow("outer")
    outer.add(noop, after=outer.add_workflow(inner, step="inner"), step="last")
    run = outer.start()
    fail_steps(run, "bad")
    assert statuses_of(run, "leaf", "inner", "last") == ["SKIPPED", "FAILED", "SKIPPED"]
    assert _run(run).status == "FAILED"
    operator_actions.replay(question(of(run, "bad")), by="anna")
    assert statuses_of(run, "leaf", "inner", "last") == ["BLOCKED"] * 3
    assert DeadLetter.objects.filter(open_task__isnull=False).count() == 0
    succeed_steps(run, "bad", "leaf", "inner", "last")
    assert _run(run).status == "SUCCESS"
    assert not recount()


def test_a_sub_workflow_is_skipped_together_with_its_upstream() -> None:
    inner = Workflow("inner")
    inner.add(noop, step="leaf")
    outer = Workflow("outer")
    outer.add_workflow(inner, after=outer.add(noop, step="before"), step="inner")
    run = outer.start()
    fail_steps(run, "before")
    assert statuses_of(run, "leaf", "inner") == ["SKIPPED", "SKIPPED"]
    assert not recount()


def test_additions_of_a_body_block_dependents_of_the_body() -> None:
    run = _diamond().start()
    succeed_steps(run, "top")
    left = begin(of(run, "left"))
    growth = AddedTasks("growth")
    growth.add(noop, step="one", after=growth.add(noop, step="zero"))
    assert runs.succeed(left, None, "worker@host", (growth,))
    succeed_steps(run, "right")
    assert statuses_of(run, "bottom", "one") == ["BLOCKED", "BLOCKED"]
    assert not recount()
    succeed_steps(run, "zero", "one")
    assert statuses_of(run, "bottom")[0] in ("PENDING", "QUEUED")
    assert _run(run).total == 6


def test_dependents_wait_for_the_additions_of_a_body() -> None:
    wf = Workflow("cleaning")
    body = wf.add(noop, step="body")
    wf.add(noop, after={body: "MUST_FINISH"}, step="clean-up")
    wf.add(noop, after={body: "MUST_FAIL"}, step="alarm")
    run = wf.start()
    growth = AddedTasks("growth")
    growth.add(noop, step="added")
    assert runs.succeed(begin(of(run, "body")), None, "worker@host", (growth,))
    resolve_all()
    assert statuses_of(run, "clean-up", "alarm") == ["BLOCKED", "SKIPPED"]
    fail_steps(run, "added")
    assert statuses_of(run, "clean-up")[0] in ("PENDING", "QUEUED")
    assert not recount()


def test_another_open_run_of_the_key_is_returned() -> None:
    run = _diamond().start(key="nightly")
    assert _diamond().start(key="nightly").pk == run.pk
    assert Task.objects.count() == 4


def test_a_run_with_an_unknown_callback_is_left_to_a_leader_that_has_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wf, other = Workflow("with-callbacks", on_complete=echo), Workflow("without-callbacks")
    wf.add(noop)
    other.add(noop)
    run, other_run = wf.start(), other.start()
    monkeypatch.delitem(registry._tasks, echo.name)
    succeed(of(run, "noop"), of(other_run, "noop"))
    resolve_all()
    assert "callback tests.project.tasks.echo is not registered" in caplog.text
    assert [WorkflowRun.objects.get(pk=one.pk).status for one in (run, other_run)] == [
        "RUNNING",
        "SUCCESS",
    ]
    new_process_state()
    monkeypatch.undo()
    resolve_all()
    assert WorkflowRun.objects.get(pk=run.pk).status == "SUCCESS"
    assert Task.objects.get(workflow=None).name == echo.name
    assert not recount()


@pytest.mark.parametrize(
    ("task", "error"), [("no.such.task", UnknownTask), (add, InvalidArguments)]
)
def test_an_invalid_callback_is_refused_at_the_start(task: Any, error: type[Exception]) -> None:
    wf = Workflow("with-callbacks", on_failure=task)
    wf.add(noop)
    with pytest.raises(error):
        wf.start()
    assert not WorkflowRun.objects.exists()


def test_callbacks_are_created_once_each() -> None:
    wf = Workflow("with-callbacks", on_success=echo, on_failure=failing, on_complete=echo)
    wf.add(noop)
    run = wf.start()
    succeed_steps(run, "noop")
    resolve_all()
    created = Task.objects.filter(workflow=None)
    assert sorted(created.values_list("name", "idempotency_key")) == sorted(
        ("tests.project.tasks.echo", f"workflow-{run.pk}-{kind}")
        for kind in ("on_success", "on_complete")
    )


def test_the_countdown_of_a_canvas_starts_at_its_translation() -> None:
    before = database_now()
    canvas = noop.si().set(countdown=100, expires=160)
    (task,) = Workflow.from_canvas(canvas).start().tasks.all()
    assert task.run_at is not None
    assert timedelta(seconds=100) <= task.run_at - before < timedelta(seconds=160)
    assert task.expires_at is not None
    assert round((task.expires_at - task.run_at).total_seconds()) == 60
