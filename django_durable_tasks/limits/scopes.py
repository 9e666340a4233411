"""Concurrency limits and rate limits, and the admission of tasks under them. Pure."""

from __future__ import annotations

import hashlib
import math
import re
import uuid
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django_durable_tasks.choices import DEFAULT_TENANT_ID
from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.option_values import KEY_MAX

# Concurrency limits and rate limits: scopes, allowances and token buckets. Pure.
#
# A scope identifies what a limit applies to: ``global``, ``queue:<name>``, ``task:<name>``,
# ``tenant:<id>``, ``tenant:*`` (each tenant other than the default one, for what its own limit does
# not contain), ``key:<text>``; and two that are computed and cannot be set:
# ``share:<queue>:<tenant>``, a tenant's fair share of a queue, and ``worker:<name>@<queue>``, the
# workers of a queue that have registered a task.


# Hexadecimal digits of the hash at the end of a shortened key: 128 bits, so that no two keys are
# equal by chance.
_DIGITS = 32
GLOBAL = "global"
EACH_TENANT = "tenant:*"
SCOPE_FORMS = "global, queue:<name>, task:<name>, tenant:<id>, tenant:* or key:<text>"
SCOPE_MAX = 240
HEAVIEST = 1_000
A_NEW_CLOCK = 5.0
"""If a bucket was read this many seconds in the future, the clock of the database has changed. The
bucket is then counted from the present.
"""
WORKER = "worker:"
_KINDS = ("queue", "task", "tenant", "key")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_RATE = re.compile(r"(\d{1,9})/([smhd])\Z")
_MOST = 1_000_000


def scope_of_queue(name: str) -> str:
    """Return the scope of a queue."""
    return f"queue:{name}"


def scope_of_task(name: str) -> str:
    """Return the scope of a task, by its registered name."""
    return f"task:{name}"


def scope_of_tenant(tenant_id: int) -> str:
    """Return the scope of a tenant."""
    return f"tenant:{tenant_id}"


def scope_of_key(key: str) -> str:
    """Return the scope of a key of ``PerKey``."""
    return f"key:{key}"


def key_of_tenant(tenant_id: int, key: str) -> str:
    """Return the ``limit_key`` of a task of this tenant, so that each tenant has its own limits.

    A key of the default tenant is stored as it is: the project makes its calls, and operators name
    these keys in limits. A text that is too long with the tenant ends with its hash.
    """
    if tenant_id != DEFAULT_TENANT_ID:
        key = f"{tenant_id}:{key}"
    if len(key) <= KEY_MAX:
        return key
    return key[: KEY_MAX - _DIGITS] + hashlib.sha256(key.encode()).hexdigest()[:_DIGITS]


def scope_of_share(queue: str, tenant_id: int) -> str:
    """Return the scope of a tenant's fair share of a queue."""
    return f"share:{queue}:{tenant_id}"


def before_shares(queue: str) -> str:
    """Return the prefix of all shares of a queue, which sorts before them."""
    return f"share:{queue}:"


def scope_of_window(queue: str) -> str:
    """Return the scope of a queue's window of published tasks."""
    return f"window:{queue}"


def scope_of_worker(name: str, queue: str) -> str:
    """Return the scope for which tasks of this name wait while no worker of their queue has it."""
    return f"{WORKER}{name}@{queue}"


def worker_of(scope: str) -> tuple[str, str] | None:
    """Return the task name and the queue of a ``worker:`` scope; None for another scope."""
    if not scope.startswith(WORKER):
        return None
    # A task name contains no @.
    name, _, queue = scope.removeprefix(WORKER).partition("@")
    return name, queue


def shared(scope: str) -> tuple[str, int] | None:
    """Return the queue and the tenant of a share; None for another scope."""
    if not scope.startswith("share:"):
        return None
    queue, _, tenant = scope.removeprefix("share:").rpartition(":")
    return queue, int(tenant)


