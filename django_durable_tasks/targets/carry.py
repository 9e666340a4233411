"""``django_durable_tasks.carry``: sends a Celery task that is no durable one, for schedules that came from beat.

The row knows that the message was sent, and nothing of what became of it: that is what a durable task is for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django_durable_tasks import conf
from django_durable_tasks.celery import carrying
from django_durable_tasks.decorators import durable_task
from django_durable_tasks.exceptions import DurableTasksError
from django_durable_tasks.rules.beat import CARRY


class NotCarried(DurableTasksError):
    """DURABLE_TASKS['CARRY'] does not allow this Celery task to be sent."""


@durable_task(name=CARRY, bind=True, give_up_on=(NotCarried,))
def carry(
    self: Any,
    task: str,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """Send the message of a task that DURABLE_TASKS['CARRY'] names; at least once, and under one Celery id."""
    if task not in conf.settings().CARRY:
        raise NotCarried(f"{task!r} is not in DURABLE_TASKS['CARRY']: add its name there to let it be sent.")
    celery_id = carrying.send(task, args, kwargs or {}, options or {}, self.durable.idempotency_key)
    return {"status": "SENT", "task": task, "celery_id": celery_id}
