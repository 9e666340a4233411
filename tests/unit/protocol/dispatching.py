"""Steps towards the broker: create, claim, publish, republish, and the faults of the broker."""

from __future__ import annotations

from collections.abc import Iterator

from tests.unit.protocol.states import (
    ABSENT,
    FAIR,
    FAULT,
    GATE,
    LOOKED,
    NEXT,
    NOW,
    PENDING,
    QUEUED,
    Case,
    State,
    Step,
    Worker,
    add,
    remove,
    seat,
)
from tests.unit.protocol.writes import commit, reachable


def dispatching(state: State, case: Case) -> Iterator[Step]:
    """Yield the steps of callers, schedulers and the broker."""
    if reachable(state):
        yield from _creating(state, case)
        yield from _claiming(state, case)
    yield from _publishing(state, case)
    yield from _delivering(state, case)


def _creating(state: State, case: Case) -> Iterator[Step]:
    if state.row.status != ABSENT:
        return
    yield Step("create (slow)", FAIR, commit(state, case, status=PENDING))
    created = commit(state, case, status=QUEUED)
    yield Step("create (fast)", FAIR, created._replace(claims=(NOW,)))


def _claiming(state: State, case: Case) -> Iterator[Step]:
    row = state.row
    if row.status == PENDING and case.rules.publish_after_commit:
        claimed = commit(state, case, status=QUEUED)
        yield Step("claim", FAIR, claimed._replace(claims=add(claimed.claims, NOW)))
    if row.status == PENDING and not case.rules.publish_after_commit:
        early = state._replace(claims=add(state.claims, NEXT), messages=add(state.messages, NEXT))
        yield Step("publish before commit", FAIR, early)
        if NEXT in state.claims:
            claimed = commit(state._replace(claims=remove(state.claims, NEXT)), case, status=QUEUED)
            yield Step("claim", FAIR, claimed)
    if row.status == QUEUED and case.rules.rings_again:
        published = state if case.rules.republish_keeps_epoch else commit(state, case)
        yield Step("republish", FAIR, published._replace(messages=add(published.messages, NOW)))


def _publishing(state: State, case: Case) -> Iterator[Step]:
    for age in state.claims:
        released = state._replace(claims=remove(state.claims, age))
        yield Step("publisher dies", FAULT, released)
        if age == NEXT:
            continue
        yield Step("publish", FAIR, released._replace(messages=add(released.messages, age)))
        if age == NOW and state.row.status == QUEUED and reachable(state):
            yield Step("return to pending", FAULT, commit(released, case, status=PENDING))


def _delivering(state: State, case: Case) -> Iterator[Step]:
    idle = [slot for slot, worker in enumerate(state.workers) if worker is None]
    for age in state.messages:
        taken = state._replace(messages=remove(state.messages, age))
        yield Step("message lost", FAULT, taken)
        for slot in idle:
            yield Step("deliver", FAIR, seat(taken, slot, Worker(GATE, age)))
            if case.world.doubles:
                yield Step("deliver and keep", FAULT, seat(state, slot, Worker(GATE, age)))
    if case.world.takes and state.row.status == PENDING and reachable(state):
        for slot in idle:
            yield Step("look", FAIR, seat(state, slot, Worker(LOOKED, NOW)))