def checked_scope(scope: object) -> str:
    """Return a scope for which an operator may set a limit; raises InvalidOption that lists the
    forms.
    """
    if scope in (GLOBAL, EACH_TENANT):
        return str(scope)
    kind, _, name = str(scope).partition(":")
    fits = (
        isinstance(scope, str)
        and kind in _KINDS
        and name
        and name.isprintable()
        and len(scope) <= SCOPE_MAX
    )
    if not fits or (kind == "tenant" and not name.isdecimal()):
        raise InvalidOption(
            f"{scope!r} is no scope of a limit: give {SCOPE_FORMS}, at most {SCOPE_MAX} characters."
        )
    return str(scope)


@dataclass(frozen=True, slots=True)
class Rate:
    """A number of starts in a number of seconds, and how many may start at once after a pause."""

    number: int
    seconds: float
    burst: float
    fixed: bool = False
    """Whether the burst was given. If not, it grows to the weight of a task that waits for it."""

    def holds(self, weight: int = 1) -> float:
        """Return how many tokens accumulate at most while the heaviest waiting task has this
        weight.
        """
        return self.burst if self.fixed else max(self.burst, float(weight))

    @property
    def per_second(self) -> float:
        """Tokens that are added per second."""
        return self.number / self.seconds

    def __str__(self) -> str:
        unit = next(name for name, seconds in _UNITS.items() if seconds == self.seconds)
        return f"{self.number}/{unit}"


def rate_of(option: str, text: object, burst: object = None) -> Rate:
    """Return the rate of a text like "10/m". The burst is one second of the rate, at least 1.
    Raises InvalidOption.
    """
    match = _RATE.match(text) if isinstance(text, str) else None
    if match is None or not int(match[1]):
        raise InvalidOption.of(
            option, text, "give a number of starts and a unit s, m, h or d, such as '10/m'."
        )
    number, seconds = int(match[1]), _UNITS[match[2]]
    if burst is None:
        return Rate(number, seconds, max(1.0, number / seconds))
    if isinstance(burst, bool) or not isinstance(burst, int | float) or not 1 <= burst <= _MOST:
        raise InvalidOption.of("burst", burst, "give how many may start at once, 1 or more.")
    return Rate(number, seconds, float(burst), fixed=True)


def places_of(option: str, number: object) -> int:
    """Return the maximum concurrency; 0 admits no task. Raises InvalidOption."""
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= _MOST:
        raise InvalidOption.of(
            option, number, "give a whole number of 0 or more, or PerKey(number, template)."
        )
    return number


@dataclass(frozen=True, slots=True)
class PerKey:
    """A limit for each value of a key: ``max_concurrency=PerKey(2, "{customer}")``,
    ``rate_limit=PerKey("10/m", ...)``.

    ``key`` is a template over the arguments, as in ``unique=``. ``{task}`` is the task's name; a
    key without it is shared by all tasks of the tenant that use the same key. Raises InvalidOption.
    """

    number: int | str
    key: str

    def __post_init__(self) -> None:
        if isinstance(self.number, str):
            rate_of("PerKey(rate)", self.number)
        else:
            places_of("PerKey(number)", self.number)
        if not self.key or not str(self.key).isprintable():
            raise InvalidOption(
                f"PerKey(key={self.key!r}): give a template like '{{customer}}' or"
                " '{task}:{0}'."
            )


def places_option(option: str, value: object) -> int | PerKey:
    """Return the checked ``max_concurrency=``; raises InvalidOption."""
    if not isinstance(value, PerKey):
        return places_of(option, value)
    places_of(f"{option}=PerKey(number)", value.number)
    return value


def rate_option(option: str, value: object) -> Rate | PerKey:
    """Return the checked ``rate_limit=``; raises InvalidOption."""
    if not isinstance(value, PerKey):
        return rate_of(option, value)
    rate_of(f"{option}=PerKey(rate)", value.number)
    return value


