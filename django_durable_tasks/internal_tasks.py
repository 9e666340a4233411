"""The durable tasks of the core: ends of workflows, maps and plain Celery tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django_durable_tasks import conf
from django_durable_tasks.celery import live_runs, plain_messages
from django_durable_tasks.decorators import durable_task
from django_durable_tasks.exceptions import DurableTasksError
from django_durable_tasks.registry import PLAIN_CELERY_TASK
from django_durable_tasks.workflows.builder import END, MAP, STARMAP

# ``django_durable_tasks.end_of_workflow``: the last step of a sub-workflow. It runs when all other
# tasks of the sub-workflow have ended, and tasks that depend on the sub-workflow depend on it.


@durable_task(name=END)
def end_of_workflow(**results: Any) -> dict[str, Any]:
    """Return the results of the last tasks of the sub-workflow, by step."""
    return results


# ``django_durable_tasks.map`` and ``django_durable_tasks.starmap`` run the ``map`` and ``starmap``
# of a canvas that was converted to a workflow.
#
# One task calls the function for all items, one after another. A retry begins with the first item
# again.


@durable_task(name=MAP)
def call_for_each(task: str, it: Sequence[Any]) -> list[Any]:
    """Call the durable task with each item as its only argument; return the list of results."""
    return live_runs.called_for_each(task, it, spread=False)


@durable_task(name=STARMAP)
def call_with_each(task: str, it: Sequence[Sequence[Any]]) -> list[Any]:
    """Call the durable task with each item as its list of arguments; return the list of results."""
    return live_runs.called_for_each(task, it, spread=True)


# ``django_durable_tasks.plain_celery_task`` sends a Celery task that is not durable. Schedules
# that were imported from beat use it.
#
# It succeeds when the message has been sent. The result of the Celery task is not recorded; use a
# durable task for that.


class CeleryTaskNotAllowed(DurableTasksError):
    """DURABLE_TASKS['PLAIN_CELERY_TASKS'] does not allow this Celery task to be sent."""


@durable_task(name=PLAIN_CELERY_TASK, bind=True, give_up_on=(CeleryTaskNotAllowed,))
def send_plain_celery_task(
    self: Any,
    task: str,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """Send a task that PLAIN_CELERY_TASKS allows. A retry sends the message again with the same
    Celery id. Raises CeleryTaskNotAllowed.
    """
    if task not in conf.settings().PLAIN_CELERY_TASKS:
        raise CeleryTaskNotAllowed(
            f"{task!r} is not in DURABLE_TASKS['PLAIN_CELERY_TASKS']: add its name there to"
            " allow it."
        )
    celery_id = plain_messages.send_plain_task(
        task, args, kwargs or {}, options or {}, self.durable.idempotency_key
    )
    return {"status": "SENT", "task": task, "celery_id": celery_id}
