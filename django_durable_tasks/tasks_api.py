"""The names of ``django.tasks``: of Django 6.0 and later, else of the package django-tasks.

Imported by the backends only, so that a project without them needs neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured

if TYPE_CHECKING:
    # The two are the same for callers, and the stubs of neither describe the other.
    def __getattr__(name: str) -> Any: ...

else:
    try:
        from django.tasks import (
            Task,
            TaskContext,
            TaskResult,
            TaskResultStatus,
            task,
            task_backends,
        )
        from django.tasks.backends.base import BaseTaskBackend
        from django.tasks.backends.dummy import DummyBackend as DjangoDummyBackend
        from django.tasks.backends.immediate import ImmediateBackend as DjangoImmediateBackend
        from django.tasks.base import TaskError
        from django.tasks.exceptions import (
            InvalidTask,
            InvalidTaskBackend,
            TaskResultDoesNotExist,
            TaskResultMismatch,
        )
        from django.tasks.signals import task_enqueued, task_finished, task_started
        from django.utils.json import normalize_json
    except ImportError as missing:
        try:
            from django_tasks import (
                TaskContext,
                TaskResult,
                TaskResultStatus,
                task,
                task_backends,
            )
            from django_tasks.backends.base import BaseTaskBackend
            from django_tasks.backends.dummy import DummyBackend as DjangoDummyBackend
            from django_tasks.backends.immediate import ImmediateBackend as DjangoImmediateBackend
            from django_tasks.base import Task, TaskError
            from django_tasks.exceptions import (
                InvalidTaskBackendError as InvalidTaskBackend,
            )
            from django_tasks.exceptions import (
                InvalidTaskError as InvalidTask,
            )
            from django_tasks.exceptions import (
                TaskResultDoesNotExist,
                TaskResultMismatch,
            )
            from django_tasks.signals import task_enqueued, task_finished, task_started
            from django_tasks.utils import normalize_json
        except ImportError:
            raise ImproperlyConfigured(
                "The backends of django_durable_tasks need django.tasks: use Django 6.0 or later,"
                " or install the package django-tasks (0.12 or later)."
            ) from missing

__all__ = [
    "BaseTaskBackend",
    "DjangoDummyBackend",
    "DjangoImmediateBackend",
    "InvalidTask",
    "InvalidTaskBackend",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultMismatch",
    "TaskResultStatus",
    "normalize_json",
    "task",
    "task_backends",
    "task_enqueued",
    "task_finished",
    "task_started",
]
