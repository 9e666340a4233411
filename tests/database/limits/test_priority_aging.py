"""The priority of waiting tasks rises."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from django_durable_tasks.cluster.nodes import HeartbeatMonitor
from django_durable_tasks.limits import release
from django_durable_tasks.models import Task
from django_durable_tasks.scheduler import jobs
from django_durable_tasks.scheduler.jobs import AgePriorities
from django_durable_tasks.states import claims
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.task_values import RunLocation
from tests.database.limits.limited_tasks import (
    BY_SCOPE,
    NODE,
    claim,
    end,
    ids,
    limit,
    release_waiting,
)
from tests.factories import NOOP, a_task, many_tasks, take_batch
from tests.messages import claim_due
from tests.repetitions import repetitions

pytestmark = pytest.mark.django_db


def test_a_waiting_task_is_not_starved_by_a_stream_of_urgent_ones() -> None:
    humble = a_task(priority=0, due=-1_000)
    for _ in range(9):
        many_tasks(2, priority=9)
        assert humble.pk not in claim(1)
        assert release.age(database_now(), 60.0, 100) == 1
    assert claim(1) == [humble.pk]
    humble.refresh_from_db()
    assert (humble.priority, humble.priority_boost) == (9, 9)


def test_a_task_that_waits_for_a_limit_ages_too() -> None:
    a_task(priority=0, due=-1_000)
    limit(f"task:{NOOP}", 0)
    claim()
    assert release.age(database_now(), 60.0, 100) == 1
    assert release.age(database_now(), 2_000.0, 100) == 0
    assert Task.objects.get().priority == 1


def test_the_number_of_tasks_raised_at_once_is_bounded_and_the_oldest_come_first() -> None:
    rows = [a_task(due=-1_000 + number) for number in range(5)]
    assert release.age(database_now(), 60.0, 2) == 2
    assert set(Task.objects.filter(priority_boost=1).values_list("pk", flat=True)) == set(
        ids(rows[:2])
    )


def test_a_task_with_an_id_of_the_caller_ages_too_while_it_waits_for_a_limit() -> None:
    a_task(due=-1_000, id=uuid.uuid4())
    limit(f"task:{NOOP}", 0)
    claim()
    Task.objects.unguarded().update(id=uuid.UUID(int=uuid.uuid4().int | 1 << 127))
    assert release.age(database_now(), 60.0, 100) == 1


def test_a_released_task_is_raised_once_at_a_time() -> None:
    a_task(due=-1_000)
    limit(f"task:{NOOP}", 0)
    claim()
    limit(f"task:{NOOP}", 1)
    assert release_waiting() == 1
    assert release.age(database_now(), 60.0, 100) == 1


@pytest.mark.django_db(transaction=True)
def test_a_pass_over_many_queues_returns_after_each_slice_and_raises_each_task_once(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DURABLE_TASKS = {"PRIORITY_AGING": 60.0}
    for number in range(5):
        a_task(due=-1_000, queue=f"queue-{number}", priority=number)
    monkeypatch.setattr(jobs, "SLICE", 0.0)
    aging, monitor = AgePriorities(), HeartbeatMonitor()
    aging._next = 0.0
    calls = [aging(database_now(), monitor)]
    while aging._pass is not None:
        calls.append(aging(database_now(), monitor))
    assert len(calls) > 40  # one queue and one priority per call
    assert max(calls) == 1
    assert set(Task.objects.values_list("priority_boost", flat=True)) == {1}
    assert aging(database_now(), monitor) == 0


def test_tasks_started_in_a_batch_obey_limits() -> None:
    rows = [a_task(due=-9 + number, weight=2, in_batch=True) for number in range(4)]
    limit(f"task:{NOOP}", 5)
    place = RunLocation(node=NODE, worker="worker@host", lease=60.0)
    runs = take_batch(10, place)
    assert {run.task_id for run in runs} == set(ids(rows[:2]))
    assert set(Task.objects.waiting_for_limit().values_list("pk", flat=True)) == set(ids(rows[2:]))


# A task that waits for a limit keeps the time since which it is due: the time of its replay or of
# its retry, not its first ``run_at``.


OLD = timedelta(hours=5)


def _due(ages: list[int]) -> dict[uuid.UUID, datetime]:
    """Return tasks of yesterday, due since these seconds as after a replay, in order of creation."""
    now, rows = database_now(), many_tasks(len(ages))
    for row, age in zip(rows, ages, strict=True):
        at = now - timedelta(seconds=age)
        Task.objects.unguarded().filter(pk=row.pk).update(run_at=now - OLD, due_at=at)
    return {row.pk: now - timedelta(seconds=age) for row, age in zip(rows, ages, strict=True)}


@pytest.mark.parametrize("scope", ["global", f"task:{NOOP}", "tenant:1"])
def test_tasks_start_in_the_order_in_which_they_became_due(scope: str) -> None:
    @hypothesis_settings(deadline=None, max_examples=repetitions(25, least=5))
    @given(st.lists(st.integers(1, 900), min_size=2, max_size=6, unique=True))
    def any_ages(ages: list[int]) -> None:
        Task.objects.unguarded().delete()
        limit(scope, 1, **BY_SCOPE.get(scope, {}))
        due = _due(ages)
        started = list[uuid.UUID]()
        for _ in due:
            (first,) = claim()
            waited = Task.objects.get(pk=first)
            assert waited.ready_at == due[first], "no lateness that was not"
            started.append(first)
            end(first)
            release_waiting()
        assert started == sorted(due, key=due.__getitem__)

    any_ages()


def test_a_due_task_that_is_made_to_wait_is_released_as_it_was() -> None:
    due = _due([300, 20, 10])
    claims.make_due_wait(dict.fromkeys(due, "global"), database_now())
    assert claims.release_waiting(Task.objects.all(), 1) == 1
    assert claims.release_waiting(Task.objects.all(), 5) == 2
    assert dict(Task.objects.values_list("pk", "due_at")) == due


def test_a_handed_over_place_keeps_the_time_of_the_task() -> None:
    due = _due([30])
    (task_id,) = due
    claims.make_due_wait({task_id: "global"}, database_now())
    (claimed,) = claims.claim_these([task_id], NODE, 10, waiting=True)
    assert (claimed.ready_at, Task.objects.get().ready_at) == (due[task_id], due[task_id])


def test_a_replay_of_a_minute_ago_is_not_raised_for_its_age() -> None:
    due = _due([60])
    claims.make_due_wait(dict.fromkeys(due, "global"), database_now())
    assert release.age(database_now(), wait=3_600, limit=10) == 0
    with mock.patch.object(release, "_SCOPES", 10):
        assert release.age(database_now(), wait=30, limit=10) == 1


def test_one_claim_publishes_in_the_order_in_which_tasks_became_due() -> None:
    due = _due([5, 40, 20])
    published = claim_due(Task.objects.values_list("queue", flat=True)[0], database_now(), 9, NODE)
    assert [message.task_id for message in published] == sorted(due, key=due.__getitem__)
