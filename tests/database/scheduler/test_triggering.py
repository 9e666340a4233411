"""The thread that fires schedules: a backlog does not delay the schedules that become due now."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from django_durable_tasks.models import RecurringTask
from django_durable_tasks.scheduler import loop
from django_durable_tasks.scheduler.loop import Scheduler
from django_durable_tasks.schedules import trigger
from django_durable_tasks.store.clock import database_now
from tests.database.recurring.schedules import START, a_schedule, at, begin, fire_times

pytestmark = pytest.mark.django_db(transaction=True)
BACKLOG = 12


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    """Return a scheduler that leads and whose threads are not started."""
    found = Scheduler("triggering")
    found.leader.step()
    yield found
    found.leader.resign()


def _due_since(name: str, start: datetime) -> RecurringTask:
    row = a_schedule(name, interval=86_400, overlap="ALLOW", misfire_grace=86_400)
    return begin(row, start)


def test_a_batch_can_leave_out_the_schedules_that_became_due_earlier() -> None:
    old, new = _due_since("old", START), _due_since("new", at(60))
    assert trigger.fire_due(at(60), 10, 7, after=START) == 1
    assert (fire_times(old), fire_times(new)) == ([], [at(60)])
    assert trigger.fire_due(at(60), 10, 7) == 1


def test_schedules_that_become_due_during_a_backlog_are_fired_by_the_second_batch(
    scheduler: Scheduler, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DURABLE_TASKS = {"BATCH_SIZE": 3}
    monkeypatch.setattr(loop, "_RECENT", timedelta(seconds=300))
    now = database_now()
    backlog = [
        _due_since(f"old {number}", now - timedelta(seconds=600 - number))
        for number in range(BACKLOG)
    ]
    fresh = _due_since("fresh", database_now())
    scheduler.triggering.round()
    scheduler.triggering.round()
    assert len(fire_times(fresh)) == 1
    fired = sum(len(fire_times(row)) for row in backlog)
    assert 0 < fired < BACKLOG
    for _ in range(2 * BACKLOG):
        scheduler.triggering.round()
    assert all(len(fire_times(row)) == 1 for row in backlog)


def test_a_backlog_without_recent_schedules_is_fired_by_every_batch(
    scheduler: Scheduler, settings: Any
) -> None:
    settings.DURABLE_TASKS = {"BATCH_SIZE": 3}
    now = database_now()
    backlog = [_due_since(f"old {n}", now - timedelta(seconds=600)) for n in range(BACKLOG)]
    for _ in range(BACKLOG // 3):
        scheduler.triggering.round()
    assert all(len(fire_times(row)) == 1 for row in backlog)


def test_many_schedules_of_one_instant_do_not_delay_those_that_are_due_after_them(
    scheduler: Scheduler, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DURABLE_TASKS = {"BATCH_SIZE": 3}
    monkeypatch.setattr(loop, "_RECENT", timedelta(days=1))
    instant = database_now() - timedelta(seconds=5)
    same = [_due_since(f"same {number}", instant) for number in range(BACKLOG)]
    later = _due_since("later", instant + timedelta(seconds=1))
    scheduler.triggering.round()
    assert not fire_times(later)
    scheduler.triggering.round()
    assert len(fire_times(later)) == 1
    for _ in range(BACKLOG // 3 - 1):
        scheduler.triggering.round()
    assert all(len(fire_times(row)) == 1 for row in same)


def test_few_due_schedules_are_fired_in_their_order(scheduler: Scheduler) -> None:
    now = database_now()
    rows = [_due_since(f"{n}", now - timedelta(seconds=n)) for n in (1, 2)]
    scheduler.triggering.round()
    assert all(len(fire_times(row)) == 1 for row in rows)
