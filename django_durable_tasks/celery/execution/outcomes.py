"""Converts the exception of a task to an outcome to be stored and to an exception that Celery can
send.
"""

from __future__ import annotations

import pickle
import traceback
from datetime import UTC, datetime, timedelta

from billiard.exceptions import SoftTimeLimitExceeded
from celery import exceptions as celery_exceptions

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
from django_durable_tasks.rules.tasks.masking import masked_text, shortened
from django_durable_tasks.rules.tasks.options import TaskOptions
from django_durable_tasks.rules.tasks.retries import Retry
from django_durable_tasks.rules.workflows.followups import followups_of

_WAIT_FOR_KEY = 60.0
"""Seconds until a run whose arguments cannot be decrypted is tried again."""


def text_of(error: BaseException) -> str:
    """Return type and message on one line, masked and accepted by every database."""
    try:
        message = str(error)
    except Exception as unprintable:  # noqa: BLE001 - an exception's own __str__ may raise anything
        message = f"<no text: its __str__ raised {type(unprintable).__name__}>"
    settings = conf.settings()
    masked = masked_text(message, settings.SECRET_NAMES)
    line = f"{type(error).__name__}: {masked}" if message else type(error).__name__
    return shortened(line, settings.ERROR_MAX_BYTES)


def _traceback_of(error: BaseException) -> str:
    settings = conf.settings()
    try:
        lines = "".join(traceback.format_exception(error))
    except Exception:  # noqa: BLE001 - formatting calls the exception's own code
        lines = text_of(error)
    return shortened(masked_text(lines, settings.SECRET_NAMES), settings.ERROR_MAX_BYTES)


def outcome_of_result(name: str, value: object) -> Outcome:
    """Return the success with this result; raises UnserializableResult or ResultTooLarge."""
    settings = conf.settings()
    result = (
        None
        if followups_of(value)
        else encode_result(
            name, value, max_bytes=settings.RESULT_MAX_BYTES, max_depth=settings.JSON_MAX_DEPTH
        )
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
    return float(when) if isinstance(when, int | float) else None


def picklable(error: BaseException) -> BaseException:
    """Return the exception if it can be pickled and unpickled, else a BodyFailed with its text.

    A MemoryError is replaced too, because Celery raises it again in the parent process, which would
    end the worker.
    """
    if not isinstance(error, MemoryError):
        try:
            pickle.loads(pickle.dumps(error))  # noqa: S301 - our own object, just dumped
        except Exception:  # noqa: BLE001 - pickling calls the exception's own code
            return BodyFailed(text_of(error))
        return error
    return BodyFailed(text_of(error))
