"""What the answer of an outside server means for the task and for its endpoint."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum

from django_durable_tasks.exceptions import InvalidTarget

# What the answer of an outside server means for the task: done, another attempt, or a failure.


BACKOFF = (5.0, 300.0, 1_800.0, 7_200.0, 18_000.0, 36_000.0, 36_000.0)
"""Seconds between the attempts: eight attempts in 27 hours and 35 minutes."""
RETRY_AFTER_MAX = 7_200.0
"""A Retry-After extends our own delay by at most this many seconds."""
_JITTER = 0.1
_SLOWING = frozenset({429, 502, 503, 504})
_SECONDS = re.compile(r"[0-9]{1,10}")
_CLASS = re.compile(r"[1-5]xx", re.IGNORECASE)


class AnswerKind(StrEnum):
    """The meaning of an answer.

    STOP: the receiver wants no more requests at all. FAILED: another attempt is useless.
    """

    DONE = "DONE"
    RETRY = "RETRY"
    FAILED = "FAILED"
    STOP = "STOP"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerMeaning:
    """The meaning of one answer. ``retry_after``: seconds that the receiver asked for.
    ``slows_endpoint``: the receiver is overloaded.
    """

    kind: AnswerKind
    reason: str
    retry_after: float | None = None
    slows_endpoint: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryStatuses:
    """Which statuses are retried: all but ``never``, or only those in ``only``."""

    only: frozenset[int] | None = None
    never: frozenset[int] = frozenset()

    def retries(self, status: int) -> bool:
        """Return whether an unsuccessful answer with this status is retried."""
        if status in self.never:
            return False
        return not 300 <= status < 400 if self.only is None else status in self.only


def statuses(option: str, value: object) -> frozenset[int] | None:
    """Return the statuses of a list such as ``[404, "5xx"]``; raises InvalidTarget."""
    if value is None:
        return None
    if not isinstance(value, list | tuple):
        raise InvalidTarget.of(option, value, 'give a list such as [404, "5xx"].')
    codes: set[int] = set()
    for item in value:
        if isinstance(item, str) and _CLASS.fullmatch(item):
            codes.update(range(100 * int(item[0]), 100 * int(item[0]) + 100))
        elif isinstance(item, int) and not isinstance(item, bool) and 100 <= item < 600:
            codes.add(item)
        else:
            raise InvalidTarget(
                f'{option} contains {item!r}: give statuses, or "4xx" for all.', option=option
            )
    return frozenset(codes)


def interpret(
    status: int, headers: Mapping[str, str], retried: RetryStatuses, now: datetime
) -> AnswerMeaning:
    """Return the meaning of an answer; ``headers`` by names in lower case."""
    if 200 <= status < 300:
        return AnswerMeaning(kind=AnswerKind.DONE, reason=f"The endpoint answered {status}.")
    wish = headers.get("webhook-delivery", "").strip().lower()
    if status == 410 or wish == "disable":
        text = "410 Gone" if status == 410 else f"{status} with webhook-delivery: disable"
        return AnswerMeaning(kind=AnswerKind.STOP, reason=f"The endpoint answered {text}.")
    if wish == "abort-message":
        return AnswerMeaning(
            kind=AnswerKind.FAILED,
            reason=f"The endpoint answered {status} with webhook-delivery: abort-message.",
        )
    slows = status in _SLOWING
    wait = retry_after(headers.get("retry-after"), now)
    if retried.retries(status):
        return AnswerMeaning(
            kind=AnswerKind.RETRY,
            reason=f"The endpoint answered {status}.",
            retry_after=wait,
            slows_endpoint=slows,
        )
    followed = " Redirects are not followed." if 300 <= status < 400 else ""
    return AnswerMeaning(
        kind=AnswerKind.FAILED,
        reason=f"The endpoint answered {status}, which is not retried.{followed}",
        slows_endpoint=slows,
    )


def by_name(headers: Iterable[tuple[str, str]], now: datetime) -> dict[str, str]:
    """Return headers by names in lower case. Of several Retry-After the longest one counts."""
    headers_by_name: dict[str, str] = {}
    for header, value in headers:
        name = header.lower()
        if name == "retry-after" and name in headers_by_name:
            longest = retry_after(headers_by_name[name], now) or 0.0
            if (retry_after(value, now) or 0.0) <= longest:
                continue
        headers_by_name[name] = value
    return headers_by_name


def retry_after(value: str | None, now: datetime) -> float | None:
    """Return the seconds of a Retry-After header (seconds or a date); None if it is absent or
    unreadable.
    """
    if value is None:
        return None
    text = value.strip()
    if _SECONDS.fullmatch(text):
        return float(text)
    try:
        instant = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    aware = instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)
    return max(0.0, (aware - now).total_seconds())


def delay(backoff: Sequence[float], failures: int, asked: float | None, draw: float) -> float:
    """Return the seconds until the next attempt after ``failures`` failed ones (1 or more).

    It is never less than our own delay or ``asked``, the Retry-After, which is limited to our own
    delay plus two hours. ``draw`` in [0, 1) lengthens it by at most a tenth, so that the attempts
    of many tasks spread.
    """
    seconds = backoff[min(failures, len(backoff)) - 1]
    longest = seconds + RETRY_AFTER_MAX
    if asked is not None and math.isfinite(asked):
        seconds = max(seconds, asked)
    return min(seconds, longest) * (1 + _JITTER * draw)


def checked_statuses(retry_on: object, no_retry_on: object) -> RetryStatuses:
    """Return which statuses are retried; raises InvalidTarget."""
    only, never = statuses("retry_on", retry_on), statuses("no_retry_on", no_retry_on)
    never = never or frozenset()
    both = sorted((only or frozenset()) & never)
    if both:
        raise InvalidTarget(
            f"retry_on and no_retry_on both contain {both[0]}: remove it from one.",
            option="retry_on",
        )
    return RetryStatuses(only=only, never=never)


# The circuit breaker of an endpoint: when it opens, for how long, and when a request may probe.
#
# While it is open, tasks wait as PENDING. No attempt is started and no failure is counted.


_LONGEST = 20
"""The longest pause, as a multiple of the first one."""
_PROBING = 5.0
"""Seconds for which other tasks wait at most while one request probes the endpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointHealth:
    """What is known about an endpoint: failures in a row, how often the breaker opened since the
    last success, and until when it is open.
    """

    failures: int = 0
    openings: int = 0
    open_until: datetime | None = None

    def waits(self, now: datetime) -> float:
        """Return the seconds for which the breaker is still open."""
        if self.open_until is None:
            return 0.0
        return max(0.0, (self.open_until - now).total_seconds())


def breaker_pause_after(
    health: EndpointHealth, now: datetime, threshold: int, pause: float
) -> float:
    """Return for how many seconds the breaker opens after one more failure; 0 if it does not.

    A failure while it is open, of a request that was in progress, does not extend the pause.
    """
    if not threshold or health.failures + 1 < threshold or health.waits(now):
        return 0.0
    return min(pause * 2.0 ** min(health.openings, 10), pause * _LONGEST)


def spread_wait(wait: float, draw: float) -> float:
    """Return when a task tries again that was not started because of an open breaker.

    ``draw`` in [0, 1) spreads the tasks over a quarter more, so that they are not all due at once.
    """
    return wait * (1 + draw / 4)


def wait_while_probing(draw: float) -> float:
    """Return how many seconds a task waits while another one probes the endpoint."""
    return _PROBING * (0.5 + draw / 2)
