"""Who may go: what is free in each scope, rows that ask, turns, and a tenant's fair share. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django_durable_tasks.rules.limits.options import Rate, whole

SMALLEST_SHARE = 10
_BY_ROWS = ("share:", "window:")
"""Scopes in which each row counts for one, whatever it weighs: what they part is room on the
broker, or turns.
"""


@dataclass(frozen=True, slots=True)
class Asking:
    """A row that asks to go: the scopes in which it counts, its weight, and its turn (the smaller
    goes first).

    ``others``: scopes in which it counts beside those of its line; what one of these refuses holds
    up nobody behind it.
    """

    row: Hashable
    scopes: Sequence[str]
    weight: int = 1
    turn: tuple[Any, ...] = ()
    others: Sequence[str] = ()

    def in_scope(self, scope: str) -> int:
        """Return how much of a scope the row takes."""
        return 1 if scope.startswith(_BY_ROWS) else self.weight


@dataclass(slots=True)
class Room:
    """What is free in each scope while a claim is judged; a scope that is named nowhere is free.

    ``tokens``: all that have gathered, of which ``rates`` says how many count. ``ahead``: the heavy
    row of each scope whose turn it is; rows of later turns leave what it needs. ``heaviest``: what
    can ever go.
    """

    places: dict[str, int] = field(default_factory=dict)
    tokens: dict[str, float] = field(default_factory=dict)
    rates: dict[str, Rate] = field(default_factory=dict)
    heaviest: dict[str, int] = field(default_factory=dict)
    ahead: dict[str, Asking] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)
    spent: Counter[str] = field(default_factory=Counter)
    known: set[str] = field(default_factory=set)

    def refuses(self, scope: str, asking: Asking) -> bool:
        """Return whether the scope has no room for this row, beside what belongs to the row ahead
        of it.
        """
        needs = asking.in_scope(scope) + self._kept(scope, asking)
        if scope in self.closed or self.places.get(scope, needs) < needs:
            return True
        return scope in self.tokens and whole(self._tokens(scope, asking)) < needs

    def waits_in_vain(self, scope: str, asking: Asking) -> bool:
        """Return whether the row is heavier than the whole limit."""
        return asking.in_scope(scope) > self.heaviest.get(scope, asking.weight)

    def left(self, scope: str) -> int | None:
        """Return how many rows of weight 1 the scope lets in at most; None where it does
        not say.
        """
        found = [self.places[scope]] if scope in self.places else []
        if scope in self.tokens:
            found.append(whole(self._tokens(scope, Asking(None, ()))))
        return 0 if scope in self.closed else min(found, default=None)

    def take(self, asking: Asking) -> None:
        """Take the row's weight in places and tokens of each of its scopes."""
        for scope in (*asking.scopes, *asking.others):
            if scope in self.places:
                self.places[scope] -= asking.in_scope(scope)
            if scope in self.tokens:
                self.tokens[scope] = self._tokens(scope, asking) - asking.weight
                self.spent[scope] += asking.weight
        self.forget(asking)

    def forget(self, asking: Asking, but: str | None = None) -> None:
        """Keep nothing for this row any more, but in one scope."""
        for scope in [
            scope for scope, ahead in self.ahead.items() if ahead.row == asking.row and scope != but
        ]:
            del self.ahead[scope]

    def _kept(self, scope: str, asking: Asking) -> int:
        ahead = self.ahead.get(scope)
        return (
            ahead.weight
            if ahead is not None and ahead.row != asking.row and ahead.turn < asking.turn
            else 0
        )

    def _tokens(self, scope: str, asking: Asking) -> float:
        tokens, rate, ahead = self.tokens[scope], self.rates.get(scope), self.ahead.get(scope)
        heaviest = max(asking.weight, 0 if ahead is None else ahead.weight)
        return tokens if rate is None else min(tokens, rate.holds(heaviest))


def admitted(rows: Sequence[Asking], room: Room) -> dict[Hashable, str]:
    """Let rows in, in order, and return those that are refused, with the first scope that did.

    A row takes of its scopes all or nothing, so that what one limit refuses costs the others
    nothing. Behind a row that is too heavy for what is free now, nobody of its scope goes: else the
    light ones would keep it waiting for ever.
    """
    refused: dict[Hashable, str] = {}
    for asking in rows:
        full = next((scope for scope in asking.scopes if room.refuses(scope, asking)), None)
        if full is None:
            room.take(asking)
            continue
        refused[asking.row] = full
        room.forget(asking, but=full)
        if asking.weight > 1 and full not in room.ahead and not room.waits_in_vain(full, asking):
            room.closed.add(full)
    return refused


# Turns --------------------------------------------------------------------------------------------


def going(
    lines: Mapping[str, Sequence[Asking]], room: Room, limit: int
) -> tuple[list[Hashable], dict[Hashable, list[str]]]:
    """Return at most so many rows that may go, one of each line by turns, until the line's next row
    finds no room.

    Lines go in their order; what a row takes, it takes of the scopes that it names. A row that
    could not go anyway closes no line: it is heavier than the whole limit, or other scopes refuse
    it. Those for which its line had room are returned with the scopes that refused them.
    """
    gone: list[Hashable] = []
    elsewhere: dict[Hashable, list[str]] = {}
    waiting = {name: list(reversed(rows)) for name, rows in lines.items() if rows}
    while waiting and len(gone) < limit:
        for name, rows in list(waiting.items()):
            if len(gone) >= limit:
                break
            asking = rows.pop()
            full = next((scope for scope in asking.scopes if room.refuses(scope, asking)), None)
            others = [scope for scope in asking.others if room.refuses(scope, asking)]
            if full is None and not others:
                room.take(asking)
                gone.append(asking.row)
            elif full is None:
                elsewhere[asking.row] = others
            elif not others and not room.waits_in_vain(full, asking):
                rows[:] = [row for row in rows if full not in row.scopes]
            if not rows:
                del waiting[name]
    return gone, elsewhere


def from_turn(names: Iterable[str], last: str) -> list[str]:
    """Return the names in order, beginning behind the last one whose turn it was."""
    found = sorted(names)
    return [name for name in found if name > last] + [name for name in found if name <= last]


def share_of(window: int, tenants: int) -> int:
    """Return how many published rows of a queue's window one of so many tenants may hold.

    Never more than half: whoever comes next finds room, whether or not anybody has seen its rows.
    """
    return max(min(SMALLEST_SHARE, (window + 1) // 2), window // max(2, tenants))
