"""Functions of ``django.tasks`` in a module that Celery does not import, and what is none."""

from __future__ import annotations

import os
from typing import Any

from django_durable_tasks import durable_task
from django_durable_tasks.tasks_api import task


@task
def add(a: int, b: int) -> int:
    """Return the sum."""
    return a + b


@task(takes_context=True)
async def attempt_in_process(context: Any) -> list[int]:
    """Return the attempt and the process."""
    return [context.attempt, os.getpid()]


@task
def fail(text: str) -> None:
    """Raise ValueError."""
    raise ValueError(text)


def plain() -> None:
    """Return None; no task."""


@durable_task
def durable() -> None:
    """Return None; a durable task that is no @task function."""
