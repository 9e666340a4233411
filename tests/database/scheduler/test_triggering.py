"""The thread that fires schedules: a backlog does not delay the schedules that become due now, and it
publishes within the windows of the scheduler.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_durable_tasks.celery import publisher
from django_durable_tasks.choices import Status
from django_durable_tasks.cluster import queues
from django_durable_tasks.models import RecurringTask, Task
from django_durable_tasks.scheduler import dispatch_loop, loop
from django_durable_tasks.scheduler.dispatch_loop import PublishWindows
from django_durable_tasks.scheduler.loop import Scheduler
from django_durable_tasks.schedules import trigger
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.store.connections import dedicated_connection
from tests.database.recurring.schedules import START, a_schedule, at, begin, fire_times
from tests.factories import QUEUE, a_task
from tests.messages import take_task_messages

pytestmark = pytest.mark.django_db(transaction=True)
BACKLOG = 12


def _due_since(name: str, start: datetime) -> RecurringTask:
    row = a_schedule(name, queue=QUEUE, interval=86_400, overlap="ALLOW", misfire_grace=86_400)
    return begin(row, start)


def test_a_batch_can_leave_out_the_schedules_that_became_due_earlier() -> None:
    old, new = _due_since("old", START), _due_since("new", at(60))
    assert trigger.fire_due(at(60), 10, 7, after=START) == 1
    assert (fire_times(old), fire_times(new)) == ([], [at(60)])
    assert trigger.fire_due(at(60), 10, 7) == 1


@pytest.mark.parametrize("is_backlog", [True, False], ids=["backlog", "same instant"])
def test_schedules_that_are_due_after_many_others_are_fired_by_the_second_batch(
    leader: Scheduler, settings: Any, monkeypatch: pytest.MonkeyPatch, is_backlog: bool
) -> None:
    settings.DURABLE_TASKS = {"BATCH_SIZE": 3}
    recent, age = (300, 600) if is_backlog else (86_400, 5)
    monkeypatch.setattr(loop, "_RECENT", timedelta(seconds=recent))
    since = database_now() - timedelta(seconds=age)
    many = [
        _due_since(f"{n}", since + timedelta(seconds=n if is_backlog else 0))
        for n in range(BACKLOG)
    ]
    later = _due_since("later", database_now() if is_backlog else since + timedelta(seconds=1))
    leader.triggering.round()
    assert is_backlog or not fire_times(later)
    leader.triggering.round()
    assert len(fire_times(later)) == 1
    assert 0 < sum(len(fire_times(row)) for row in many) < BACKLOG
    for _ in range(2 * BACKLOG if is_backlog else BACKLOG // 3 - 1):
        leader.triggering.round()
    assert all(len(fire_times(row)) == 1 for row in many)


@pytest.mark.parametrize(
    ("number", "age", "batches"), [(BACKLOG, 600, BACKLOG // 3), (2, 1, 1)], ids=["backlog", "few"]
)
def test_schedules_without_later_ones_are_fired_by_every_batch(
    leader: Scheduler, settings: Any, number: int, age: int, batches: int
) -> None:
    settings.DURABLE_TASKS = {"BATCH_SIZE": 3}
    now = database_now()
    rows = [_due_since(f"{n}", now - timedelta(seconds=age + n)) for n in range(number)]
    for _ in range(batches):
        leader.triggering.round()
    assert all(len(fire_times(row)) == 1 for row in rows)


def _fire(scheduler: Scheduler) -> Task:
    """Fire a schedule that is due now, and return its task."""
    _due_since("due", database_now() - timedelta(milliseconds=100))
    scheduler.triggering.round()
    task: Task = Task.objects.get(recurring_task__isnull=False)
    return task


def test_a_due_occurrence_is_published_once(leader: Scheduler) -> None:
    leader.dispatching.poll()
    assert _fire(leader).status == Status.QUEUED
    leader.dispatching.poll()
    assert len(take_task_messages(QUEUE)) == 1
    assert Task.objects.get().publish_count == 1


def test_nothing_is_published_without_a_recent_poll(
    leader: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _fire(leader).status == Status.PENDING
    assert PublishWindows().capacity_at_commit(QUEUE) == 0
    leader.dispatching.poll()
    assert leader.dispatching.windows.capacity_at_commit(QUEUE) > 0
    monkeypatch.setattr(dispatch_loop, "_USABLE", -1.0)
    assert leader.dispatching.windows.capacity_at_commit(QUEUE) == 0


def test_a_paused_queue_has_no_capacity(leader: Scheduler) -> None:
    queues.pause(QUEUE, by="anna")
    a_task(queue=QUEUE)  # so that the poll reads the queues
    leader.dispatching.poll()
    assert _fire(leader).status == Status.PENDING
    assert take_task_messages(QUEUE) == []


def test_new_tasks_do_not_overtake_those_that_have_been_due_for_a_while() -> None:
    windows, now = PublishWindows(), database_now()
    with dedicated_connection():
        windows.refresh({QUEUE: now - timedelta(seconds=0.5)}, now, coming=True)
        assert windows.capacity_at_commit(QUEUE) > 0
        windows.refresh({QUEUE: now - timedelta(seconds=1.5)}, now, coming=True)
    assert windows.capacity_at_commit(QUEUE) == 0
    assert windows.capacity_at_commit("another") > 0


def test_an_open_breaker_leaves_no_capacity(leader: Scheduler) -> None:
    leader.dispatching.poll()
    publisher.breaker.failed_with(OSError("refused"))
    assert leader.dispatching.windows.capacity_at_commit(QUEUE) == 0


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
