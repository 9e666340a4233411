"""What a story is made of, and how things stand at its end."""

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
    """Return what must come out alike whatever happened on the way: how often a run was lost is
    left out.
    """
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
    ]  # a workflow's id is another each time
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
class Story:
    """One thing that a process of the engine does.

    ``scene`` writes the rows that it finds, and returns what the deed is told. ``deed`` is what the
    process does, every thing it tells being a point. ``again`` is what its caller does, or an
    operator, who was not told that it is done. ``or_nothing``: the caller does nothing then, and it
    is well, too, when nothing has come of it.
    """

    name: str
    scene: Callable[[], Any]
    deed: Callable[[Any], None]
    again: Callable[[Any], None] = lambda _: None
    stand: Callable[[], Stand] = stand
    or_nothing: bool = False
