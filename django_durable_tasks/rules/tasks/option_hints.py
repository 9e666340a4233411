"""Suggestions for options that a durable task does not have."""

from __future__ import annotations

from collections.abc import Iterable

from django_durable_tasks.did_you_mean import did_you_mean

_ROW = (
    "Leave it out: the task is in the database, and runs again if its worker dies; see on_orphan"
    " and max_crashes."
)
_ALWAYS = "Leave it out: the arguments are always checked against the signature, at the call."
_PYDANTIC = (
    "Not possible: arguments are stored as JSON. Validate them in the function,"
    " Model.model_validate(...)."
)
_NO_ARGUMENTS = "Leave it out: messages carry no arguments, and rows store them as JSON."
_ROUTE = "Write queue=..."
_REASONS = {
    "acks_late": _ROW,
    "acks_on_failure_or_timeout": _ROW,
    "reject_on_worker_lost": _ROW,
    "base": (
        "Give it to @durable_task: a class derived from"
        " django_durable_tasks.celery.task.DurableTask."
    ),
    "compression": _NO_ARGUMENTS,
    "default_retry_delay": "Give it to @durable_task, or raise self.retry(countdown=...).",
    "exchange": _ROUTE,
    "expires": "Write expires_in=...",
    "max_retries": "Write max_attempts=..., which counts the first attempt too: max_retries + 1.",
    "pydantic": _PYDANTIC,
    "pydantic_context": _PYDANTIC,
    "pydantic_dump_kwargs": _PYDANTIC,
    "pydantic_strict": _PYDANTIC,
    "routing_key": _ROUTE,
    "serializer": _NO_ARGUMENTS,
    "soft_time_limit": "Write soft_timeout=...",
    "throws": (
        "Leave it out: it only changes how Celery logs an error. Errors that must not be retried:"
        " give_up_on=..."
    ),
    "time_limit": "Write timeout=...",
    "typing": _ALWAYS,
}
"""Options of Celery's decorator, and their replacements."""


def hint(option: str, known: Iterable[str]) -> str:
    """Return what to write instead of this option: the replacement of Celery's option, otherwise
    the closest valid name, otherwise an empty text.
    """
    if option in _REASONS:
        return _REASONS[option]
    return did_you_mean(option, known)
