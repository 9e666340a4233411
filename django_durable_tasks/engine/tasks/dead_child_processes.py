"""Ends the run of a task whose worker child process terminated; the parent process calls it.

If the whole worker terminated, schedulers detect it: see
``scheduler/maintenance/reap_dead_nodes.py``.
"""

from __future__ import annotations

import uuid

from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.tasks import attempts
from django_durable_tasks.models import Task
from django_durable_tasks.rules.tasks.endings import Outcome


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
