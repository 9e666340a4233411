"""Explains why a task has not run, including what only Celery knows: whether its code is loaded and
the broker responds.
"""

from __future__ import annotations

from collections.abc import Iterator

from django_durable_tasks import registry
from django_durable_tasks.celery import inspect
from django_durable_tasks.engine.cluster import status
from django_durable_tasks.models import Task
from django_durable_tasks.rules.states import WITH_DUE_AT, Status
from django_durable_tasks.rules.tasks.explanations import (
    Level,
    Sentence,
    TaskSituation,
    explain,
)


def sentences(task: Task) -> list[Sentence]:
    """Return what prevents the next step of the task, problems first; at least one sentence.

    Connects to the broker, within PUBLISH_TIMEOUT, if the task waits for a message.
    """
    problem = inspect.load_tasks()
    durable = registry.find(task.name)
    situation, led = status.situation(
        task,
        known=durable is not None,
        has_batches=durable is not None and durable.options.batch is not None,
    )
    found = explain(situation)
    troubles = list(_around(task, situation, led=led))
    if problem is not None:
        troubles.append(f"The modules of tasks cannot be imported here: {problem}")
    at = sum(sentence.level == Level.TROUBLE for sentence in found)
    return [
        *found[:at],
        *(Sentence(Level.TROUBLE, text) for text in troubles),
        *found[at:],
    ]


def _around(task: Task, situation: TaskSituation, *, led: bool) -> Iterator[str]:
    """Yield the problems that the row does not show: no leader, broker unavailable."""
    stuck = situation.publish_count > 1 or (
        task.lease_until is not None and task.lease_until < situation.now
    )
    if (
        situation.schedulers
        and not led
        and task.status in (Status.QUEUED, Status.RUNNING)
        and stuck
    ):
        yield "No scheduler is the leader, so it is not republished or taken from a dead worker."
    if task.status not in WITH_DUE_AT or task.due_at is None:
        return
    if task.status == Status.QUEUED or task.due_at <= situation.now:
        broker = inspect.broker_problem()
        if broker is not None:
            yield f"The broker does not answer from here: {broker}."
