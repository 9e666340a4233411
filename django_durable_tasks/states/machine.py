"""The state machine of tasks, as data: all transitions between the statuses.

The functions of this package are the only writers. The statuses are in ``choices.py``. The table
and the diagram in the documentation are generated from this module. "Ready", "retrying" and
"overdue" are querysets, not statuses.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from django_durable_tasks.choices import LogStatus, OnOrphan, Status


@dataclass(frozen=True, slots=True)
class Transition:
    """A named transition: its source and target statuses, its guard, and the columns that it
    writes.
    """

    name: str
    sources: frozenset[Status]
    targets: frozenset[Status]
    guard: str
    writes: str


def _move(name: str, sources: str, targets: str, guard: str, writes: str) -> Transition:
    return Transition(
        name,
        frozenset(Status(word) for word in sources.split()),
        frozenset(Status(word) for word in targets.split()),
        guard,
        writes,
    )


_TABLE = (
    _move("create", "", "BLOCKED PENDING QUEUED", "unique keys", "deadline"),
    _move(
        "release",
        "BLOCKED",
        "PENDING QUEUED",
        "the join is met; QUEUED on the fast path",
        "epoch+1, due_at",
    ),
    _move(
        "block",
        "PENDING",
        "BLOCKED",
        "one dependency more; a QUEUED task is returned to PENDING first",
        "epoch+1",
    ),
    _move(
        "fail",
        "BLOCKED",
        "FAILED",
        "the join cannot be met and on_upstream_failure is FAIL",
        "epoch+1, reason, cause, dead letter",
    ),
    _move("force_run", "BLOCKED SKIPPED", "PENDING", "operator, audited", "epoch+1, due_at"),
    _move(
        "edit",
        "BLOCKED PENDING",
        "BLOCKED PENDING",
        "epoch; a QUEUED task is returned to PENDING first",
        "epoch+1, arguments, run_at, due_at",
    ),
    _move(
        "claim",
        "PENDING",
        "QUEUED",
        "due, queue not paused, limits free",
        "epoch+1, due_at = when to republish",
    ),
    _move(
        "take",
        "PENDING",
        "RUNNING",
        "as claim, by the process that will run it",
        "as claim and start at once",
    ),
    _move(
        "undo_start",
        "RUNNING",
        "PENDING",
        "epoch, run_id; the function was not called",
        "epoch+1, due_at as before; no failure or crash counted",
    ),
    _move(
        "republish",
        "QUEUED",
        "QUEUED",
        "the broker has lost messages of the queue; due_at is over, or workers are free",
        "same epoch, later due_at, publish_count",
    ),
    _move("return_to_pending", "QUEUED", "PENDING", "epoch", "epoch+1; no failure counted"),
    _move(
        "start",
        "QUEUED",
        "RUNNING",
        "the message's epoch; not cancelled, expired, paused or a duplicate",
        "epoch+1, attempts+1, run_id, node, lease_until",
    ),
    _move(
        "heartbeat",
        "RUNNING",
        "RUNNING",
        "epoch, run_id",
        "lease_until, progress, position; reads back a cancel request",
    ),
    _move(
        "succeed",
        "RUNNING",
        "SUCCESS",
        "epoch, run_id",
        "epoch+1, result, completed_at, log row, follow-ups",
    ),
    _move(
        "retry",
        "RUNNING",
        "PENDING CANCELLED",
        "epoch, run_id; CANCELLED if asked for",
        "epoch+1, failures+1, due_at = back-off, last_error, log row",
    ),
    _move(
        "exhaust",
        "RUNNING",
        "FAILED CANCELLED",
        "epoch, run_id; no try left or not retryable",
        "epoch+1, dead letter, log row",
    ),
    _move(
        "lose",
        "RUNNING",
        "PENDING FAILED CANCELLED",
        "lease over, or its node is dead",
        "epoch+1, crashes+1 unless others died with it, log row LOST; as FAILED also a dead letter",
    ),
    _move(
        "cancel",
        "BLOCKED PENDING QUEUED RUNNING",
        "CANCELLED",
        "RUNNING gets cancel_requested_at first",
        "epoch+1",
    ),
    _move("skip", "BLOCKED PENDING QUEUED", "SKIPPED", "status", "epoch+1, reason, cause"),
    _move("expire", "BLOCKED PENDING QUEUED", "EXPIRED", "expires_at is over", "epoch+1, reason"),
    _move(
        "replay",
        "FAILED CANCELLED SKIPPED EXPIRED",
        "PENDING BLOCKED",
        "status",
        "epoch+1, both budgets renewed, dead letter closed",
    ),
    _move(
        "rerun",
        "SUCCESS",
        "PENDING BLOCKED",
        "operator: a backfill that reprocesses ALL, a retry of a graph",
        "epoch+1, both budgets renewed",
    ),
    _move(
        "force_complete",
        "BLOCKED PENDING QUEUED RUNNING FAILED CANCELLED SKIPPED EXPIRED",
        "SUCCESS",
        "operator, audited",
        "epoch+1, log row, dead letter closed",
    ),
)

TRANSITIONS: dict[str, Transition] = {move.name: move for move in _TABLE}


# The effect of an ending on the task, and of a node's death on its runs.


# Which runs of a dead node are charged with its death, and when each of them starts again. Pure.
#
# Any of the runs that died together may have ended the process. The first shared crash of a task
# is not counted, because most deaths are those of a machine or a deployment. After the second one
# the tasks start apart: each after the previous one has run for longer than it did before. If
# their node dies again, the task that has not outlived its last crash is charged, if there is
# exactly one. A run that was alone on its node is always charged.


UNCOUNTED_MAX = 10
"""A task whose process died more often than this together with others is charged for each further
death. Otherwise one that ends its process at random times would end processes for ever.
"""
_SPREAD, _SPREAD_MAX = 600.0, 3_600.0
"""Seconds in which all tasks of a dead node start apart after their second shared crash, times the
number of their shared crashes, and the maximum. Long or many tasks start closer together then.
"""


class LostRun(NamedTuple):
    """A run of a dead node: its age when it was found lost (seconds), and for its task the number
    of counted and uncounted crashes, and the age of its last lost run.
    """

    task_id: uuid.UUID
    age: float
    counted: int = 0
    uncounted: int = 0
    last_age: float = 0.0


class Crash(NamedTuple):
    """Whether a crash is counted, and the seconds until the task starts again."""

    is_counted: bool
    delay: float = 0.0


def judged(runs: Sequence[LostRun], uncertainty: float) -> dict[uuid.UUID, Crash]:
    """Return how the runs that died together on one node are judged.

    ``uncertainty``: seconds by which the age of a run when it was found lost may exceed its age
    when it died.
    """
    if len(runs) == 1:
        return {runs[0].task_id: Crash(is_counted=True)}
    apart = [run for run in runs if run.uncounted >= 2]
    suspects = [run.task_id for run in apart if run.age <= run.last_age + uncertainty]
    charged = set(suspects if len(suspects) == 1 else ())
    charged |= {run.task_id for run in apart if run.uncounted >= UNCOUNTED_MAX}
    # Those that were charged before start last: the others have outlived their last crash then.
    again = sorted(
        (run for run in runs if run.uncounted),
        key=lambda run: (run.counted + (run.task_id in charged), run.age),
    )
    # Each of these starts when the previous one has outlived its crash.
    starts, at, most = dict[uuid.UUID, float](), 0.0, 0.0
    for run in again:
        starts[run.task_id] = at
        at += run.age + 2 * uncertainty
        most = max(most, min(_SPREAD * run.uncounted, _SPREAD_MAX))
    scale = min(1.0, most / at) if at else 1.0
    return {
        run.task_id: Crash(run.task_id in charged, scale * starts.get(run.task_id, 0.0))
        for run in runs
    }


# The effect of an ending on the task: applies attempt budgets, retryability and cancellation
# requests.


class EndingKind(StrEnum):
    """How a run ended, as its worker reported it."""

    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    RETRY_ASKED = "RETRY_ASKED"
    IGNORED = "IGNORED"
    REJECTED = "REJECTED"
    REVOKED = "REVOKED"
    POSTPONED = "POSTPONED"
    """The process could not run it. No budget is charged."""
    CRASHED = "CRASHED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """An ending to be written: what happened, and the texts that explain it, already masked and
    truncated.

    ``is_shared``: a crash for which other runs may be the cause, which is not counted. ``queue`` is
    that of the next attempt, if it is another one. ``max_attempts`` replaces that of the task: the
    task function passed its own limit to ``self.retry()``. ``exception`` contains its class and
    arguments, to be rebuilt when the result is read.
    """

    kind: EndingKind
    is_shared: bool = False
    result: str | None = None
    error: str = ""
    error_type: str = ""
    traceback: str = ""
    retryable: bool = True
    delay: float | None = None
    queue: str | None = None
    max_attempts: int | None = None
    exception: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """The state of a running task that the decision depends on.

    ``in_batch``: the run started in a batch, so another task may be the cause of a crash.
    """

    failures: int
    max_attempts: int
    crashes: int
    max_crashes: int
    on_orphan: str
    cancel_requested: bool
    in_batch: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The next status of the task, the status of the log entry, and the budget that is charged."""

    transition: str
    status: Status
    log: LogStatus
    failed: int = 0
    crashed: int = 0
    reason: str = ""


