"""Durable tasks for graphs, used by tests/processes."""

from typing import Any

from django.contrib.auth.models import Group

from django_durable_tasks import Workflow, durable_task
from tests.project.bodies import FAST
from tests.waiting import until


class NotYet(Exception):
    """The attempt fails on purpose."""


@durable_task(bind=True, max_attempts=3, **FAST)
def node(self: Any, value: int = 1, *, fails: int = 0, grows: int = 0) -> dict[str, int]:
    """Return the value after `fails` failures, and add `grows` tasks to the workflow."""
    if self.durable.attempt <= fails:
        raise NotYet(f"try {self.durable.attempt}")
    for _ in range(grows):
        self.durable.workflow.add(node, value)
    return {"value": value}


@durable_task(max_attempts=1, **FAST)
def hopeless() -> None:
    """Fail finally."""
    raise NotYet("never")


@durable_task(**FAST)
def total(values: list[Any]) -> int:
    """Add up the results of other tasks. Missing ones count as zero."""
    return sum(value for value in values if value is not None)


@durable_task(bind=True, atomic=True, **FAST)
def write_and_grow(self: Any, name: str) -> str:
    """Write a row and add a task that writes another, in the transaction of the success."""
    Group.objects.create(name=name)
    self.durable.workflow.add(write_name, f"{name}-more", step="more")
    return name


@durable_task(atomic=True, **FAST)
def write_name(name: str) -> str:
    """Write a row in the transaction of the success."""
    Group.objects.create(name=name)
    return name


@durable_task(max_attempts=1, soft_timeout=0.5, timeout=20)
def over_soft_limit() -> None:
    """Wait longer than the soft limit."""
    until(lambda: False, within=30)


@durable_task(**FAST)
def start_another(values: list[int]) -> Workflow:
    """Return a workflow, which is started with the success."""
    found = Workflow("returned", on_complete=report)
    first = [found.add(node, value) for value in values]
    found.add(total, [one.result["value"] for one in first], after=first, step="sum")
    return found


@durable_task(**FAST)
def report(run_id: str) -> str:
    """A callback at the end of a workflow."""
    return run_id
