"""The windows within which a scheduler publishes, and the schedules that it fires."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_durable_tasks.celery import broker_outage
from django_durable_tasks.choices import Status
from django_durable_tasks.cluster import queues
from django_durable_tasks.models import Task
from django_durable_tasks.scheduler import dispatch_loop
from django_durable_tasks.scheduler.dispatch_loop import PublishWindows
from django_durable_tasks.scheduler.loop import Scheduler
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.store.connections import dedicated_connection
from tests.database.recurring.schedules import a_schedule, begin
from tests.factories import QUEUE, a_task
from tests.messages import take_task_messages
from tests.process_state import new_process_state

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    """Return a scheduler that leads and whose threads are not started."""
    new_process_state()
    broker_outage.breaker.succeeded()
    take_task_messages(QUEUE)
    found = Scheduler("windows")
    found.leader.step()
    yield found
    found.leader.resign()


def _due_now(name: str = "due") -> None:
    row = a_schedule(name, queue=QUEUE, interval=86_400, overlap="ALLOW", misfire_grace=86_400)
    begin(row, database_now() - timedelta(milliseconds=100))


def _status() -> str:
    return str(Task.objects.get(recurring_task__isnull=False).status)


def test_a_due_occurrence_is_published_once(scheduler: Scheduler) -> None:
    scheduler.dispatching.poll()
    _due_now()
    scheduler.triggering.round()
    assert _status() == Status.QUEUED
    scheduler.dispatching.poll()
    assert len(take_task_messages(QUEUE)) == 1
    assert Task.objects.get().publish_count == 1


def test_nothing_is_published_without_a_recent_poll(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    _due_now()
    scheduler.triggering.round()
    assert _status() == Status.PENDING
    assert PublishWindows().capacity_at_commit(QUEUE) == 0
    scheduler.dispatching.poll()
    assert scheduler.dispatching.windows.capacity_at_commit(QUEUE) > 0
    monkeypatch.setattr(dispatch_loop, "_USABLE", -1.0)
    assert scheduler.dispatching.windows.capacity_at_commit(QUEUE) == 0


def test_a_paused_queue_has_no_capacity(scheduler: Scheduler) -> None:
    queues.pause(QUEUE, by="anna")
    a_task(queue=QUEUE)  # so that the poll reads the queues
    scheduler.dispatching.poll()
    _due_now()
    scheduler.triggering.round()
    assert _status() == Status.PENDING
    assert take_task_messages(QUEUE) == []


def test_new_tasks_do_not_overtake_those_that_have_been_due_for_a_while() -> None:
    windows, now = PublishWindows(), database_now()
    with dedicated_connection():
        windows.refresh({QUEUE: now - timedelta(seconds=0.5)}, now, coming=True)
        assert windows.capacity_at_commit(QUEUE) > 0
        windows.refresh({QUEUE: now - timedelta(seconds=1.5)}, now, coming=True)
    assert windows.capacity_at_commit(QUEUE) == 0
    assert windows.capacity_at_commit("another") > 0


def test_an_open_breaker_leaves_no_capacity(scheduler: Scheduler) -> None:
    scheduler.dispatching.poll()
    broker_outage.breaker.failed_with(OSError("refused"))
    try:
        assert scheduler.dispatching.windows.capacity_at_commit(QUEUE) == 0
    finally:
        broker_outage.breaker.succeeded()


def test_published_tasks_count_until_the_next_reading_and_then_by_their_rows(
    settings: Any,
) -> None:
    settings.DURABLE_TASKS = {"QUEUE_WINDOW": 100}
    windows, now = PublishWindows(), database_now()
    with dedicated_connection():
        windows.refresh({}, now, coming=True)
        assert windows.capacity_at_commit(QUEUE) == 100
        windows.record_sent(QUEUE, 30)
        assert windows.capacity_at_commit(QUEUE) == 70
        for _ in range(3):
            a_task(Status.QUEUED, queue=QUEUE)
        windows.refresh({}, now, coming=False)
    assert windows.capacity_at_commit(QUEUE) == 97


def test_many_published_tasks_are_counted_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch_loop, "_FEW_QUEUED", 2)
    monkeypatch.setattr(dispatch_loop, "_PAUSE_PER_QUEUED", 1_000.0)
    monkeypatch.setattr(dispatch_loop, "_LONGEST_WINDOW_PAUSE", 1_000.0)
    windows, now = PublishWindows(), database_now()
    for _ in range(3):
        a_task(Status.QUEUED, queue=QUEUE)

    def statements() -> int:
        with CaptureQueriesContext(connection) as seen:
            windows.refresh({}, now, coming=True)
        return len(seen)

    assert statements() > 1
    capacity = windows.capacity_at_commit(QUEUE)
    a_task(Status.QUEUED, queue=QUEUE)
    assert statements() == 1
    assert windows.capacity_at_commit(QUEUE) == capacity
    queues.pause(QUEUE, by="anna")
    statements()
    assert windows.capacity_at_commit(QUEUE) == 0
