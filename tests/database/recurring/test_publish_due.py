"""Occurrences that are due are published at the commit of their tick, without a claim."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from django_durable_tasks import conf
from django_durable_tasks.choices import Status
from django_durable_tasks.models import Limit, OccurrenceRecord, RecurringTask, Task
from django_durable_tasks.schedules import trigger
from tests.database.recurring.schedules import START, a_schedule, at
from tests.factories import a_task, a_tenant
from tests.messages import take_task_messages
from tests.process_state import new_process_state
from tests.project import batched

pytestmark = pytest.mark.django_db(transaction=True)
QUEUE = "test"


class _Windows:
    """The same capacity for every queue, and what was sent."""

    def __init__(self, capacity: int = 100) -> None:
        self.capacity, self.sent = capacity, Counter[str]()

    def capacity_at_commit(self, queue: str) -> int:
        return self.capacity

    def record_sent(self, queue: str, number: int) -> None:
        self.sent[queue] += number


@pytest.fixture(autouse=True)
def no_messages() -> None:
    """Start with an empty queue and empty caches."""
    new_process_state()
    take_task_messages(QUEUE)


def _fire(windows: _Windows, seconds: float = 0.5) -> list[str]:
    """Fire what is due; return the statuses of the created tasks by fire time."""
    trigger.fire_due(at(seconds), 100, 7, windows=windows)
    rows = Task.objects.filter(recurring_task__isnull=False).order_by("fire_time", "id")
    return list(rows.values_list("status", flat=True))


def test_a_due_occurrence_is_published_at_the_commit() -> None:
    a_schedule(overlap="ALLOW")
    windows = _Windows()
    assert _fire(windows) == [Status.QUEUED]
    row = Task.objects.get()
    assert [(one.task_id, one.epoch) for one in take_task_messages(QUEUE)] == [(row.pk, 1)]
    assert windows.sent == {QUEUE: 1}
    assert (row.publish_count, row.run_at, row.fire_time) == (1, START, START)
    assert row.due_at == at(0.5) + timedelta(seconds=conf.settings().REPUBLISH_AFTER)
    assert OccurrenceRecord.objects.get().task_id == row.pk


def test_a_tick_publishes_up_to_the_capacity_and_highest_priority_first() -> None:
    for priority in (1, 9, 5):
        a_schedule(f"of priority {priority}", overlap="ALLOW", priority=priority)
    assert sorted(_fire(_Windows(2))) == [Status.PENDING, Status.QUEUED, Status.QUEUED]
    published = [one.task_id for one in take_task_messages(QUEUE)]
    rows = Task.objects.in_bulk(published)
    assert {rows[key].status for key in published} == {Status.QUEUED}
    priorities = [rows[key].priority for key in published]
    assert priorities == sorted(priorities, reverse=True)
    assert len(published) == 2


@pytest.mark.parametrize(
    "options",
    [
        {"overlap": "SKIP"},
        {"overlap": "QUEUE_ALL"},
        # so long that it almost never falls into the half second until the tick
        {"overlap": "ALLOW", "interval": 86_400, "jitter": 80_000},
        {"overlap": "ALLOW", "task": batched.add, "args": [1, 2]},
    ],
)
def test_what_a_claim_has_to_decide_stays_pending(options: dict[str, Any]) -> None:
    row = a_schedule(**options)
    assert _fire(_Windows()) == [Status.PENDING]
    task = Task.objects.get()
    assert task.due_at == task.run_at
    assert (task.run_at > at(0.5)) == bool(row.jitter)
    assert take_task_messages(QUEUE) == []


def test_a_task_with_a_limit_stays_pending() -> None:
    Limit.objects.create(scope=f"queue:{QUEUE}", max_concurrency=5)
    new_process_state()
    a_schedule(overlap="ALLOW")
    assert _fire(_Windows()) == [Status.PENDING]


def test_with_several_tenants_a_claim_divides_the_window() -> None:
    a_tenant()
    new_process_state()
    a_schedule(overlap="ALLOW")
    assert _fire(_Windows()) == [Status.PENDING]


def test_a_full_window_and_the_setting_leave_tasks_pending(settings: Any) -> None:
    a_schedule(overlap="ALLOW")
    assert _fire(_Windows(0)) == [Status.PENDING]
    settings.DURABLE_TASKS = {"FAST_PATH": False}
    assert _fire(_Windows(), 60.5) == [Status.PENDING, Status.PENDING]
    assert take_task_messages(QUEUE) == []


def test_a_run_that_has_expired_meanwhile_is_not_published() -> None:
    a_schedule(overlap="ALLOW", expires_in=30, misfire_grace=600)
    assert Status.QUEUED not in _fire(_Windows(), 45)
    assert take_task_messages(QUEUE) == []


def test_a_tick_that_is_rolled_back_publishes_nothing() -> None:
    schedules = [a_schedule(name, overlap="ALLOW") for name in ("first", "second")]
    key = trigger.idempotency_key(schedules[0].pk, START)
    a_task(idempotency_key=key, queue="elsewhere")
    windows = _Windows()
    assert _fire(windows) == [Status.PENDING]
    assert take_task_messages(QUEUE) == []
    assert not RecurringTask.objects.due(at(0.5)).exists()


def test_a_fire_time_that_another_leader_recorded_is_not_published_again() -> None:
    row = a_schedule(overlap="ALLOW")
    assert _fire(_Windows()) == [Status.QUEUED]
    RecurringTask.objects.unguarded().filter(pk=row.pk).update(
        next_run_at=START, watermark_at=START - timedelta(seconds=1)
    )
    take_task_messages(QUEUE)
    assert _fire(_Windows()) == [Status.QUEUED]
    assert take_task_messages(QUEUE) == []
