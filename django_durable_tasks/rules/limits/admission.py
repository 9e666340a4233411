"""Admission of tasks under limits: free capacity of each scope, requests, round-robin turns, and
fair shares of tenants. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django_durable_tasks.rules.limits.options import Rate, whole

SMALLEST_SHARE = 10
_BY_ROWS = ("share:", "window:")
"""Scopes in which each task counts as 1, independent of its weight. They divide places on the
broker, or turns.
"""


@dataclass(frozen=True, slots=True)
class AdmissionRequest:
    """A task that requests admission: the scopes in which it counts, its weight, and its turn (the
    smallest goes first).

    ``others`` are scopes in which it counts in addition to those of its waitlist. A refusal by one
    of them does not block the tasks behind it.
    """

    row: Hashable
    scopes: Sequence[str]
    weight: int = 1
    turn: tuple[Any, ...] = ()
    others: Sequence[str] = ()

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
        needs = request.in_scope(scope) + self._kept(scope, request)
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
        found = [self.places[scope]] if scope in self.places else []
        if scope in self.tokens:
            found.append(whole(self._tokens(scope, AdmissionRequest(None, ()))))
        return 0 if scope in self.closed else min(found, default=None)

    def take(self, request: AdmissionRequest) -> None:
        """Subtract the task's weight from the capacity and tokens of each of its scopes."""
        for scope in (*request.scopes, *request.others):
            if scope in self.places:
                self.places[scope] -= request.in_scope(scope)
            if scope in self.tokens:
                self.tokens[scope] = self._tokens(scope, request) - request.weight
                self.spent[scope] += request.weight
        self.forget(request)

    def forget(self, request: AdmissionRequest, but: str | None = None) -> None:
        """Remove the reservations for this task, except in one scope."""
        for scope in [
            scope
            for scope, ahead in self.ahead.items()
            if ahead.row == request.row and scope != but
        ]:
            del self.ahead[scope]

    def _kept(self, scope: str, request: AdmissionRequest) -> int:
        ahead = self.ahead.get(scope)
        return (
            ahead.weight
            if ahead is not None and ahead.row != request.row and ahead.turn < request.turn
            else 0
        )

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
            others = [scope for scope in request.others if capacity.refuses(scope, request)]
            if full is None and not others:
                capacity.take(request)
                released.append(request.row)
            elif full is None:
                elsewhere[request.row] = others
            elif not others and not capacity.exceeds_limit(full, request):
                rows[:] = [row for row in rows if full not in row.scopes]
            if not rows:
                del waiting[name]
    return released, elsewhere


def rotate_after(names: Iterable[str], last: str) -> list[str]:
    """Return the names in order, starting after the one that was served last."""
    found = sorted(names)
    return [name for name in found if name > last] + [name for name in found if name <= last]


def workers_of(concurrency: int) -> int | None:
    """Return how many tasks of a queue one customer may have QUEUED and RUNNING, given the number
    of processes that consume the queue: half of them. None while no worker is known.

    So a customer whose tasks are long or hang cannot occupy all processes.
    """
    return max(1, concurrency // 2) if concurrency else None


def share_of(window: int, tenants: int) -> int:
    """Return how many published tasks of a queue's window one tenant may have, given the number of
    tenants.

    Never more than half of the window, so that a new tenant finds capacity at once.
    """
    return max(min(SMALLEST_SHARE, (window + 1) // 2), window // max(2, tenants))
