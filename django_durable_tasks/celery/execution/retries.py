"""Implements Celery's retry options and ``self.retry()`` for durable tasks. The delay is stored in
the row.

A task without any retry option uses the defaults of this package for errors that its function
raises. If Celery's options are given, only ``self.retry()`` and the errors of ``autoretry_for`` are
retried, unless ``max_attempts`` or ``retry_for`` is given too.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NoReturn

from celery import Task as CeleryTask
from celery.exceptions import MaxRetriesExceededError
from celery.exceptions import Retry as CeleryRetry

from django_durable_tasks.celery.execution.live_runs import LiveRun
from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.rules.tasks.durations import seconds
from django_durable_tasks.rules.tasks.options import ATTEMPTS_MAX, TaskOptions
from django_durable_tasks.rules.tasks.runs import Run

OPTIONS = frozenset(
    {
        "autoretry_for",
        "dont_autoretry_for",
        "retry_kwargs",
        "retry_backoff",
        "retry_backoff_max",
        "retry_jitter",
        "max_retries",
        "default_retry_delay",
    }
)
"""The retry options of Celery's decorator."""
_OF_A_RETRY = frozenset({"countdown", "max_retries"})


def with_those_of_base(base: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``given`` with the retry options that are attributes of a class. Those of the
    decorator take precedence.
    """
    found = {option: getattr(base, option) for option in OPTIONS if _is_set_by(base, option)}
    if "max_attempts" in given:
        found.pop("max_retries", None)
    return {**found, **given}


def _is_set_by(base: type, option: str) -> bool:
    owner = next((kind for kind in base.__mro__ if option in vars(kind)), CeleryTask)
    return owner is not CeleryTask


def implied(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return Celery's options in ``given`` as options of this package; raises InvalidOption."""
    if OPTIONS.isdisjoint(given):
        return {}
    if "max_retries" in given and "max_attempts" in given:
        raise InvalidOption(
            f"max_retries={given['max_retries']!r} and max_attempts=...: give one of them."
        )
    _check_retry_kwargs(given.get("retry_kwargs") or {})
    found: dict[str, Any] = {}
    if "max_attempts" not in given:
        found["max_attempts"] = _attempts(_max_retries(given))
    if "retry_for" not in given and (given.get("autoretry_for") or "max_attempts" not in given):
        found["retry_for"] = ()
    return found


def _check_retry_kwargs(retry_kwargs: Mapping[str, Any]) -> None:
    for option in retry_kwargs:
        if option not in _OF_A_RETRY:
            raise InvalidOption(
                f"retry_kwargs={{{option!r}: ...}}: a durable task takes"
                f" {' and '.join(sorted(_OF_A_RETRY))} there."
            )


def _max_retries(given: Mapping[str, Any]) -> int | None:
    retry_kwargs = given.get("retry_kwargs") or {}
    found: Any = retry_kwargs.get("max_retries", given.get("max_retries", CeleryTask.max_retries))
    if found is not None and (
        isinstance(found, bool) or not isinstance(found, int) or not 0 <= found < ATTEMPTS_MAX
    ):
        raise InvalidOption(
            f"max_retries={found!r}: give a whole number from 0 to {ATTEMPTS_MAX - 1}, or None."
        )
    limit: int | None = found
    return limit


def _attempts(max_retries: int | None) -> int:
    return ATTEMPTS_MAX if max_retries is None else min(max_retries + 1, ATTEMPTS_MAX)


def celery_options(given: Mapping[str, Any], options: TaskOptions) -> dict[str, Any]:
    """Return the attributes of Celery's task class that ``self.retry()`` uses. A delay of None
    means that the row's policy decides.
    """
    found: dict[str, Any] = {"max_retries": given.get("max_retries", CeleryTask.max_retries)}
    if options.limits_retries:
        found["max_retries"] = options.max_attempts - 1
    if given.get("default_retry_delay") is not None:
        found["default_retry_delay"] = seconds("default_retry_delay", given["default_retry_delay"])
    elif options.spaces_retries:
        found["default_retry_delay"] = None
    return found


def retry_exception(
    task: Any,
    live: LiveRun,
    exc: BaseException | None,
    when: datetime | float | None,
    max_retries: int | None,
) -> CeleryRetry:
    """Return the exception that requests another attempt. Raises ``exc`` or MaxRetriesExceededError
    if no retry is left.
    """
    stated = _stated_attempts(task.durable_options, live.run)
    limit = task.max_retries if max_retries is None else max_retries
    if stated is not None:
        limit = stated - 1 if max_retries is None else min(max_retries, stated - 1)
    if limit is not None and live.run.failures >= limit:
        live.max_attempts = live.run.failures + 1
        _raise(
            exc
            or MaxRetriesExceededError(
                f"Can't retry {task.name}[{live.run.task_id}]: {limit} retries."
            )
        )
    if stated is None:
        live.max_attempts = _attempts(limit)
    if isinstance(when, datetime) and when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    delay: Any = task.default_retry_delay if when is None else when
    return CeleryRetry("The task requested another attempt.", exc=exc, when=delay)


def _stated_attempts(options: TaskOptions, run: Run) -> int | None:
    """Return ``max_attempts`` if the call or the decorator sets it."""
    stated: int | None = run.options.get("max_attempts")
    if stated is None and options.limits_retries:
        return options.max_attempts
    return stated


def _raise(error: BaseException) -> NoReturn:
    """Raise with the current error as its cause, as Celery does."""
    handled = sys.exc_info()[1]
    if handled is None or handled is error:
        raise error
    raise error from handled
