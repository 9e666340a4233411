"""Ends the runs of worker child processes that terminated; the parent process calls it.

If the whole worker terminated, schedulers detect it: see
``scheduler/maintenance/reap_dead_nodes.py``.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Collection

from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.tasks import attempts
from django_durable_tasks.models import Task
from django_durable_tasks.rules.tasks.endings import EndingKind, Outcome

_PID_BYTES = 4
_DEAD = Outcome(
    kind=EndingKind.CRASHED,
    error="The process terminated before the ending of the run was recorded.",
    error_type="WorkerLostError",
)


def new_run_id() -> uuid.UUID:
    """Return a random run id that begins with the id of this process."""
    pid = os.getpid().to_bytes(_PID_BYTES, "big")
    return uuid.UUID(bytes=pid + os.urandom(16 - _PID_BYTES), version=4)


def end_runs_of_processes(pids: Collection[int], node: uuid.UUID, worker: str) -> int:
    """Mark the runs LOST that these terminated children of this node left; return how many.

    Runs of batches are left out, because their ids begin with the token of their message.
    """
    rows = tables.tasks().running().filter(node=node, in_batch=False).order_by()
    found = {
        pk: run_id
        for pk, run_id in rows.values_list("pk", "run_id")
        if run_id is not None and int.from_bytes(run_id.bytes[:_PID_BYTES], "big") in pids
    }
    if not found:
        return 0
    these = tables.tasks().filter(pk__in=list(found), run_id__in=list(found.values()), node=node)
    return len(attempts.end_runs(these, lambda _: _DEAD, worker=worker))


def end_run_of_dead_child(
    task_id: uuid.UUID, epoch: int, node: uuid.UUID, outcome: Outcome, worker: str, celery_id: str
) -> bool:
    """End the run that a child of this node started from the message of this epoch.

    Returns False if there is no such run: the child terminated before it started the task, or after
    it recorded the result.
    """
    started = tables.tasks().filter(pk=task_id, epoch=epoch + 1, node=node)

    def outcome_of(_: Task) -> Outcome:
        return outcome

    return bool(attempts.end_runs(started, outcome_of, worker=worker, celery_id=celery_id))
