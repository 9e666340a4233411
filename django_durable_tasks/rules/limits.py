"""How much of something may be under way at once, and how often it may begin: scopes, allowances, token buckets. Pure.

A scope names whom a limit binds: ``global``, ``queue:<name>``, ``task:<name>``, ``tenant:<id>``, ``key:<text>``; and
``share:<queue>:<tenant>``, a tenant's fair share of a queue, which nobody sets.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django_durable_tasks.exceptions import InvalidOption

GLOBAL = "global"
SMALLEST_SHARE = 10
SCOPE_MAX = 240
_KINDS = ("queue", "task", "tenant", "key")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_RATE = re.compile(r"(\d{1,9})/([smhd])\Z")
_MOST = 1_000_000


def of_queue(name: str) -> str:
    """Return the scope of a queue."""
    return f"queue:{name}"


def of_task(name: str) -> str:
    """Return the scope of a task, by its registered name."""
    return f"task:{name}"


def of_tenant(tenant_id: int) -> str:
    """Return the scope of a tenant."""
    return f"tenant:{tenant_id}"


def of_key(key: str) -> str:
    """Return the scope of what ``PerKey`` names."""
    return f"key:{key}"


def of_share(queue: str, tenant_id: int) -> str:
    """Return the scope of a tenant's fair share of a queue."""
    return f"share:{queue}:{tenant_id}"


def shared(scope: str) -> tuple[str, int] | None:
    """Return the queue and the tenant of a share; None for another scope."""
    if not scope.startswith("share:"):
        return None
    queue, _, tenant = scope.removeprefix("share:").rpartition(":")
    return queue, int(tenant)


def checked_scope(scope: object) -> str:
    """Return a scope that somebody may limit; raises InvalidOption that lists the forms."""
    if scope == GLOBAL:
        return GLOBAL
    kind, _, name = str(scope).partition(":")
    fits = isinstance(scope, str) and kind in _KINDS and name and name.isprintable() and len(scope) <= SCOPE_MAX
    if not fits or (kind == "tenant" and not name.isdecimal()):
        raise InvalidOption(
            f"{scope!r} is no scope of a limit: give 'global', 'queue:<name>', 'task:<name>', 'tenant:<id>' or "
            f"'key:<text>', at most {SCOPE_MAX} characters."
        )
    return str(scope)


@dataclass(frozen=True, slots=True)
class Rate:
    """So many starts in so many seconds, and how many may come at once after a pause."""

    number: int
    seconds: float
    burst: float

    @property
    def per_second(self) -> float:
        """Tokens that come back in a second."""
        return self.number / self.seconds

    def __str__(self) -> str:
        unit = next(name for name, seconds in _UNITS.items() if seconds == self.seconds)
        return f"{self.number}/{unit}"


def rate_of(option: str, text: object, burst: object = None) -> Rate:
    """Return the rate that a text like "10/m" means; burst: one second's rate, at least 1. Raises InvalidOption."""
    found = _RATE.match(text) if isinstance(text, str) else None
    if found is None or not int(found[1]):
        raise InvalidOption(f"{option}={text!r}: give a number of starts and a unit s, m, h or d, such as '10/m'.")
    number, seconds = int(found[1]), _UNITS[found[2]]
    if burst is None:
        return Rate(number, seconds, max(1.0, number / seconds))
    if isinstance(burst, bool) or not isinstance(burst, int | float) or not 1 <= burst <= _MOST:
        raise InvalidOption(f"burst={burst!r}: give how many may start at once, 1 or more.")
    return Rate(number, seconds, float(burst))


def places_of(option: str, number: object) -> int:
    """Return how many may be under way at once; 0 holds everything. Raises InvalidOption."""
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= _MOST:
        raise InvalidOption(f"{option}={number!r}: give a whole number of 0 or more, or PerKey(number, template).")
    return number


