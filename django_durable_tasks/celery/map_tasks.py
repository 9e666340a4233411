"""One task for many items, called one after the other inside a run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from celery import current_app

from django_durable_tasks import registry


def called_for_each(name: str, items: Iterable[Any], *, spread: bool) -> list[Any]:
    """Return what the durable task returned for each item; ``spread``: an item is its positional
    arguments.

    Raises UnknownTask, and whatever the task raises.
    """
    task = current_app.tasks[registry.get(name).options.name]
    return [task(*item) if spread else task(item) for item in items]