def key_of(*limits: object) -> str | None:
    """Return the template of the key of these limits of one task; None without one. Raises
    InvalidOption if they have two.
    """
    keys = {limit.key for limit in limits if isinstance(limit, PerKey)}
    if len(keys) > 1:
        first, second = sorted(keys)
        raise InvalidOption(
            f"rate_limit and max_concurrency name two keys, {first!r} and {second!r}: a task counts"
            " under one key, so give both limits the same template."
        )
    return next(iter(keys), None)


@dataclass(frozen=True, slots=True)
class Allowance:
    """The limits of one scope: the weight that is QUEUED and RUNNING at once, and the weight
    started per period; None: no limit.
    """

    places: int | None = None
    rate: Rate | None = None

    @property
    def heaviest(self) -> int | None:
        """Return the largest weight that can ever be admitted; None if there is no maximum."""
        most = [] if self.places is None else [self.places]
        if self.rate is not None and self.rate.fixed:
            most.append(int(self.rate.burst))
        return min(most, default=None)


def per_key_of(rate_limit: object, max_concurrency: object) -> Allowance | None:
    """Return the allowance of each value of the task's key; None if the task has no key."""
    if not isinstance(rate_limit, PerKey) and not isinstance(max_concurrency, PerKey):
        return None
    places = max_concurrency.number if isinstance(max_concurrency, PerKey) else None
    return Allowance(
        places if isinstance(places, int) else None,
        rate_of("rate_limit", rate_limit.number) if isinstance(rate_limit, PerKey) else None,
    )


def strictest(allowances: Iterable[Allowance]) -> Allowance:
    """Return the lowest concurrency and the slowest rate among these."""
    allowances = list(allowances)
    rates = [allowed.rate for allowed in allowances if allowed.rate is not None]
    return Allowance(
        min((allowed.places for allowed in allowances if allowed.places is not None), default=None),
        min(rates, key=lambda rate: (rate.per_second, rate.burst), default=None),
    )


_FIELDS = ("max_concurrency", "rate", "burst")


def allowance_of(scope: object, limit: Any) -> Allowance:
    """Return the allowance that settings or an operator define for a scope; raises
    InvalidOption.
    """
    where = checked_scope(scope)
    names = set(limit) if isinstance(limit, Mapping) else set()
    if not names <= set(_FIELDS) or not names & {"max_concurrency", "rate"}:
        raise InvalidOption(
            f"The limit of {where!r} is {limit!r}: give {{'max_concurrency': 5}} or {{'rate':"
            " '10/m', 'burst': 2}, or both in one."
        )
    places, rate = limit.get("max_concurrency"), limit.get("rate")
    if rate is None and limit.get("burst") is not None:
        raise InvalidOption(f"The limit of {where!r} has a burst and no rate.")
    return Allowance(
        None if places is None else places_of("max_concurrency", places),
        None if rate is None else rate_of("rate", rate, limit.get("burst")),
    )


# Token buckets ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bucket:
    """The number of tokens of a scope at an instant of the database's clock."""

    tokens: float
    at: datetime


def accumulated(bucket: Bucket | None, rate: Rate, now: datetime) -> Bucket:
    """Return the bucket at ``now`` with all tokens that were added since, without a maximum; a new
    bucket is full.

    If the clock went back a little, the tokens stay unchanged. If it went back by A_NEW_CLOCK
    seconds, the bucket is counted from ``now``.
    """
    if bucket is None:
        return Bucket(math.inf, now)
    elapsed = (now - bucket.at).total_seconds()
    if elapsed > 0:
        return Bucket(bucket.tokens + elapsed * rate.per_second, now)
    return Bucket(bucket.tokens, now if elapsed < -A_NEW_CLOCK else bucket.at)


def refill(rate: Rate) -> float:
    """Return after how many seconds an empty bucket is full for a task of any weight."""
    return rate.holds(HEAVIEST) / rate.per_second + A_NEW_CLOCK


def whole(tokens: float) -> int:
    """Return how many starts these tokens allow. A difference of a millionth is ignored, because
    sums of fractions are rounded.
    """
    return max(0, math.floor(tokens + 1e-6))


