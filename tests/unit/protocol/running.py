"""Steps of the workers: gate, body, the two code paths that record an ending, and the parent that
records a dead child.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.unit.protocol.states import (
    BODY,
    CLASS,
    DONE,
    ERROR,
    FAIR,
    FAULT,
    GATE,
    IGNORE,
    LOOKED,
    NO_OWNER,
    NOW,
    OVER,
    PENDING,
    QUEUED,
    RUNNING,
    SIGNAL,
    UNSURE,
    Case,
    Obituary,
    State,
    Step,
    Worker,
    accuse,
    pending,
    seat,
)
from tests.unit.protocol.writes import (
    BODY_WITHOUT_START,
    FENCED_OWN_ENDING,
    PARENT_LOST_A_LIVE_RUN,
    commit,
    end,
    living_owner,
    lose,
    may_end,
    may_start,
    may_take,
    reachable,
    start,
    undo_start,
)


def running(state: State, case: Case) -> Iterator[Step]:
    """Yield the steps of the two workers and of their parents."""
    for slot, worker in enumerate(state.workers):
        if worker is None:
            continue
        yield from _dying(state, case, slot, worker)
        if worker.step in (LOOKED, GATE):
            yield from _starting(state, case, slot, worker)
        elif worker.step == UNSURE:
            yield from _reading_back(state, case, slot, worker)
        elif worker.step == BODY:
            yield from _finishing(state, case, slot, worker)
        elif worker.step in (CLASS, SIGNAL):
            yield from _recording(state, case, slot, worker)
    yield from _parent_records(state, case)


def _dying(state: State, case: Case, slot: int, worker: Worker) -> Iterator[Step]:
    gone = seat(state, slot, None)
    yield Step("node dies", FAULT, gone)
    if case.world.parents and worker.step != LOOKED:
        age = worker.age - 1 if worker.step == GATE else worker.age
        yield Step("child dies", FAULT, gone._replace(obituary=pending(Obituary(slot, age))))


def _starting(state: State, case: Case, slot: int, worker: Worker) -> Iterator[Step]:
    if not reachable(state):
        yield Step("drop", FAIR, seat(state, slot, None))
        return
    rules = case.rules
    by_ring = worker.step == GATE
    if case.world.doubts:
        doubtful = Worker(UNSURE, worker.age - 1 if by_ring else worker.age)
        yield Step("write of start is lost", FAULT, seat(state, slot, doubtful))
    if not (may_start(state, worker, rules) if by_ring else may_take(state, worker, rules)):
        yield Step("drop", FAIR, seat(state, slot, None))
        return
    raises = by_ring or rules.take_raises_epoch
    started = start(state, case, slot, raises=raises)
    name = "start" if by_ring else "take"
    yield Step(name, FAIR, seat(started, slot, Worker(BODY, NOW, beating=True)))
    if case.world.doubts:
        yield Step(f"reply of {name} is lost", FAULT, seat(started, slot, Worker(UNSURE, NOW)))
    if by_ring and worker.age == NOW and state.row.status == QUEUED:
        yield Step(
            "return to pending", FAULT, seat(commit(state, case, status=PENDING), slot, None)
        )


def _reading_back(state: State, case: Case, slot: int, worker: Worker) -> Iterator[Step]:
    if not reachable(state):
        return
    row = state.row
    own = row.status == RUNNING and row.run == slot
    believed = {"run_id": own, "node": row.status == RUNNING and row.node == slot, "nothing": True}[
        case.rules.start_reads_back
    ]
    if not believed:
        yield Step("read back: not started", FAIR, seat(state, slot, None))
        return
    going = seat(state, slot, Worker(BODY, worker.age, beating=True))
    yield Step("read back: started", FAIR, going if own else accuse(going, BODY_WITHOUT_START))


def _finishing(state: State, case: Case, slot: int, worker: Worker) -> Iterator[Step]:
    undone = case.world.undoes and reachable(state) and not state.row.cancel_asked
    if undone and may_end(state, slot, worker, case.rules):
        yield Step("undo start", FAIR, seat(undo_start(state, case), slot, None))
    for outcome in (DONE, ERROR, IGNORE):
        over = worker._replace(step=CLASS, outcome=outcome)
        if not case.rules.class_tells:
            over = over._replace(step=OVER if outcome == IGNORE else SIGNAL)
        yield Step(f"body ends: {outcome}", FAIR, seat(state, slot, over))


def _recording(state: State, case: Case, slot: int, worker: Worker) -> Iterator[Step]:
    yield Step("recording is given up", FAULT, seat(state, slot, _passed_on(worker, case)))
    if not reachable(state):
        return
    if not may_end(state, slot, worker, case.rules):
        yield _refused(state, case, slot, worker)
        return
    written = end(state, case, slot, worker)
    name = _name_of_ending(worker, written)
    heard = written.workers[slot]
    assert heard is not None
    logged = heard._replace(logged=True)
    yield Step(name, FAIR, seat(written, slot, _recorded(logged, case)))
    if case.world.doubts:
        yield Step(f"reply of {name} is lost", FAULT, seat(written, slot, logged))


def _name_of_ending(worker: Worker, written: State) -> str:
    if worker.outcome == DONE:
        return "succeed"
    return "retry" if written.row.status == PENDING else "exhaust"


def _refused(state: State, case: Case, slot: int, worker: Worker) -> Step:
    known = {"log": worker.logged, "row": state.row.run == slot, "nothing": False}[
        case.rules.ending_reads_back
    ]
    closed = seat(state, slot, _recorded(worker, case))
    if worker.logged and not known:
        closed = accuse(closed, FENCED_OWN_ENDING)
    return Step("read back: recorded" if known else "fenced", FAIR, closed)


def _recorded(worker: Worker, case: Case) -> Worker | None:
    """Close the run after its ending is known. Without the flag the signal records it once more."""
    if case.rules.told_flag or worker.step == SIGNAL or worker.outcome == IGNORE:
        return None
    return worker._replace(step=SIGNAL, beating=False)


def _passed_on(worker: Worker, case: Case) -> Worker | None:
    """Leave the recording to the signal. The run leaves the heartbeat in any case."""
    beating = worker.beating and not case.rules.leaves_heartbeat
    if worker.step == CLASS and worker.outcome != IGNORE and case.rules.signal_tells:
        return worker._replace(step=SIGNAL, beating=beating)
    return worker._replace(step=OVER) if beating else None


def _parent_records(state: State, case: Case) -> Iterator[Step]:
    row, rules, known = state.row, case.rules, state.obituary
    if known is None:
        return
    read = state._replace(obituary=None)
    yield Step("parent dies", FAULT, read)
    if not rules.parent_tells or not reachable(state):
        return
    fits = (
        row.status == RUNNING
        and known.age == NOW
        and known.node == row.node
        and (row.run == NO_OWNER or not rules.parent_checks_process)
    )
    if not fits:
        yield Step("parent is fenced", FAIR, read)
        return
    lost = lose(read, case)
    if case.world.judges_parents and living_owner(state):
        lost = accuse(lost, PARENT_LOST_A_LIVE_RUN)
    yield Step("lose (parent)", FAIR, lost)
