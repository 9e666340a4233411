"""The state machine of tasks, as data: all transitions between the statuses.

The functions of this package are the only writers. The statuses are in ``choices.py``. The table
and the diagram in the documentation are generated from this module. "Ready", "retrying" and
"overdue" are querysets, not statuses.
"""

from __future__ import annotations

from dataclasses import dataclass

from django_durable_tasks.choices import Status


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
        "lease_until, progress; reads back a cancel request",
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
