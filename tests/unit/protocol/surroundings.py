"""Steps around the task: the maintenance job and its grace time, outages, operators, failover of
the database.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.unit.protocol.states import (
    BACK,
    BODY,
    CANCELLED,
    CHOICE,
    DOWN,
    EXPIRED,
    FAILED,
    FAIR,
    FAULT,
    PENDING,
    QUEUED,
    RUNNING,
    SUCCESS,
    TERMINAL,
    UP,
    Case,
    Commit,
    State,
    Step,
    accuse,
    seat,
    shift,
)
from tests.unit.protocol.writes import (
    OUTAGE_LOST_A_RUN,
    beaten,
    commit,
    living_owner,
    lose,
    reachable,
)


def around(state: State, case: Case) -> Iterator[Step]:
    """Yield the steps of maintenance, time, operators and the database itself."""
    if state.row.status == RUNNING and reachable(state):
        yield from _sweeping(state, case)
    if case.world.outages:
        yield from _outage(state, case)
    if case.world.operator and reachable(state):
        yield from _operator(state, case)
    if state.last_commit is not None:
        yield Step("fail-over forgets a commit", FAULT, _forgotten(state, state.last_commit, case))


def _sweeping(state: State, case: Case) -> Iterator[Step]:
    owner = living_owner(state)
    if state.database == BACK:
        if state.row.lease_over and not case.rules.grace:
            lost = lose(state, case)
            yield Step("lose (sweeper)", FAIR, accuse(lost, OUTAGE_LOST_A_RUN) if owner else lost)
        return
    if beaten(state):
        yield Step("lose (paused process)", FAULT, lose(state, case))
        return
    lost = lose(state, case)
    yield Step("lose (sweeper)", FAIR, accuse(lost, OUTAGE_LOST_A_RUN) if owner else lost)


def _outage(state: State, case: Case) -> Iterator[Step]:
    row = state.row
    if state.database != DOWN:
        yield Step("outage begins", FAULT, state._replace(database=DOWN))
    else:
        yield Step("outage ends", FAIR, state._replace(database=BACK))
        if row.status == RUNNING and not row.lease_over:
            yield Step("lease runs out", FAIR, state._replace(row=row._replace(lease_over=True)))
        yield from _fencing_itself(state, case)
    if state.database == BACK:
        if row.lease_over and beaten(state):
            yield Step("heartbeat", FAIR, state._replace(row=row._replace(lease_over=False)))
        else:
            settled = state._replace(database=UP, row=row._replace(lease_over=False))
            yield Step("contact lasted a threshold", FAIR, settled)


def _fencing_itself(state: State, case: Case) -> Iterator[Step]:
    if case.rules.self_fence_keeps_beating:
        return
    for slot, worker in enumerate(state.workers):
        if worker is not None and worker.step == BODY and worker.beating:
            yield Step(
                "run fences itself", FAULT, seat(state, slot, worker._replace(beating=False))
            )


def _operator(state: State, case: Case) -> Iterator[Step]:
    row, rules = state.row, case.rules
    if row.status in (PENDING, QUEUED):
        yield Step("cancel", CHOICE, commit(state, case, status=CANCELLED))
        yield Step("expire", CHOICE, commit(state, case, status=EXPIRED))
    if row.status == RUNNING and not row.cancel_asked:
        yield Step(
            "cancel (asked for)", CHOICE, commit(state, case, raises=False, cancel_asked=True)
        )
    if row.status in (FAILED, CANCELLED, EXPIRED):
        asked = row.cancel_asked and not rules.replay_clears_cancel
        fresh: dict[str, Any] = {
            "attempts": 0,
            "failures": 0,
            "crashes": 0,
            "open_letters": 0,
            "cancel_asked": asked,
        }
        replayed = commit(state, case, operator=True, status=PENDING, **fresh)
        yield Step("replay", CHOICE, replayed._replace(started=0))
    if row.status != SUCCESS and row.status in TERMINAL | {PENDING, QUEUED, RUNNING}:
        done = commit(state, case, operator=True, status=SUCCESS, open_letters=0)
        yield Step("force complete", CHOICE, done._replace(ended=True))


def _forgotten(state: State, last: Commit, case: Case) -> State:
    older = shift(state, -1, case) if last.raised else state
    return older._replace(row=last.row, last_commit=None)
