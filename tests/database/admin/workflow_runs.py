"""Workflow runs for the tests of the admin."""

from __future__ import annotations

from typing import Any

from django_durable_tasks import Workflow
from django_durable_tasks.models import WorkflowRun
from tests.database.dependencies.worker_and_leader import fail, of, resolve_all, succeed
from tests.project.tasks import echo, noop


def a_diamond(name: str = "diamond", **given: Any) -> WorkflowRun:
    """Start a workflow of four tasks."""
    wf = Workflow(name, on_failure=echo)
    top = wf.add(noop, step="top")
    left, right = wf.add(noop, after=top, step="left"), wf.add(noop, after=top, step="right")
    wf.add(noop, after=[left, right], step="bottom")
    return wf.start(**given)


def a_diamond_that_failed(**given: Any) -> WorkflowRun:
    """Return a diamond whose left task failed, so that its bottom task was skipped. The right task
    waits.
    """
    run = a_diamond(**given)
    succeed(of(run, "top"))
    resolve_all()
    fail(of(run, "left"))
    resolve_all()
    return run
