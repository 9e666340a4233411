"""Conversion of durations: numbers of seconds and timedeltas in the API, floats of seconds
internally.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django_durable_tasks.exceptions import InvalidOption

# Seconds: the longest duration that every database can add to its current time.
LONGEST = 100 * 31_557_600


def seconds(name: str, value: object, *, minimum: float = 0.0) -> float:
    """Return the duration in seconds; raises InvalidOption with the name of the option."""
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, int | float) or number != number:
        raise InvalidOption(f"{name}={value!r}: give a number of seconds or a timedelta.")
    if number < minimum:
        raise InvalidOption(f"{name}={value!r}: it must be {minimum:g} seconds or more.")
    if number > LONGEST:
        raise InvalidOption(f"{name}={value!r}: it must be a hundred years or less.")
    return float(number)


def maybe_seconds(name: str, value: object, *, minimum: float = 0.0) -> float | None:
    """Return the duration in seconds, or None for None; raises InvalidOption."""
    return None if value is None else seconds(name, value, minimum=minimum)


def instant(name: str, value: object) -> datetime:
    """Return the aware datetime; raises InvalidOption for a naive one and for anything else."""
    if not isinstance(value, datetime):
        raise InvalidOption(f"{name}={value!r}: give an aware datetime.")
    if value.tzinfo is None or value.utcoffset() is None:
        raise InvalidOption(
            f"{name}={value!r} is naive: give it a time zone, for example"
            " datetime.datetime.now(datetime.UTC)."
        )
    return value