# Admission of tasks under limits: free capacity of each scope, requests, round-robin turns, and
# fair shares of tenants. Pure.


SMALLEST_SHARE = 10
_BY_ROWS = ("share:", "window:")
"""Scopes in which each task counts as 1, independent of its weight. They divide places on the
broker, or turns.
"""


@dataclass(frozen=True, slots=True)
class AdmissionRequest:
    """A task that requests admission: the scopes in which it counts, its weight, and its turn (the
    smallest goes first).

    ``other_scopes``: scopes in which it counts in addition to those of its waitlist. A refusal by
    one of them does not block the tasks behind it.
    """

    row: Hashable
    scopes: Sequence[str]
    weight: int = 1
    turn: tuple[Any, ...] = ()
    other_scopes: Sequence[str] = ()

    def in_scope(self, scope: str) -> int:
        """Return how much capacity of a scope the task uses."""
        return 1 if scope.startswith(_BY_ROWS) else self.weight


@dataclass(slots=True)
class Capacity:
    """The free capacity of each scope during a claim; a scope that is not listed is unlimited.

    ``tokens``: all tokens that have accumulated; ``rates`` determines how many of them count.
    ``ahead``: the heavy task of each scope whose turn it is; later tasks leave the capacity that it
    needs. ``heaviest``: the largest weight that can ever be admitted.
    """

    places: dict[str, int] = field(default_factory=dict)
    tokens: dict[str, float] = field(default_factory=dict)
    rates: dict[str, Rate] = field(default_factory=dict)
    heaviest: dict[str, int] = field(default_factory=dict)
    ahead: dict[str, AdmissionRequest] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)
    spent: Counter[str] = field(default_factory=Counter)
    known: set[str] = field(default_factory=set)

    def refuses(self, scope: str, request: AdmissionRequest) -> bool:
        """Return whether the scope lacks capacity for this task, apart from what is reserved for
        the task ahead of it.
        """
        needs, ahead = request.in_scope(scope), self.ahead.get(scope)
        if ahead is not None and ahead.row != request.row and ahead.turn < request.turn:
            needs += ahead.weight
        if scope in self.closed or self.places.get(scope, needs) < needs:
            return True
        return scope in self.tokens and whole(self._tokens(scope, request)) < needs

    def exceeds_limit(self, scope: str, request: AdmissionRequest) -> bool:
        """Return whether the weight of the task exceeds the whole limit."""
        return request.in_scope(scope) > self.heaviest.get(scope, request.weight)

    def left(self, scope: str) -> int | None:
        """Return how many tasks of weight 1 the scope admits at most; None if the scope is
        unlimited.
        """
        capacities = [self.places[scope]] if scope in self.places else []
        if scope in self.tokens:
            capacities.append(whole(self._tokens(scope, AdmissionRequest(None, ()))))
        return 0 if scope in self.closed else min(capacities, default=None)

    def take(self, request: AdmissionRequest) -> None:
        """Subtract the task's weight from the capacity and tokens of each of its scopes."""
        for scope in (*request.scopes, *request.other_scopes):
            if scope in self.places:
                self.places[scope] -= request.in_scope(scope)
            if scope in self.tokens:
                self.tokens[scope] = self._tokens(scope, request) - request.weight
                self.spent[scope] += request.weight
        self.forget(request)

    def forget(self, request: AdmissionRequest, but: str | None = None) -> None:
        """Remove the reservations for this task, except in one scope."""
        for scope, ahead in list(self.ahead.items()):
            if ahead.row == request.row and scope != but:
                del self.ahead[scope]

    def _tokens(self, scope: str, request: AdmissionRequest) -> float:
        tokens, rate, ahead = self.tokens[scope], self.rates.get(scope), self.ahead.get(scope)
        heaviest = max(request.weight, 0 if ahead is None else ahead.weight)
        return tokens if rate is None else min(tokens, rate.holds(heaviest))


