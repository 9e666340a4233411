"""Publishes and executes tasks with Celery and Kombu."""

from typing import Any

from django_durable_tasks.celery import project_app


def __getattr__(name: str) -> Any:
    """Return the application of the project as ``app``, for ``celery -A django_durable_tasks``."""
    if name == "app":
        return project_app.app_of_worker()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
