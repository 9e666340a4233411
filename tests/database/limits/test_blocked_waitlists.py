"""A task that cannot start, for whatever reason, neither blocks its waitlist nor takes the turn of
the tasks behind it.
"""

from __future__ import annotations

import random

import pytest

from django_durable_tasks.choices import Status
from django_durable_tasks.limits import release, waitlist
from django_durable_tasks.models import Task
from tests.database.limits.limited_tasks import (
    claim,
    end,
    ids,
    limit,
    limited_tasks,
    release_waiting,
    waiting_for,
    waiting_scopes,
)
from tests.factories import NOOP, a_paused_queue, many_tasks

__all__ = ["limited_tasks"]
pytestmark = pytest.mark.django_db
SCOPE = f"task:{NOOP}"
ONE, FIVE = (f"tests.project.limited.{name}_for_each" for name in ("one", "five"))


# Different limits of one key ----------------------------------------------------------------------


@pytest.mark.usefixtures("limited_tasks")
@pytest.mark.parametrize("number", [1, 30])
def test_tasks_heavier_than_the_limit_of_their_key_do_not_block_the_waitlist(number: int) -> None:
    waiting_for(number, "key:acme", name=ONE, limit_key="acme", weight=2)
    behind = waiting_for(2, "key:acme", name=ONE, limit_key="acme")
    assert release_waiting() == 1
    assert claim() == [behind[0].pk]
    end(behind[0].pk)
    assert release_waiting() == 1
    assert claim() == [behind[1].pk]


@pytest.mark.usefixtures("limited_tasks")
def test_the_limit_of_one_task_per_key_does_not_block_other_tasks() -> None:
    many_tasks(1, Status.QUEUED, name=FIVE, limit_key="acme")
    first = waiting_for(1, "key:acme", name=ONE, limit_key="acme")
    behind = waiting_for(6, "key:acme", name=FIVE, limit_key="acme")
    assert release_waiting() == 4
    assert claim() == ids(behind[:4])
    assert release_waiting() == 0
    end(*Task.objects.queued().values_list("pk", flat=True))
    while Task.objects.waiting_for_limit().exists():
        assert release_waiting() > 0
        end(*claim())
    assert Task.objects.get(pk=first[0].pk).status == Status.CANCELLED


# Queues without capacity --------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 30])
def test_waiting_tasks_of_a_paused_queue_do_not_take_the_turn_of_a_heavy_task(number: int) -> None:
    waiting_for(number, queue="paused")
    (heavy,) = waiting_for(1, weight=3)
    running = many_tasks(4, Status.QUEUED, name=NOOP)
    a_paused_queue("paused")
    limit(SCOPE, 4)
    for row in running[:2]:
        end(row.pk)
        many_tasks(1)
        assert claim() == []
    end(running[2].pk)
    assert release_waiting() == 1
    assert claim() == [heavy.pk]


def test_waiting_tasks_of_a_full_window_do_not_take_the_turn_of_a_heavy_task() -> None:
    waiting_for(3, queue="full")
    (heavy,) = waiting_for(1, weight=3)
    (running, *_) = many_tasks(4, Status.QUEUED)
    many_tasks(1_000, Status.QUEUED, queue="full", name="other")
    limit(SCOPE, 4)
    end(running.pk)
    late = many_tasks(1)
    assert claim() == []
    assert Task.objects.get(pk=late[0].pk).waiting_for_limit == SCOPE
    assert Task.objects.waiting_for_limit().filter(pk=heavy.pk).exists()


@pytest.mark.parametrize("seed", range(8))
def test_tasks_behind_any_number_of_tasks_that_cannot_start_are_released(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round reads a page of a waitlist; the next round reads the next page."""
    monkeypatch.setattr(waitlist, "_PAGE", 40)
    dice, pages = random.Random(seed), 1
    rows = list[Task]()
    for _ in range(dice.randint(2, 4)):
        priorities = [dice.choice([3, 5, 5, 9]) for _ in range(dice.randint(1, 3))]
        for priority in priorities:
            number = dice.randint(10, 60)
            waiting_for(number, queue="paused", priority=priority)
            pages += 1 + number // 40
        rows += waiting_for(dice.randint(1, 3), priority=dice.choice([3, 5, 9]))
    a_paused_queue("paused")
    limit(SCOPE, 100)
    released = [release_waiting() for _ in range(2 * pages)]
    assert sorted(claim()) == sorted(ids(rows)), released
    assert not release.has_more_pages() or release_waiting() == 0


# Tasks that another limit blocks ------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 30])
def test_waiting_tasks_that_another_limit_blocks_do_not_block_the_waitlist(number: int) -> None:
    heavy = waiting_for(number, "tenant:1", name="heavy", weight=5)
    behind = waiting_for(2, "tenant:1")
    limit("tenant:1", 6)
    limit("task:heavy", 0)
    for _ in range(number // 10 + 1):
        release_waiting()
    assert set(claim()) == set(ids(behind))
    limit("task:heavy", 5)
    end(*ids(behind))
    release_waiting()
    release_waiting()
    assert claim() == [heavy[0].pk]


def test_tasks_that_another_limit_blocks_wait_for_that_limit_and_start_when_it_has_capacity() -> (
    None
):
    rows = waiting_for(3, "tenant:1", name="other")
    limit("tenant:1", 2)
    limit("task:other", 1)
    assert release_waiting() == 1
    assert waiting_scopes() == {"task:other"}
    for row in rows:
        assert claim() == [row.pk]
        end(row.pk)
        release_waiting()
    assert not Task.objects.waiting_for_limit().exists()


def test_tasks_with_two_full_limits_do_not_move_between_their_waitlists() -> None:
    waiting_for(20, "tenant:1", weight=2)
    many_tasks(1, Status.QUEUED)
    limit("tenant:1", 2)
    limit(SCOPE, 2)
    before = dict(Task.objects.values_list("pk", "updated_at"))
    assert [release_waiting() for _ in range(3)] == [0, 0, 0]
    assert dict(Task.objects.values_list("pk", "updated_at")) == before
