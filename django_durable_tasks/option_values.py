"""Readers of option values. They raise InvalidOption with the name of the option."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TypeVar

from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.texts import did_you_mean

E = TypeVar("E", bound=StrEnum)

# Names, keys and counts are checked, and durations are converted: numbers of seconds and timedeltas
# in the API, floats of seconds internally.


def chosen(option: str, value: object, names: type[StrEnum]) -> str:
    """Return one of the names; raises InvalidOption with the closest valid name."""
    if isinstance(value, str) and value in set(names):
        return str(value)
    hint = did_you_mean(str(value).upper(), map(str, names))
    raise InvalidOption.of(option, value, f"give one of {', '.join(names)}. {hint}".strip())


def one_of(option: str, value: object, names: type[E]) -> E:
    """Return the member with this value; raises InvalidOption."""
    if value not in set(names):
        raise InvalidOption.of(option, value, f"give one of {', '.join(names)}.")
    return names(str(value))


# Seconds: the longest duration that every database can add to its current time.
LONGEST = 100 * 31_557_600


def seconds(name: str, value: object, *, minimum: float = 0.0) -> float:
    """Return the duration in seconds; raises InvalidOption with the name of the option."""
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, int | float) or number != number:
        raise InvalidOption.of(name, value, "give a number of seconds or a timedelta.")
    if number < minimum:
        raise InvalidOption.of(name, value, f"it must be {minimum:g} seconds or more.")
    if number > LONGEST:
        raise InvalidOption.of(name, value, "it must be a hundred years or less.")
    return float(number)


def maybe_seconds(name: str, value: object, *, minimum: float = 0.0) -> float | None:
    """Return the duration in seconds, or None for None; raises InvalidOption."""
    return None if value is None else seconds(name, value, minimum=minimum)


def instant(name: str, value: object) -> datetime:
    """Return the aware datetime; raises InvalidOption for a naive one and for anything else."""
    if not isinstance(value, datetime):
        raise InvalidOption.of(name, value, "give an aware datetime.")
    if value.tzinfo is None or value.utcoffset() is None:
        raise InvalidOption(
            f"{name}={value!r} is naive: give it a time zone, for example"
            " datetime.datetime.now(datetime.UTC).",
            option=name,
        )
    return value


# Suggestions for options that a durable task does not have.


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
_TRACER = (
    "Leave it out: this package runs the function of a durable task itself. A class with"
    " __call__ around the function: base=..."
)
_ONCE = (
    "Write unique='report:{0}' (a template of the arguments), with unique_for=... in seconds and"
    ' unique_on_conflict="RETURN_EXISTING", "RAISE" or "REPLACE".'
)
_REASONS = {
    "acks_late": _ROW,
    "acks_on_failure_or_timeout": _ROW,
    "reject_on_worker_lost": _ROW,
    "base": (
        "Give it to @durable_task: a class derived from"
        " django_durable_tasks.celery.task.DurableTask."
    ),
    "Request": _TRACER,
    "Strategy": _TRACER,
    "autoregister": "Leave it out: a durable task is always registered.",
    "compression": _NO_ARGUMENTS,
    "countdown": "Give it to the call: .apply_async(countdown=...), or .schedule(run_at=...).",
    "default_retry_delay": "Give it to @durable_task, or raise self.retry(countdown=...).",
    "exchange": _ROUTE,
    "expires": "Write expires_in=...",
    "eta": "Give it to the call: .apply_async(eta=...), or .schedule(run_at=...).",
    "headers": "Give them to the call: .using(headers=...), or .apply_async(headers=...).",
    "lazy": "Leave it out: the Celery task is created when the Celery app is ready.",
    "link": "Give the canvas to Workflow.from_canvas(...), or return Schedule(...).",
    "link_error": "Give the canvas to Workflow.from_canvas(...), or return Schedule(...).",
    "lock_expiry": _ONCE,
    "max_retries": "Write max_attempts=..., which counts the first attempt too: max_retries + 1.",
    "once": _ONCE,
    "pydantic": _PYDANTIC,
    "pydantic_context": _PYDANTIC,
    "pydantic_dump_kwargs": _PYDANTIC,
    "pydantic_strict": _PYDANTIC,
    "raise_on_duplicate": _ONCE,
    "resultrepr_maxsize": "Leave it out: results of durable tasks are not logged.",
    "routing_key": _ROUTE,
    "run_every": "Write @recurring(name, interval=...) or @recurring(name, cron=...) above it.",
    "serializer": _NO_ARGUMENTS,
    "shadow": "Leave it out: it only names the task in Celery's log. Write name=...",
    "shared": "Leave it out: a durable task is registered with every Celery app of the process.",
    "soft_time_limit": "Write soft_timeout=...",
    "throws": (
        "Leave it out: it only changes how Celery logs an error. Errors that must not be retried:"
        " give_up_on=..."
    ),
    "time_limit": "Write timeout=...",
    "typing": _ALWAYS,
    "unique_on": _ONCE,
}
"""Options of Celery's decorator, and their replacements."""


def hint(option: str, known: Iterable[str]) -> str:
    """Return what to write instead of this option: the replacement of Celery's option, otherwise
    the closest valid name, otherwise an empty text.
    """
    if option in _REASONS:
        return _REASONS[option]
    return did_you_mean(option, known)


KEY_MAX = 200
_NAME = re.compile(r"[A-Za-z0-9_.:/<>-]{1,200}\Z")


def checked_name(option: str, value: object) -> str:
    """Return a task or queue name; raises InvalidOption."""
    if not isinstance(value, str) or not _NAME.match(value):
        raise InvalidOption.of(option, value, "give 1 to 200 characters of A-Z a-z 0-9 _ . : / -")
    return value


def checked_key(option: str, value: object) -> str:
    """Return a key of at most 200 printable characters; raises InvalidOption."""
    if not isinstance(value, str) or not value or not value.isprintable():
        raise InvalidOption.of(option, value, "give a non-empty string of printable characters.")
    if len(value) > KEY_MAX:
        raise InvalidOption(
            f"{option} has {len(value)} characters, at most {KEY_MAX} are allowed.", option=option
        )
    return value


def checked_count(option: str, value: object, low: int, high: int) -> int:
    """Return a whole number in the range; raises InvalidOption."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidOption.of(option, value, f"give a whole number from {low} to {high}.")
    return value
