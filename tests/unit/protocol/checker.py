"""Breadth-first search over every reachable state of one task.

A violation is a state that no order of events may reach. A dead end is a state from which no final
status can be reached any more without a fault or an operator: the task would stay open
indefinitely.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.unit.protocol.dispatching import dispatching
from tests.unit.protocol.running import running
from tests.unit.protocol.states import FAIR, TERMINAL, Case, State, Step, fold
from tests.unit.protocol.surroundings import around

DEAD_END = "no terminal status can be reached any more"
CEILING = 2_000_000


@dataclass
class Found:
    """The result of an exploration: all states in the order of discovery, and the transitions of
    status by name.
    """

    states: list[State] = field(default_factory=list)
    parents: list[tuple[int, str]] = field(default_factory=list)
    before: list[list[int]] = field(default_factory=list)  # by a fair step only
    moves: set[tuple[str, str, str]] = field(default_factory=set)


@dataclass(frozen=True)
class Verdict:
    """The result of one case. `violation` is empty if the protocol holds."""

    states: int
    violation: str
    trace: tuple[str, ...]
    moves: frozenset[tuple[str, str, str]]


def steps(state: State, case: Case) -> Iterator[Step]:
    """Yield every possible next step."""
    yield from dispatching(state, case)
    yield from running(state, case)
    yield from around(state, case)


def check(case: Case) -> Verdict:
    """Explore a case until its first violation, otherwise completely, and search for dead ends.

    Raises `OverflowError` above `CEILING` states.
    """
    found = Found()
    # The states contain no cycles, and the collector would go through all of them again and again.
    collects = gc.isenabled()
    gc.disable()
    try:
        violated = _explore(case, found)
    finally:
        if collects:
            gc.enable()
    if violated is not None:
        return _verdict(found, violated, found.states[violated].violation)
    dead_end = _first_dead_end(found)
    return _verdict(found, dead_end, "" if dead_end is None else DEAD_END)


def _explore(case: Case, found: Found) -> int | None:
    numbers: dict[State, int] = {}
    waiting: deque[int] = deque()

    def number_of(state: State, parent: int, name: str) -> int:
        number = numbers.setdefault(state, len(numbers))
        if number == len(found.states):
            found.states.append(state)
            found.parents.append((parent, name))
            found.before.append([])
            waiting.append(number)
        return number

    number_of(State(), -1, "")
    while waiting:
        here = waiting.popleft()
        state = found.states[here]
        for name, kind, step in steps(state, case):
            following = fold(step)
            there = number_of(following, here, name)
            found.moves.add((name, state.row.status, following.row.status))
            if following.violation:
                return there
            if kind == FAIR:
                found.before[there].append(here)
        if len(numbers) > CEILING:
            raise OverflowError(case.name)
    return None


def _first_dead_end(found: Found) -> int | None:
    hopeful = [state.row.status in TERMINAL for state in found.states]
    waiting = [number for number, hope in enumerate(hopeful) if hope]
    while waiting:
        for earlier in found.before[waiting.pop()]:
            if not hopeful[earlier]:
                hopeful[earlier] = True
                waiting.append(earlier)
    return None if all(hopeful) else hopeful.index(False)


def _verdict(found: Found, number: int | None, violation: str) -> Verdict:
    trace: list[str] = []
    at = number or 0
    while at > 0:
        at, name = found.parents[at]
        trace.append(name)
    return Verdict(len(found.states), violation, tuple(reversed(trace)), frozenset(found.moves))
