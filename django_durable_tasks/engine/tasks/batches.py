"""Starts the tasks of a batch, records their successes together, and returns tasks of it that were
not called. Workers call these functions.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from datetime import datetime

from django_durable_tasks.engine import transitions
from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.db.clock import database_now
from django_durable_tasks.engine.db.deadlocks import retry_on_deadlock
from django_durable_tasks.engine.limits import admission, config
from django_durable_tasks.engine.tasks.attempts import (
    RunLocation,
    end_runs,
    succeeded_of,
)
from django_durable_tasks.engine.tasks.opened_runs import run_of
from django_durable_tasks.engine.transitions import StartedRun, Success
from django_durable_tasks.rules.tasks.endings import EndingKind, Outcome
from django_durable_tasks.rules.tasks.runs import Run

TOKEN_BYTES = 6
"""Shorter than half of a run id, whose seventh byte contains the version of the UUID."""
__all__ = ["Success"]
_PASSES, _AHEAD = 4, 500
_CANCELLED = Outcome(kind=EndingKind.IGNORED, error="Cancelled before it was called.")


def run_ids_of(message: bytes, number: int) -> list[uuid.UUID]:
    """Return random run ids that begin with the token of this batch message (TOKEN_BYTES).

    The parent process of a worker child finds the runs of a batch by these bytes if the child
    terminates.
    """
    size = 16 - TOKEN_BYTES
    return [uuid.UUID(bytes=message + os.urandom(size), version=4) for _ in range(number)]


def take(queue: str, name: str, run_ids: Sequence[uuid.UUID], place: RunLocation) -> list[Run]:
    """Start due tasks of this name in this queue, at most one for each of ``run_ids``.

    Tasks that a limit refuses wait for its scope from the same transaction, as by a claim.
    """
    limit_config = config.limits_in_force()
    if limit_config.may_bind([(name, queue)]):
        started = _take_within_limits(limit_config, queue, name, run_ids, place)
    else:
        started = transitions.take_due(queue, name, run_ids, place.node, place.lease)
    return _runs(started, place)


@retry_on_deadlock
def _take_within_limits(
    limit_config: config.LimitConfig,
    queue: str,
    name: str,
    run_ids: Sequence[uuid.UUID],
    place: RunLocation,
) -> list[StartedRun]:
    with tables.atomic():
        gate = admission.LimitAdmission(limit_config)
        ids = _admitted(gate, queue, name, len(run_ids))
        gate.close()
        return transitions.take(
            tables.tasks().filter(pk__in=ids), run_ids[: len(ids)], place.node, place.lease
        )


def _admitted(
    gate: admission.LimitAdmission, queue: str, name: str, number: int
) -> list[uuid.UUID]:
    """Lock at most ``number`` due tasks that the limits admit, and return their ids.

    If some are refused, the refused ones among the next ``_AHEAD`` due tasks wait too, so that
    tasks of a full scope do not delay those behind them. At most ``_PASSES`` passes.
    """
    admitted, now = list[uuid.UUID](), database_now()
    for _ in range(_PASSES):
        wanted = number - len(admitted)
        due = transitions.due_in_batch(queue, name, wanted, admitted)
        # The rows are locked first, so that no other process spends rate-limit tokens for them.
        # Another process may have started one since it was read. It then runs alone or later.
        still_due = (
            tables.tasks()
            .waiting_for_batch()
            .filter(pk__in=due, queue=queue, name=name, due_at__lte=tables.NOW)
        )
        locked = transitions.locked_pending(still_due, len(due))
        fit = gate.admit(sorted(_in_time(locked, now), key=due.index), now)
        admitted += fit
        if len(due) < wanted or len(fit) == wanted or gate.is_full(name, queue):
            break
        gate.refuse(transitions.due_in_batch(queue, name, _AHEAD, admitted), now)
    return admitted


def _in_time(ids: Sequence[uuid.UUID], now: datetime) -> list[uuid.UUID]:
    """Return the locked tasks that have not expired; set the others to EXPIRED."""
    late = tables.tasks().filter(pk__in=ids, expires_at__lte=now)
    expired = set(late.values_list("pk", flat=True))
    if expired:
        transitions.expire(tables.tasks().filter(pk__in=expired), len(expired))
    return [task_id for task_id in ids if task_id not in expired]


def taken(run_ids: Sequence[uuid.UUID], place: RunLocation) -> list[Run]:
    """Return the runs that were started with these ids.

    Called if the reply of the database to ``take`` was lost.
    """
    found = tables.tasks().running().filter(node=place.node, run_id__in=list(run_ids))
    return _runs(transitions.started_runs(found.order_by("-priority", "ready_at", "id")), place)


def _runs(started: Sequence[StartedRun], place: RunLocation) -> list[Run]:
    return [run_of(one, place.node, f"{one.id}.{one.epoch - 1}.0") for one in started]


@retry_on_deadlock
def succeed(successes: Sequence[Success], worker: str) -> set[uuid.UUID]:
    """Record these successes with their log entries; return the run ids of those accepted.

    If the reply to the COMMIT was lost and the call is repeated, the successes are found in the
    log.
    """
    accepted = transitions.succeed_many(successes, worker)
    missing = [one.run for one in successes if one.run.run_id not in accepted]
    return accepted | succeeded_of(missing) if missing else accepted


def return_uncalled(runs: Sequence[Run], worker: str) -> int:
    """Return tasks to PENDING that this batch started, but whose functions were not called; return
    how many.

    Tasks whose cancellation was requested are CANCELLED.
    """
    returned = transitions.undo_starts(runs)
    if returned < len(runs):
        end_runs(transitions.owned(runs), lambda _: _CANCELLED, worker=worker)
    return returned


def end_runs_of_dead_child(message: bytes, node: uuid.UUID, error: str, worker: str) -> int:
    """Mark the runs LOST that a child process of this node started from this batch message and did
    not end; return how many.
    """
    running = tables.tasks().running().filter(node=node).order_by().values_list("pk", "run_id")
    found = {pk: run for pk, run in running if run is not None and run.bytes.startswith(message)}
    if not found:
        return 0
    lost = Outcome(kind=EndingKind.CRASHED, error=error, error_type="WorkerLostError")
    these = tables.tasks().filter(pk__in=list(found), run_id__in=list(found.values()), node=node)
    return len(end_runs(these, lambda _: lost, worker=worker))
