"""Records the success of a run together with the start of the next run of its process.

Both are one transaction, so each task costs one COMMIT instead of two.
"""

from __future__ import annotations

import uuid

from django_durable_tasks.engine import transitions
from django_durable_tasks.engine.db import direct
from django_durable_tasks.engine.limits import config
from django_durable_tasks.engine.tasks.attempts import (
    Refusal,
    RunLocation,
    new_run,
    refusal_of,
    succeeded,
)
from django_durable_tasks.engine.tasks.opened_runs import run_of
from django_durable_tasks.rules.tasks.runs import Run


def may_wait(run: Run) -> bool:
    """Return whether the success of this run may be recorded a few milliseconds later.

    Nothing may depend on it: no dependents, no workflow, no limit, no receivers of
    ``tasks_transitioned`` and no notification settings.
    """
    return (
        direct.is_used()
        and not run.has_dependents
        and run.workflow_id is None
        and not config.limits_without_connection().binds(run.name, run.queue, run.tenant_id)
        and not transitions.is_observed(run)
    )


def succeed_and_open(
    ended: Run,
    result: str | None,
    task_id: uuid.UUID,
    epoch: int,
    place: RunLocation,
    celery_id: str,
    *,
    name: str,
    run_id: uuid.UUID,
) -> tuple[bool, Run | Refusal]:
    """Record the success of ``ended``, and start the task of a message as ``open_run`` does.

    Return whether the success was accepted, and the run or why the message is refused. Neither
    prevents the other. Raises the errors of the database. Then both or neither may be committed.
    """
    new = new_run(task_id, epoch, place, name, run_id)
    accepted, started = transitions.succeed_and_start(ended, result, place.worker, new)
    accepted = accepted or succeeded(ended)
    if started is None:
        return accepted, refusal_of(task_id, epoch, place)
    return accepted, run_of(started, place.node, celery_id)
