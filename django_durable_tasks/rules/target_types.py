"""The types of targets, and the registered names of the tasks of this package that use them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any


class TargetType(StrEnum):
    """What a task does: call a function, send an HTTP request, or publish a message."""

    CELERY_TASK = "CELERY_TASK"
    HTTP_CALLBACK = "HTTP_CALLBACK"
    QUEUE_MESSAGE = "QUEUE_MESSAGE"


HTTP_CALLBACK_TASK = "django_durable_tasks.http_callback"
QUEUE_MESSAGE_TASK = "django_durable_tasks.queue_message"
BULK_OPERATION_TASK = "django_durable_tasks.bulk_operation"

BUILT_IN_MEMBERS = frozenset(
    {"url", "method", "headers", "body", "timeout", "retry_on", "no_retry_on", "endpoint", "queue"}
    | {"exchange", "routing_key", "content_type"}
)
"""The members of ``target_config`` of the types other than CELERY_TASK."""
CELERY_MEMBERS = frozenset({"task", "args", "kwargs"})


def target_config(
    target_type: str, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the configuration of a target, which is stored as name and arguments of the task."""
    if target_type == TargetType.CELERY_TASK:
        return {"task": name, "args": list(args), "kwargs": dict(kwargs)}
    return dict(kwargs)
