"""``django_durable_tasks.plain_celery_task`` sends a Celery task that is not durable. Schedules
that were imported from beat use it.

It succeeds when the message has been sent. The result of the Celery task is not recorded; use a
durable task for that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django_durable_tasks import conf
from django_durable_tasks.celery import plain_tasks
from django_durable_tasks.contrib.beat.mapping import PLAIN_CELERY_TASK
from django_durable_tasks.decorators import durable_task
from django_durable_tasks.exceptions import DurableTasksError


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
    celery_id = plain_tasks.send(
        task, args, kwargs or {}, options or {}, self.durable.idempotency_key
    )
    return {"status": "SENT", "task": task, "celery_id": celery_id}
