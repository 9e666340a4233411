"""Runs a durable task for many items, one after the other, inside one run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from celery import current_app

from django_durable_tasks import registry


def called_for_each(name: str, items: Iterable[Any], *, spread: bool) -> list[Any]:
    """Return the results of the durable task for each item. With ``spread`` an item is a tuple of
    positional arguments.

    Raises UnknownTask and the exceptions of the task.
    """
    task = current_app.tasks[registry.get(name).options.name]
    return [task(*item) if spread else task(item) for item in items]
