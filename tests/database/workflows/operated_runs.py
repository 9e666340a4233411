"""Workflow runs for the tests of operations."""

from __future__ import annotations

from typing import Any

from django_durable_tasks import Workflow
from django_durable_tasks.models import WorkflowRun
from django_durable_tasks.workflows.operations import GraphReport
from tests.project.tasks import noop

WAITS = ("PENDING", "QUEUED")


def _chain(*steps: str, **given: Any) -> WorkflowRun:
    wf, before = Workflow("chain"), None
    for step in steps:
        before = wf.add(noop, step=step, after=before)
    run: WorkflowRun = wf.start(**given)
    return run


def _changes(report: GraphReport) -> dict[str, str]:
    return {change.step: f"{change.before} {change.after}" for change in report.changes}
