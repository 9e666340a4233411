"""A scheduler looks for tasks that wait for a batch between its polls."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from django_durable_tasks.celery import broker_outage
from django_durable_tasks.models import BatchMessage
from django_durable_tasks.scheduler.loop import Scheduler
from django_durable_tasks.tasks import batches
from tests.factories import NOOP, QUEUE, a_task, many_tasks
from tests.process_state import new_process_state
from tests.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def scheduler() -> Scheduler:
    """Return a scheduler that does not lead, with empty caches of the queues."""
    new_process_state()
    broker_outage.breaker.succeeded()
    return Scheduler("one")


def _without_polls(scheduler: Scheduler) -> None:
    scheduler.dispatching._next_poll_at = lambda: math.inf  # type: ignore[method-assign]


def _rounds(scheduler: Scheduler, condition: Callable[[], bool]) -> None:
    until(lambda: (scheduler.round(), condition())[1], within=30)


def _is_published(number: int) -> bool:
    return BatchMessage.objects.filter(number=number, due_at__isnull=False).exists()


def test_a_message_is_published_when_a_task_becomes_due(scheduler: Scheduler) -> None:
    a_task(due=1.0, in_batch=True)
    assert scheduler.round() <= 1.0
    assert not BatchMessage.objects.exists()
    _without_polls(scheduler)
    _rounds(scheduler, lambda: _is_published(1))


def test_a_message_is_published_for_tasks_that_remain_after_the_last_one(
    scheduler: Scheduler,
) -> None:
    many_tasks(2, in_batch=True)
    assert scheduler.round() == 0.0
    assert _is_published(1)
    _without_polls(scheduler)
    batches.message_received(QUEUE, NOOP, 1)
    _rounds(scheduler, lambda: _is_published(2))


def test_looks_end_while_a_message_is_outstanding(scheduler: Scheduler) -> None:
    many_tasks(2, in_batch=True)
    batches, looks = scheduler.dispatching._batches, list[float]()
    scheduler.round()
    _without_polls(scheduler)
    while batches.look_at < math.inf:
        looks.append(batches.look_at)
        _rounds(scheduler, lambda: batches.look_at != looks[-1])
    assert 1 < len(looks) <= 4
    assert _is_published(1)