@dataclass(frozen=True, slots=True)
class PerKey:
    """So many tasks at once for each value of a key: ``max_concurrency=PerKey(2, "{customer}")``.

    ``key`` is a template over the arguments in the language of ``unique=``; ``{task}`` is the task's name, and a key
    without it is shared by all tasks that name it. Raises InvalidOption.
    """

    number: int
    key: str

    def __post_init__(self) -> None:
        places_of("PerKey(number)", self.number)
        if not self.key or not str(self.key).isprintable():
            raise InvalidOption(f"PerKey(key={self.key!r}): give a template like '{{customer}}' or '{{task}}:{{0}}'.")


@dataclass(frozen=True, slots=True)
class Allowance:
    """What one scope may do: so many rows QUEUED and RUNNING at once, so many starts in a time; None: no such limit."""

    places: int | None = None
    rate: Rate | None = None


_FIELDS = ("max_concurrency", "rate", "burst")


def allowance_of(scope: object, given: Any) -> Allowance:
    """Return the allowance that settings or an operator give to a scope; raises InvalidOption."""
    where = checked_scope(scope)
    names = set(given) if isinstance(given, Mapping) else set()
    if not names <= set(_FIELDS) or not names & {"max_concurrency", "rate"}:
        raise InvalidOption(
            f"The limit of {where!r} is {given!r}: give {{'max_concurrency': 5}} or {{'rate': '10/m', 'burst': 2}}, or "
            "both in one."
        )
    places, rate = given.get("max_concurrency"), given.get("rate")
    if rate is None and given.get("burst") is not None:
        raise InvalidOption(f"The limit of {where!r} has a burst and no rate.")
    return Allowance(
        None if places is None else places_of("max_concurrency", places),
        None if rate is None else rate_of("rate", rate, given.get("burst")),
    )


# Token buckets ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bucket:
    """How many tokens a scope had at an instant of the database's clock."""

    tokens: float
    at: datetime


def refilled(bucket: Bucket | None, rate: Rate, now: datetime) -> Bucket:
    """Return the bucket as it is now; a new one is full. A clock that went back gives and takes nothing."""
    if bucket is None:
        return Bucket(rate.burst, now)
    elapsed = (now - bucket.at).total_seconds()
    if elapsed <= 0:
        return Bucket(min(rate.burst, bucket.tokens), bucket.at)
    return Bucket(min(rate.burst, bucket.tokens + elapsed * rate.per_second), now)


def whole(tokens: float) -> int:
    """Return how many starts these tokens allow; a millionth is forgiven, for sums of fractions fall short by it."""
    return max(0, math.floor(tokens + 1e-6))


# Who may go -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Room:
    """What is free in each scope while a claim is judged; a scope that is named nowhere is free."""

    places: dict[str, int] = field(default_factory=dict)
    tokens: dict[str, float] = field(default_factory=dict)
    spent: Counter[str] = field(default_factory=Counter)
    known: set[str] = field(default_factory=set)

    def refuses(self, scope: str) -> bool:
        """Return whether the scope has no place or no token for one more."""
        return self.places.get(scope, 1) <= 0 or whole(self.tokens.get(scope, 1.0)) < 1

    def take(self, scopes: Iterable[str]) -> None:
        """Take a place and a token of each scope."""
        for scope in scopes:
            if scope in self.places:
                self.places[scope] -= 1
            if scope in self.tokens:
                self.tokens[scope] -= 1
                self.spent[scope] += 1


def admitted(rows: Sequence[tuple[Hashable, Sequence[str]]], room: Room) -> dict[Hashable, str]:
    """Let rows with their scopes in, in order, and return those that are refused, with the first scope that did.

    A row takes of its scopes all or nothing, so that what one limit refuses costs the others nothing.
    """
    refused: dict[Hashable, str] = {}
    for row, scopes in rows:
        full = next((scope for scope in scopes if room.refuses(scope)), None)
        if full is None:
            room.take(scopes)
        else:
            refused[row] = full
    return refused


def share_of(window: int, tenants: int) -> int:
    """Return how many published rows of a queue's window one of so many tenants may hold.

    Never more than half: whoever comes next finds room, whether or not anybody has seen its rows.
    """
    return max(min(SMALLEST_SHARE, (window + 1) // 2), window // max(2, tenants))
