"""``django_durable_tasks.map`` and ``.starmap``: Celery's tasks of these names as rows, for
canvases that hold them.

One row calls the task for all items, one after the other, in its own run: a retry begins with the
first item again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django_durable_tasks.celery import map_tasks
from django_durable_tasks.decorators import durable_task
from django_durable_tasks.rules.workflows.step import MAP, STARMAP


@durable_task(name=MAP)
def call_for_each(task: str, it: Sequence[Any]) -> list[Any]:
    """Return what the durable task returned for each item, its only argument."""
    return map_tasks.called_for_each(task, it, spread=False)


@durable_task(name=STARMAP)
def call_with_each(task: str, it: Sequence[Sequence[Any]]) -> list[Any]:
    """Return what the durable task returned for each item, the list of its arguments."""
    return map_tasks.called_for_each(task, it, spread=True)
