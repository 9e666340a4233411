"""``django_durable_tasks.map`` and ``django_durable_tasks.starmap`` run the ``map`` and ``starmap``
of a canvas that was converted to a workflow.

One task calls the function for all items, one after another. A retry begins with the first item
again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django_durable_tasks.celery import map_tasks
from django_durable_tasks.decorators import durable_task
from django_durable_tasks.rules.workflows.step import MAP, STARMAP


@durable_task(name=MAP)
def call_for_each(task: str, it: Sequence[Any]) -> list[Any]:
    """Call the durable task with each item as its only argument; return the list of results."""
    return map_tasks.called_for_each(task, it, spread=False)


@durable_task(name=STARMAP)
def call_with_each(task: str, it: Sequence[Sequence[Any]]) -> list[Any]:
    """Call the durable task with each item as its list of arguments; return the list of results."""
    return map_tasks.called_for_each(task, it, spread=True)
