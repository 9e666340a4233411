"""Converts the exception of a task to an outcome to be stored and to an exception that Celery can
send.
"""

from __future__ import annotations

import pickle
import traceback
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from billiard.exceptions import SoftTimeLimitExceeded
from celery import exceptions as celery_exceptions
from celery.utils.serialization import get_pickleable_exception

from django_durable_tasks import conf
from django_durable_tasks.celery.stored_exceptions import described
from django_durable_tasks.engine.db.clock_estimate import estimated_now
from django_durable_tasks.exceptions import (
    BodyFailed,
    EncryptionError,
    InvalidOption,
    InvalidReference,
    ResultTooLarge,
    UnserializableResult,
)
from django_durable_tasks.rules.tasks.arguments import encode_result
from django_durable_tasks.rules.tasks.endings import EndingKind, Outcome
from django_durable_tasks.rules.tasks.masking import ERROR_MAX_BYTES, masked_excerpt, shortened
from django_durable_tasks.rules.tasks.options import TaskOptions
from django_durable_tasks.rules.tasks.retries import Retry
from django_durable_tasks.rules.workflows.followups import followups_of

if TYPE_CHECKING:
    from django_durable_tasks.celery.execution.live_runs import LiveRun

_WAIT_FOR_KEY = 60.0
"""Seconds until a run whose arguments cannot be decrypted is tried again."""


def text_of(error: BaseException) -> str:
    """Return type and message on one line, masked and accepted by every database."""
    try:
        message = str(error)
    except Exception as unprintable:  # noqa: BLE001 - an exception's own __str__ may raise anything
        message = f"<no text: its __str__ raised {type(unprintable).__name__}>"
    settings = conf.settings()
    masked = masked_excerpt(message, settings.SECRET_NAMES, ERROR_MAX_BYTES)
    line = f"{type(error).__name__}: {masked}" if message else type(error).__name__
    return shortened(line, ERROR_MAX_BYTES)


def _traceback_of(error: BaseException) -> str:
    settings = conf.settings()
    try:
        lines = "".join(traceback.format_exception(error))
    except Exception:  # noqa: BLE001 - formatting calls the exception's own code
        lines = text_of(error)
    return masked_excerpt(lines, settings.SECRET_NAMES, ERROR_MAX_BYTES)


def outcome_of_result(live: LiveRun, value: object) -> Outcome:
    """Return the success of a run with this result; raises UnserializableResult or
    ResultTooLarge.
    """
    max_bytes, max_depth = live.result_limits
    result = (
        None
        if followups_of(value)
        else encode_result(live.run.name, value, max_bytes=max_bytes, max_depth=max_depth)
    )
    return Outcome(kind=EndingKind.SUCCEEDED, result=result)


def outcome_of(error: BaseException, options: TaskOptions) -> Outcome:
    """Return the outcome of a run that ended with this exception."""
    kind, retryable, delay, cause = _kind_of(error, options)
    return Outcome(
        kind=kind,
        error=text_of(cause),
        error_type=type(cause).__name__,
        traceback=_traceback_of(error),
        retryable=retryable,
        delay=delay,
        queue=error.queue if isinstance(error, Retry) else None,
        exception=described(cause),
    )


def _kind_of(
    error: BaseException, options: TaskOptions
) -> tuple[EndingKind, bool, float | None, BaseException]:
    match error:
        case Retry():
            return EndingKind.RETRY_ASKED, True, error.after, error
        case celery_exceptions.Retry():
            cause = error.exc if isinstance(error.exc, BaseException) else error
            return EndingKind.RETRY_ASKED, True, _wait(error.when), cause
        case EncryptionError():
            return EndingKind.POSTPONED, True, _WAIT_FOR_KEY, error
        case celery_exceptions.Ignore():
            return EndingKind.IGNORED, False, None, error
        case celery_exceptions.Reject():
            return EndingKind.REJECTED, bool(error.requeue), None, error
        case (
            celery_exceptions.MaxRetriesExceededError()
            | UnserializableResult()
            | ResultTooLarge()
            | InvalidReference()
            | InvalidOption()
        ):
            return EndingKind.FAILED, False, None, error
        case SoftTimeLimitExceeded():
            return EndingKind.FAILED, options.retryable(error), None, error
    return EndingKind.FAILED, options.retryable(error), None, error


def _wait(when: object) -> float | None:
    if isinstance(when, datetime):
        aware = when if when.tzinfo else when.replace(tzinfo=UTC)
        return max(0.0, (aware - estimated_now()) / timedelta(seconds=1))
    return max(0.0, float(when)) if isinstance(when, int | float) else None


def picklable(error: BaseException) -> BaseException:
    """Return the exception if it can be pickled and unpickled, else a BodyFailed with its text."""
    return error if _survives(error) else BodyFailed(text_of(error))


def raisable(error: BaseException) -> BaseException:
    """Return the exception to raise to Celery: the own one of the function, so that wrappers of
    other packages report its class and frames. Celery replaces it afterwards if it cannot be
    pickled.

    A BodyFailed with the exception as its cause is returned if Celery could not do that, and for a
    MemoryError, which Celery raises again in the parent process, which would end the worker.
    """
    if not isinstance(error, MemoryError) and (_survives(error) or _is_replaced(error)):
        return error
    failed = BodyFailed(text_of(error))
    failed.__cause__ = error
    return failed


def _is_replaced(error: BaseException) -> bool:
    """Return whether Celery replaces the exception by one that can be pickled."""
    try:
        return _survives(get_pickleable_exception(error))
    except Exception:  # noqa: BLE001 - it calls the exception's own code
        return False


def _survives(error: BaseException) -> bool:
    if isinstance(error, MemoryError):
        return False
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - our own object, just dumped
    except Exception:  # noqa: BLE001 - pickling calls the exception's own code
        return False
    return True
