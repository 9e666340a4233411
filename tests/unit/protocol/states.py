"""The state of the model: the task, the messages and requests on their way, and the workers.

Epochs are kept as *ages*: 0 is the task's current epoch, 1 the epoch before its last change of
owner, -1 the next one. Only equality is ever tested, so ages above `OLD` are one age, and the model
is finite without a bound on its length. Run ids are random, so two runs never share one. A run id
is kept as the slot whose current run wrote it, and becomes `NO_OWNER` when that run has left. The
clock is left out: a due time or the lease of a paused process may expire at any moment.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Literal, NamedTuple

ABSENT = "ABSENT"
PENDING = "PENDING"
QUEUED = "QUEUED"
RUNNING = "RUNNING"
SUCCESS = "SUCCESS"
FAILED = "FAILED"
CANCELLED = "CANCELLED"
EXPIRED = "EXPIRED"
TERMINAL = frozenset({SUCCESS, FAILED, CANCELLED, EXPIRED})

UP = "UP"
DOWN = "DOWN"
BACK = "BACK"  # reachable again, but the monitor's contact has not yet lasted a full threshold

LOOKED = "LOOKED"  # read a PENDING task, about to start it
GATE = "GATE"  # received a message, about to start
UNSURE = "UNSURE"  # wrote its start and got no reply
BODY = "BODY"
CLASS = "CLASS"  # the body has ended, the task class records it
SIGNAL = "SIGNAL"  # the task class has given up, the signal records it
OVER = "OVER"  # the ending will not be recorded, yet the heartbeat continues (mutants only)

DONE = "DONE"
ERROR = "ERROR"
IGNORE = (  # an ending that only the task class sees; here it counts as an error that is not retryable
    "IGNORE"
)

MAX_ATTEMPTS = 2
MAX_CRASHES = 2
NO_OWNER = -1
NEXT = -1
NOW = 0
OLD = 2

Kind = Literal["fair", "fault", "choice"]
FAIR: Kind = "fair"  # happens eventually in a system without further faults
FAULT: Kind = "fault"
CHOICE: Kind = "choice"  # may happen; nothing may depend on it


class Row(NamedTuple):
    """The columns that matter. `attempts` counts the starts since the budgets were last reset."""

    status: str = ABSENT
    attempts: int = 0
    failures: int = 0
    crashes: int = 0
    run: int = NO_OWNER
    node: int = NO_OWNER
    cancel_asked: bool = False
    lease_over: bool = False
    open_letters: int = 0


class Worker(NamedTuple):
    """The state of one process: its position, the epoch of its guards, how its body ended."""

    step: str
    age: int
    outcome: str = ""
    beating: bool = False
    logged: bool = False  # the log entry of its ending exists, whatever reply it got


class Obituary(NamedTuple):
    """The state of a parent with a dead child: where the child ran, and the age of the run that its
    message would have started.
    """

    node: int
    age: int


class Commit(NamedTuple):
    """The task before its last commit, for a failover that loses this commit."""

    row: Row
    raised: bool


class State(NamedTuple):
    """One state of the whole system. `started`, `ended` and `violation` are used by the judge only."""

    row: Row = Row()
    claims: tuple[int, ...] = ()  # ages claimed (or created QUEUED) and not yet published
    messages: tuple[int, ...] = ()  # ages of the messages that the broker holds
    workers: tuple[Worker | None, Worker | None] = (None, None)
    obituary: Obituary | None = None
    database: str = UP
    last_commit: Commit | None = None
    started: int = 0
    ended: bool = True
    violation: str = ""


class Step(NamedTuple):
    """One possible step out of a state."""

    name: str
    kind: Kind
    state: State


@dataclass(frozen=True)
class Rules:
    """The guards of the protocol. A mutant removes one of them."""

    publish_after_commit: bool = True
    rings_again: bool = True
    republish_keeps_epoch: bool = True
    start_checks_status: bool = True
    start_checks_epoch: bool = True
    start_reads_back: str = "run_id"  # or "node", or "nothing": the lost reply counts as a success
    take_is_guarded: bool = True
    take_raises_epoch: bool = True
    counts_at_start: bool = True
    class_tells: bool = True
    signal_tells: bool = True
    told_flag: bool = True
    ending_checks_status: bool = True
    ending_checks_epoch: bool = True
    ending_checks_run_id: bool = True
    ending_reads_back: str = "log"  # or "row", or "nothing": a refused recording counts as fenced
    leaves_heartbeat: bool = True
    self_fence_keeps_beating: bool = True
    lose_raises_epoch: bool = True
    lose_counts_crash: bool = True
    grace: bool = True
    parent_tells: bool = True
    parent_checks_process: bool = True
    retry_heeds_cancel: bool = True
    replay_clears_cancel: bool = True
    letter_with_failure: bool = True


@dataclass(frozen=True)
class World:
    """The faults beside the core ones (death of processes, lost messages, late publishes, pauses,
    return_to_pending).
    """

    takes: bool = False
    undoes: bool = False  # starts of a batch whose function was not called yet
    doubles: bool = False  # messages delivered more than once
    doubts: bool = False  # writes and replies that get lost
    parents: bool = False
    outages: bool = False
    operator: bool = False
    judges_parents: bool = (
        True  # false if a parent may end a living run, provided that nothing worse follows
    )
    failover: bool = False  # of the database, losing its last commit
    trusts_commits: bool = (
        True  # judge starts and endings too; false if an acknowledged COMMIT may be lost
    )


@dataclass(frozen=True)
class Case:
    """The rules together with the world in which they are checked."""

    name: str
    world: World
    rules: Rules = field(default_factory=Rules)


def add(ages: tuple[int, ...], age: int) -> tuple[int, ...]:
    """Return the sorted ages with one more. Equal messages need no count, since delivery may keep
    them.
    """
    return ages if age in ages else tuple(sorted((*ages, age)))


def remove(ages: tuple[int, ...], age: int) -> tuple[int, ...]:
    """Return the ages without one of them."""
    return tuple(other for other in ages if other != age)


def seat(state: State, slot: int, worker: Worker | None) -> State:
    """Put a worker into its slot. With `None` its run leaves, and its run id then belongs to no
    run.
    """
    left, right = state.workers
    workers = (worker, right) if slot == 0 else (left, worker)
    if worker is not None:
        return state._replace(workers=workers)
    row, last = state.row, state.last_commit
    if row.run != slot and last is None:
        return state._replace(workers=workers)
    if row.run == slot:
        row = row._replace(run=NO_OWNER)
    if last is not None and last.row.run == slot:
        last = last._replace(row=last.row._replace(run=NO_OWNER))
    return state._replace(workers=workers, row=row, last_commit=last)


def shift(state: State, by: int, case: Case) -> State:
    """Make everything that contains an epoch older (or, after a failover, younger)."""
    # A parent may infer a run's epoch from an old message, and a failover makes old epochs younger:
    # only then do ages
    # above 1 differ from 1.
    of_runs = OLD if case.world.failover else NOW + 1
    of_rings = OLD if case.world.parents else of_runs
    left, right = state.workers
    known = state.obituary
    return state._replace(
        claims=_shifted(state.claims, by, of_rings),
        messages=_shifted(state.messages, by, of_rings),
        workers=(_aged(left, by, of_runs, of_rings), _aged(right, by, of_runs, of_rings)),
        obituary=None if known is None else pending(known._replace(age=known.age + by)),
    )


def pending(obituary: Obituary) -> Obituary | None:
    """Return the parent's record while it may still be accepted: an epoch that has passed never
    returns.
    """
    return None if obituary.age > NOW else obituary


@cache
def _shifted(ages: tuple[int, ...], by: int, oldest: int) -> tuple[int, ...]:
    return tuple(sorted({min(age + by, oldest) for age in ages}))


@cache
def _aged(worker: Worker | None, by: int, of_runs: int, of_rings: int) -> Worker | None:
    if worker is None:
        return None
    return worker._replace(age=min(worker.age + by, of_rings if worker.step == GATE else of_runs))


def accuse(state: State, charge: str) -> State:
    """Record the first violation on a path."""
    return state if state.violation else state._replace(violation=charge)


def fold(state: State) -> State:
    """Return the state or its mirror image, the same one for both: the two workers are
    interchangeable.
    """
    left, right = state.workers
    if (left or ()) >= (right or ()):
        return state
    last, known = state.last_commit, state.obituary
    return state._replace(
        row=_mirrored(state.row),
        workers=(right, left),
        obituary=known if known is None else known._replace(node=1 - known.node),
        last_commit=last if last is None else last._replace(row=_mirrored(last.row)),
    )


@cache
def _mirrored(row: Row) -> Row:
    run, node = row.run, row.node
    return row._replace(
        run=run if run == NO_OWNER else 1 - run, node=node if node == NO_OWNER else 1 - node
    )
