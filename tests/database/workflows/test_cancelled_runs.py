"""A cancelled run stores who cancelled it, whether the operation or the leader reaches its tasks
first.
"""

from __future__ import annotations

from typing import Any

import pytest

from django_durable_tasks import Workflow
from django_durable_tasks.models import Task, WorkflowRun
from django_durable_tasks.tasks import attempts
from django_durable_tasks.workflows import operations
from django_durable_tasks.workflows import runs as deadlines
from django_durable_tasks.workflows.operations import GraphReport
from tests.database.dependencies.worker_and_leader import begin, of, resolve_all, succeed
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


@pytest.mark.parametrize("runs", [False, True])
def test_a_run_whose_tasks_the_leader_cancels_first_keeps_the_user_of_the_request(
    runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = _nested()
    bodies = [begin(of(run, "beside"))] if runs else []
    carry_out = operations.carry_out

    def after_the_leader(*given: Any, **named: Any) -> GraphReport:
        assert deadlines.cancel_called_off(100)
        return carry_out(*given, **named)

    monkeypatch.setattr(operations, "carry_out", after_the_leader)
    assert operations.cancel_workflow(run, by="ann", reason="no use").total == 0
    for body in bodies:
        assert attempts.succeed(body, None, "w")
    resolve_all()
    assert (_again(run).status, run.reason) == ("CANCELLED", "CANCELLED by ann: no use")


def test_a_run_is_not_cancelled_because_one_of_its_tasks_was_cancelled_before() -> None:
    run = _nested()
    operations.cancel_branch(of(run, "beside"), by="ann")
    succeed(of(run, "leaf"))
    Task.objects.unguarded().open().update(status="SUCCESS")
    operations.cancel_workflow(run, by="ann")
    assert (_again(run).cancel_requested_at, run.reason) == (None, "")
