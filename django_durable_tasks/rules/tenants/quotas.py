"""Quotas of tenants and the request rate of the HTTP API. Pure.

The rate is a GCRA (generic cell rate algorithm, ITU-T I.371): one time per tenant, ``free_at``, at
which its whole window would be free again. A request moves it by the interval of one request.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django_durable_tasks.did_you_mean import did_you_mean
from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.rules.limits.options import rate_of

NUMBERS = ("open_tasks", "recurring_tasks", "runs_per_day", "calendars", "payload_bytes")
REQUESTS = "requests"
_MOST = 1_000_000_000
_MICROSECONDS = 1_000_000


@dataclass(frozen=True, slots=True)
class RequestRate:
    """A number of requests in a window of seconds; a whole window may arrive at once."""

    number: int
    seconds: int

    def __str__(self) -> str:
        units = {1: "s", 60: "m", 3_600: "h", 86_400: "d"}
        return f"{self.number}/{units[self.seconds]}"

    @property
    def interval(self) -> int:
        """Microseconds of the window that one request takes, at least 1."""
        return max(1, self.seconds * _MICROSECONDS // self.number)

    @property
    def window(self) -> int:
        """The window in microseconds."""
        return self.interval * self.number

    def taken_by(self, requests: int) -> int:
        """Microseconds of the window that these requests take together, at most all of it."""
        return self.interval * min(requests, self.number)

    def decision(self, admitted: bool, ahead: int, requests: int = 1) -> RateDecision:
        """Return what is left if ``free_at`` is ``ahead`` microseconds in the future."""
        ahead = min(max(ahead, 0), self.window)
        left = max(0, (self.window - ahead) // self.interval)
        wait = 0 if admitted else max(0, ahead + self.taken_by(requests) - self.window)
        return RateDecision(self, admitted, left, _seconds(ahead), _seconds(wait))


@dataclass(frozen=True, slots=True)
class RateDecision:
    """Whether a request is admitted.

    ``left``: further requests that would be admitted now. ``reset``: seconds until the whole
    window is free. ``retry_after``: seconds until this request is admitted; 0 if it is.
    """

    rate: RequestRate
    admitted: bool
    left: int
    reset: int
    retry_after: int


def _seconds(microseconds: int) -> int:
    return math.ceil(microseconds / _MICROSECONDS)


@dataclass(frozen=True, slots=True)
class Quotas:
    """The quotas of one tenant; None means without limit."""

    open_tasks: int | None = None
    recurring_tasks: int | None = None
    runs_per_day: int | None = None
    calendars: int | None = None
    payload_bytes: int | None = None
    requests: RequestRate | None = None


def quotas_of(given: Mapping[str, Any]) -> Quotas:
    """Return the quotas of a mapping like ``{"open_tasks": 10_000, "requests": "600/m"}``. Raises
    InvalidOption.
    """
    for name in given:
        if name not in (*NUMBERS, REQUESTS):
            raise InvalidOption(f"{name!r} is no quota. {did_you_mean(name, (*NUMBERS, REQUESTS))}")
    numbers = {name: number_of(name, given.get(name)) for name in NUMBERS}
    return Quotas(**numbers, requests=request_rate_of(given.get(REQUESTS)))


def number_of(name: str, value: object) -> int | None:
    """Return a checked quota; raises InvalidOption."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST:
        raise InvalidOption(f"{name}={value!r}: give a whole number from 0 to {_MOST:,}, or None.")
    return value


def request_rate_of(text: object) -> RequestRate | None:
    """Return the rate of a text like ``"600/m"``; None for None or "". Raises InvalidOption."""
    if text is None or text == "":
        return None
    rate = rate_of(REQUESTS, text)
    if rate.number > rate.seconds * _MICROSECONDS:
        raise InvalidOption(f"{REQUESTS}={text!r}: give at most a million requests a second.")
    return RequestRate(rate.number, int(rate.seconds))
