"""The definition of a scenario, and its final state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import Group

from django_durable_tasks.models import Task, TaskExecutionLog, WorkflowRun

Stand = Any


def nothing() -> None:
    """Do nothing."""


def stand() -> Stand:
    """Return what must be equal whatever happened on the way. The number of lost runs is left out."""
    rows = [
        (
            row.name,
            row.step,
            [arg for arg in row.args if not isinstance(arg, str)],
            row.status,
            row.reason,
            row.failures,
        )
        for row in Task.objects.all()
    ]  # a workflow's id differs each time
    logs = TaskExecutionLog.objects.exclude(status__in=("LOST", "FENCED")).values_list(
        "status", flat=True
    )
    return (
        sorted(map(str, rows)),
        sorted(Counter(logs).items()),
        sorted(Group.objects.values_list("name", flat=True)),
        sorted(WorkflowRun.objects.values_list("name", "status", "succeeded", "total")),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One operation of a process of the engine.

    ``scene`` creates the initial rows and returns the argument of the operation. ``operation`` is the
    operation; each of its calls to database or broker is a point. ``again`` is what its caller, or
    an operator, does after no confirmation arrived. ``or_nothing``: the caller does nothing then,
    and no effect at all is correct, too. ``undone_starts``: how many starts of a task may be undone,
    which leave no log entry.
    """

    name: str
    scene: Callable[[], Any]
    operation: Callable[[Any], None]
    again: Callable[[Any], None] = lambda _: None
    stand: Callable[[], Stand] = stand
    or_nothing: bool = False
    undone_starts: int = 0
