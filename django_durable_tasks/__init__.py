"""Durable, exactly accounted background work for Django teams that use Celery.

The public names load on first use (PEP 562), so that importing the app never touches Celery before
Django is set up.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django_durable_tasks.choices import SpecialDay
    from django_durable_tasks.contrib.callbacks.tasks import http_callback, queue_message
    from django_durable_tasks.decorators import durable_task, recurring
    from django_durable_tasks.limits.scopes import PerKey
    from django_durable_tasks.tasks.options import Retry, Schedule
    from django_durable_tasks.workflows import Workflow

__version__ = "0.1.0.dev0"
__all__ = [
    "PerKey",
    "Retry",
    "Schedule",
    "SpecialDay",
    "Workflow",
    "__version__",
    "durable_task",
    "http_callback",
    "queue_message",
    "recurring",
]

_HOMES = {
    "durable_task": "django_durable_tasks.decorators",
    "http_callback": "django_durable_tasks.contrib.callbacks.tasks",
    "queue_message": "django_durable_tasks.contrib.callbacks.tasks",
    "recurring": "django_durable_tasks.decorators",
    "Schedule": "django_durable_tasks.tasks.options",
    "SpecialDay": "django_durable_tasks.choices",
    "Workflow": "django_durable_tasks.workflows",
    "PerKey": "django_durable_tasks.limits.scopes",
    "Retry": "django_durable_tasks.tasks.options",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        home = import_module(_HOMES[name])
    except RuntimeError as error:
        # Django's message about a model outside INSTALLED_APPS does not name the app to add.
        if f"{__name__}.models" in str(error) and "INSTALLED_APPS" in str(error):
            # The probe of health imports this package and must stay free of Django.
            exceptions = import_module("django.core.exceptions")
            raise exceptions.ImproperlyConfigured(
                f"{name!r} needs the app {__name__!r}: add it to INSTALLED_APPS, and run"
                " `manage.py migrate`."
            ) from error
        raise
    return getattr(home, name)
