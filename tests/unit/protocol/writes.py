"""The guarded UPDATEs of the protocol, and the judge that checks each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.unit.protocol.states import (
    BODY,
    CANCELLED,
    CLASS,
    DONE,
    DOWN,
    FAILED,
    IGNORE,
    MAX_ATTEMPTS,
    MAX_CRASHES,
    NO_OWNER,
    NOW,
    PENDING,
    QUEUED,
    RUNNING,
    SUCCESS,
    TERMINAL,
    Case,
    Commit,
    Row,
    Rules,
    State,
    Worker,
    accuse,
    shift,
)

Write = Callable[[State], State]

TERMINAL_CHANGED = "a terminal status was changed"
STARTED_TWICE = "an attempt was started twice"
ENDED_TWICE = "an attempt was ended twice"
FOREIGN_ENDING = "an ending was accepted from a run that does not own the row"
BODY_WITHOUT_START = "a body ran without an accepted start"
LETTERS = "FAILED without exactly one open dead letter, or a dead letter without FAILED"
BUDGET = "a budget was exceeded"
OUTAGE_LOST_A_RUN = "an outage lost a run"
PARENT_LOST_A_LIVE_RUN = "a parent lost a run whose process lives"
FENCED_OWN_ENDING = "an accepted ending was recorded as fenced"


def commit(
    state: State, case: Case, *, raises: bool = True, operator: bool = False, **columns: Any
) -> State:
    """Write columns of the task, increment its epoch, and judge the result."""
    old = state.row
    row = old._replace(**columns)
    if row.status != RUNNING:
        row = row._replace(node=NO_OWNER, lease_over=False)
    written = state._replace(
        row=row, last_commit=Commit(old, raises) if case.world.failover else None
    )
    if raises:
        written = shift(written, 1, case)
    if old.status in TERMINAL and row.status != old.status and not operator:
        written = accuse(written, TERMINAL_CHANGED)
    return _judged(written)


def _judged(state: State) -> State:
    row = state.row
    if row.open_letters != (row.status == FAILED):
        state = accuse(state, LETTERS)
    starts_allowed = MAX_ATTEMPTS + MAX_CRASHES - 1
    if row.failures > MAX_ATTEMPTS or row.crashes > MAX_CRASHES or row.attempts > starts_allowed:
        state = accuse(state, BUDGET)
    if row.status in TERMINAL and not state.violation:
        # A replay resets the budgets, so the used budgets of an ended task distinguish no two states.
        state = state._replace(row=row._replace(attempts=0, failures=0, crashes=0), started=0)
    return state


def reachable(state: State) -> bool:
    """Return whether the database answers."""
    return state.database != DOWN


def may_start(state: State, worker: Worker, rules: Rules) -> bool:
    """Return whether the guard of `start` accepts."""
    row = state.row
    status_fits = row.status == QUEUED or (
        not rules.start_checks_status and row.status not in TERMINAL
    )
    return (
        status_fits and (worker.age == NOW or not rules.start_checks_epoch) and not row.cancel_asked
    )


def may_take(state: State, worker: Worker, rules: Rules) -> bool:
    """Return whether the guard of `take` accepts."""
    row = state.row
    if not rules.take_is_guarded:
        return row.status not in TERMINAL
    return row.status == PENDING and worker.age == NOW and not row.cancel_asked


def may_end(state: State, slot: int, worker: Worker, rules: Rules) -> bool:
    """Return whether the guard of every ending accepts."""
    row = state.row
    return (
        (row.status == RUNNING or not rules.ending_checks_status)
        and (worker.age == NOW or not rules.ending_checks_epoch)
        and (row.run == slot or not rules.ending_checks_run_id)
    )


def start(state: State, case: Case, slot: int, *, raises: bool = True) -> State:
    """Write the start of a run. The judge counts it against its attempt."""
    row = state.row
    number = row.attempts + 1
    written = commit(
        state,
        case,
        raises=raises,
        status=RUNNING,
        attempts=number if case.rules.counts_at_start else row.attempts,
        run=slot,
        node=slot,
        lease_over=False,
    )
    if not case.world.trusts_commits:
        return written
    if number <= state.started or not state.ended:
        written = accuse(written, STARTED_TWICE)
    return written._replace(started=number, ended=False)


def undo_start(state: State, case: Case) -> State:
    """Write that a start is undone.

    The model counts the starts that were not undone, so that it is finite.
    """
    number = state.row.attempts - 1
    written = commit(state, case, status=PENDING, attempts=number)
    return written._replace(started=number, ended=True) if case.world.trusts_commits else written


def end(state: State, case: Case, slot: int, worker: Worker) -> State:
    """Write succeed, retry or exhaust. The judge checks whose ending it was."""
    row, rules = state.row, case.rules
    columns: dict[str, Any] = {}
    if not rules.counts_at_start:
        columns["attempts"] = row.attempts + 1
    if worker.outcome == DONE:
        columns["status"] = SUCCESS
    else:
        failures = row.failures + 1
        hopeless = failures >= MAX_ATTEMPTS or worker.outcome == IGNORE
        columns |= _given_up(row, rules) if hopeless else _waiting(row, rules)
        columns["failures"] = failures
    owned = row.status == RUNNING and row.run == slot
    written = _ended(state, commit(state, case, **columns), case)
    return written if owned else accuse(written, FOREIGN_ENDING)


def lose(state: State, case: Case) -> State:
    """Write the loss of a run, by whichever process detected it."""
    row, rules = state.row, case.rules
    crashes = row.crashes + 1 if rules.lose_counts_crash else row.crashes
    columns = _given_up(row, rules) if crashes >= MAX_CRASHES else _waiting(row, rules)
    return _ended(
        state, commit(state, case, raises=rules.lose_raises_epoch, crashes=crashes, **columns), case
    )


def _waiting(row: Row, rules: Rules) -> dict[str, Any]:
    return {"status": CANCELLED if row.cancel_asked and rules.retry_heeds_cancel else PENDING}


def _given_up(row: Row, rules: Rules) -> dict[str, Any]:
    if row.cancel_asked:
        return {"status": CANCELLED}
    return {
        "status": FAILED,
        "open_letters": row.open_letters + 1 if rules.letter_with_failure else 0,
    }


def _ended(before: State, written: State, case: Case) -> State:
    if not case.world.trusts_commits:
        return written
    if before.ended:
        written = accuse(written, ENDED_TWICE)
    return written._replace(ended=True)


def living_owner(state: State) -> Worker | None:
    """Return the worker that runs, or is ending, exactly the run that the task names."""
    if state.row.status != RUNNING or state.row.run == NO_OWNER:
        return None
    worker = state.workers[state.row.run]
    return worker if worker is not None and worker.step in (BODY, CLASS) else None


def beaten(state: State) -> bool:
    """Return whether some process renews the lease of the task's run."""
    if state.row.status != RUNNING or state.row.run == NO_OWNER:
        return False
    worker = state.workers[state.row.run]
    return worker is not None and worker.beating