SUCCEEDED = Verdict(transition="succeed", status=Status.SUCCESS, log=LogStatus.SUCCESS)
"""The verdict of a success, which depends neither on its result nor on the budgets."""


def decide(outcome: Outcome, row: Budgets) -> Verdict:
    """Return the transition for this ending."""
    if outcome.kind is EndingKind.SUCCEEDED:
        return SUCCEEDED
    if outcome.kind is EndingKind.CRASHED:
        status, reason, crashed = Status.PENDING, "", 1
        if row.cancel_requested:
            status, reason = Status.CANCELLED, "CANCELLED"
        elif row.on_orphan == OnOrphan.DEAD_LETTER:
            status, reason = Status.FAILED, "ORPHANED"
        elif outcome.is_shared or row.in_batch:
            # The next runs are apart, so that only the task that ends its process is charged.
            crashed = 0
        elif row.crashes + 1 >= row.max_crashes:
            status, reason = Status.FAILED, "CRASHED"
        return Verdict(
            transition="lose", status=status, log=LogStatus.LOST, crashed=crashed, reason=reason
        )
    if outcome.kind in (EndingKind.IGNORED, EndingKind.REVOKED):
        return Verdict(
            transition="cancel",
            status=Status.CANCELLED,
            log=LogStatus.CANCELLED,
            reason=outcome.kind,
        )
    if outcome.kind is EndingKind.POSTPONED and not row.cancel_requested:
        return Verdict(transition="retry", status=Status.PENDING, log=LogStatus.RETRY)
    spent = row.failures + 1 >= (outcome.max_attempts or row.max_attempts)
    again = outcome.retryable and not spent
    name = "retry" if again else "exhaust"
    if row.cancel_requested:
        return Verdict(
            transition=name,
            status=Status.CANCELLED,
            log=LogStatus.CANCELLED,
            failed=1,
            reason="CANCELLED",
        )
    if again:
        return Verdict(transition=name, status=Status.PENDING, log=LogStatus.RETRY, failed=1)
    reason = (
        "REJECTED" if outcome.kind is EndingKind.REJECTED else "EXHAUSTED" if spent else "GAVE_UP"
    )
    return Verdict(
        transition=name, status=Status.FAILED, log=LogStatus.FAILED, failed=1, reason=reason
    )


_VARYING = re.compile(r"0x[0-9a-fA-F]+|[0-9a-fA-F]{8}-[0-9a-fA-F-]{27}|\d+")


def fingerprint(name: str, error_type: str, error: str) -> str:
    """Return 16 hex digits that are equal for the same kind of error: numbers, ids and addresses
    are ignored.
    """
    essence = "\n".join(
        (name, error_type, _VARYING.sub("#", error.splitlines()[0] if error else ""))
    )
    return hashlib.sha256(essence.encode("utf-8", "backslashreplace")).hexdigest()[:16]
