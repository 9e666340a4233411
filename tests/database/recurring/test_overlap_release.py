"""A task that waited for overlap is dispatched as soon as the maintenance job releases it, not one
poll later.
"""

from __future__ import annotations

import pytest

from django_durable_tasks.models import Task
from django_durable_tasks.scheduler.loop import Scheduler
from django_durable_tasks.states import transitions
from tests.database.recurring.schedules import START, a_schedule, at, fire
from tests.factories import QUEUE
from tests.messages import take_task_messages
from tests.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_task_released_by_maintenance_is_dispatched_by_an_immediate_round() -> None:
    row = a_schedule(queue=QUEUE, overlap="QUEUE_ALL")
    fire(START)
    fire(at(60))
    row.refresh_from_db()
    row.pause("only tasks that exist already")
    first, second = Task.objects.order_by("fire_time")
    transitions.cancel(Task.objects.filter(pk=first.pk), "TEST")
    scheduler = Scheduler("one")
    scheduler.leader.step()
    scheduler.round()
    scheduler.maintenance.round()
    assert scheduler.dispatching.time_to_sleep() < 0.1
    until(
        lambda: (scheduler.round(), Task.objects.queued().filter(pk=second.pk).exists())[1],
        within=30,
    )
    assert [message.task_id for message in take_task_messages(QUEUE)] == [second.pk]
