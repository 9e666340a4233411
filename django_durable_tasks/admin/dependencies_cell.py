"""The dependencies of the tasks on a page, read in one statement."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from django.db.models import Count, F, Window
from django.db.models.functions import RowNumber
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from django_durable_tasks import conf
from django_durable_tasks.admin import display
from django_durable_tasks.models import Task, TaskDependency

SHOWN = 5
_NAMED = ("name", "step", "status", "tenant_id")


@dataclass(slots=True)
class DependencyWaits:
    """The first unresolved edges and gates of a task, and their number."""

    edges: list[TaskDependency] = field(default_factory=list)
    number: int = 0


def of_tasks(keys: Iterable[uuid.UUID]) -> dict[uuid.UUID, DependencyWaits]:
    """Return the unresolved dependencies of each of these tasks; one statement, at most SHOWN edges
    per task.
    """
    each: dict[str, Any] = {"partition_by": [F("task")]}
    held = (
        TaskDependency.objects.using(conf.settings().DATABASE)
        .above(keys)
        .unresolved()
        .annotate(
            place=Window(RowNumber(), order_by=F("id").asc(), **each),
            number=Window(Count("*"), **each),
        )
    )
    waits: dict[uuid.UUID, DependencyWaits] = defaultdict(DependencyWaits)
    rows: Any = held.filter(place__lte=SHOWN).order_by("task", "id")
    for edge in rows:
        waits[edge.task_id].edges.append(edge)
        waits[edge.task_id].number = edge.number
    return waits


def named(keys: Iterable[uuid.UUID | None]) -> dict[uuid.UUID, Task]:
    """Return these tasks with only their names and statuses; one statement, none if there are no
    keys.
    """
    known_keys = {key for key in keys if key is not None}
    if not known_keys:
        return {}
    tasks: dict[uuid.UUID, Task] = (
        Task.objects.using(conf.settings().DATABASE).only(*_NAMED).in_bulk(known_keys)
    )
    return tasks


def title(task: Task) -> str:
    """Return the name of a task in its workflow: its step, otherwise the task name."""
    return task.step or task.name


def task_link(key: uuid.UUID, tasks: Mapping[uuid.UUID, Task]) -> SafeString:
    """Link a task by its step or name, with its status; a deleted one is shown by its id."""
    task = tasks.get(key)
    if task is None:
        return format_html("{} {}", display.short(key), display.badge("gone", _("deleted")))
    name, badge = (
        display.row_link("task", key, title(task)),
        display.badge(task.status, task.status),
    )
    return format_html("{} {}", name, badge)


def upstream(edge: TaskDependency, tasks: Mapping[uuid.UUID, Task]) -> SafeString:
    """Show the upstream of an edge and its required ending, or the gate."""
    if edge.depends_on_id is None:
        comment = display.clean(edge.comment)
        return format_html("{} {}", display.badge("gate", edge.gate or ""), comment)
    return format_html(
        '{} <span class="durable-quiet">{}</span>',
        task_link(edge.depends_on_id, tasks),
        edge.dependency_type,
    )


def cell(waits: DependencyWaits, tasks: Mapping[uuid.UUID, Task]) -> SafeString | str:
    """Show the dependencies of a task, one per line."""
    if not waits.number:
        return display.NOTHING
    more = waits.number - len(waits.edges)
    edges_html = display.lines(upstream(edge, tasks) for edge in waits.edges)
    return display.beneath(edges_html, f"and {more:,} more" if more else "")