def admitted(rows: Sequence[AdmissionRequest], capacity: Capacity) -> dict[Hashable, str]:
    """Admit tasks in order, and return those that are refused, each with the first scope that
    refused it.

    A task uses all of its scopes or none, so a refusal by one limit uses no capacity of the others.
    If a task is too heavy for the capacity that is free now, no task behind it in this scope is
    admitted. Otherwise lighter tasks would delay it indefinitely.
    """
    refused: dict[Hashable, str] = {}
    for request in rows:
        full = next((scope for scope in request.scopes if capacity.refuses(scope, request)), None)
        if full is None:
            capacity.take(request)
            continue
        refused[request.row] = full
        capacity.forget(request, but=full)
        if (
            request.weight > 1
            and full not in capacity.ahead
            and not capacity.exceeds_limit(full, request)
        ):
            capacity.closed.add(full)
    return refused


# Turns --------------------------------------------------------------------------------------------


def select_releasable(
    lines: Mapping[str, Sequence[AdmissionRequest]], capacity: Capacity, limit: int
) -> tuple[list[Hashable], dict[Hashable, list[str]]]:
    """Return at most ``limit`` tasks that may go, one of each waitlist in turn, until the next task
    of the waitlist does not fit.

    Waitlists are visited in their order. An admitted task uses capacity in all scopes that it
    lists. A task does not end its waitlist if it is heavier than the whole limit, or if other
    scopes refuse it. Tasks for which their own waitlist had capacity are returned with the scopes
    that refused them.
    """
    released: list[Hashable] = []
    elsewhere: dict[Hashable, list[str]] = {}
    waiting = {name: list(reversed(rows)) for name, rows in lines.items() if rows}
    while waiting and len(released) < limit:
        for name, rows in list(waiting.items()):
            if len(released) >= limit:
                break
            request = rows.pop()
            full = next(
                (scope for scope in request.scopes if capacity.refuses(scope, request)), None
            )
            refusing = [scope for scope in request.other_scopes if capacity.refuses(scope, request)]
            if full is None and not refusing:
                capacity.take(request)
                released.append(request.row)
            elif full is None:
                elsewhere[request.row] = refusing
            elif not refusing and not capacity.exceeds_limit(full, request):
                rows[:] = [row for row in rows if full not in row.scopes]
            if not rows:
                del waiting[name]
    return released, elsewhere


def rotate_after(names: Iterable[str], last: str) -> list[str]:
    """Return the names in order, starting after the one that was served last."""
    ordered = sorted(names)
    return [name for name in ordered if name > last] + [name for name in ordered if name <= last]


def workers_of(concurrency: int) -> int:
    """Return how many tasks of a queue one customer may have QUEUED and RUNNING, given the number
    of processes that consume the queue: half of them, and one while no worker is known.

    So a customer whose tasks are long or hang cannot occupy all processes, also not those of a
    worker that starts after a while without one.
    """
    return max(1, concurrency // 2)


def share_of(window: int, tenants: int) -> int:
    """Return how many published tasks of a queue's window one tenant may have, given the number of
    tenants.

    Never more than half of the window, so that a new tenant finds capacity at once.
    """
    return max(min(SMALLEST_SHARE, (window + 1) // 2), window // max(2, tenants))


# What waits for a limit or for an overlap key, as values and sentences.


@dataclass(frozen=True, slots=True)
class Open:
    """An open task with an overlap key: whether it runs, and whether it waits for another one.

    ``workflow``: it is the open run of a workflow that a task with the key started; ``task_id`` is
    then the id of the run.
    """

    task_id: uuid.UUID
    running: bool = False
    held: bool = False
    workflow: bool = False


def waiting(number: int) -> str:
    """Return how many tasks wait, as words."""
    return "1 task waits" if str(number) == "1" else f"{number} tasks wait"


def no_worker(name: str, queue: str, number: int) -> str:
    """Return the sentence about ``number`` waiting tasks that no worker of their queue has."""
    return f"No live worker of queue {queue} has the task {name}: {waiting(number)}."
