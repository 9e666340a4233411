"""A row that cannot go, for whatever reason, closes its line for nobody and takes no turn from the
rows behind it.
"""

from __future__ import annotations

from typing import Any

import pytest

from django_durable_tasks.engine.limits import waitlist
from django_durable_tasks.models import Task
from django_durable_tasks.models.task_queries import NEVER
from django_durable_tasks.rules.states import Status
from tests.database.limits.limited_tasks import claim, end, ids, let_go, limit, limited_tasks
from tests.factories import NOOP, a_paused_queue, many_tasks

__all__ = ["limited_tasks"]
pytestmark = pytest.mark.django_db
SCOPE = f"task:{NOOP}"
ONE, FIVE = (f"tests.project.limited.{name}_for_each" for name in ("one", "five"))


def parked(number: int, scope: str = SCOPE, **fields: Any) -> list[Task]:
    """Make rows that are parked for a scope."""
    return many_tasks(number, due_at=NEVER, waiting_for_limit=scope, **fields)


# Keys over which tasks differ ---------------------------------------------------------------------


@pytest.mark.usefixtures("limited_tasks")
@pytest.mark.parametrize("number", [1, 30])
def test_rows_heavier_than_the_limit_of_their_key_close_no_line(number: int) -> None:
    parked(number, "key:acme", name=ONE, limit_key="acme", weight=2)
    behind = parked(2, "key:acme", name=ONE, limit_key="acme")
    assert let_go() == 1
    assert claim() == [behind[0].pk]
    end(behind[0].pk)
    assert let_go() == 1
    assert claim() == [behind[1].pk]


@pytest.mark.usefixtures("limited_tasks")
def test_what_one_task_allows_a_key_closes_the_line_for_no_other_task() -> None:
    many_tasks(1, Status.QUEUED, name=FIVE, limit_key="acme")
    first = parked(1, "key:acme", name=ONE, limit_key="acme")
    behind = parked(6, "key:acme", name=FIVE, limit_key="acme")
    assert let_go() == 4
    assert claim() == ids(behind[:4])
    assert let_go() == 0
    end(*Task.objects.queued().values_list("pk", flat=True))
    while Task.objects.waiting_for_limit().exists():
        assert let_go() > 0
        end(*claim())
    assert Task.objects.get(pk=first[0].pk).status == Status.CANCELLED


# Rows whose queue takes nothing -------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 30])
def test_parked_rows_of_a_paused_queue_take_no_turn_from_a_heavy_row(number: int) -> None:
    parked(number, queue="paused")
    (heavy,) = parked(1, weight=3)
    running = many_tasks(4, Status.QUEUED, name=NOOP)
    a_paused_queue("paused")
    limit(SCOPE, 4)
    for row in running[:2]:
        end(row.pk)
        many_tasks(1)
        assert claim() == []
    end(running[2].pk)
    assert let_go() == 1
    assert claim() == [heavy.pk]


def test_parked_rows_of_a_full_window_take_no_turn_from_a_heavy_row() -> None:
    parked(3, queue="full")
    (heavy,) = parked(1, weight=3)
    (running, *_) = many_tasks(4, Status.QUEUED)
    many_tasks(1_000, Status.QUEUED, queue="full", name="other")
    limit(SCOPE, 4)
    end(running.pk)
    late = many_tasks(1)
    assert claim() == []
    assert Task.objects.get(pk=late[0].pk).waiting_for_limit == SCOPE
    assert Task.objects.waiting_for_limit().filter(pk=heavy.pk).exists()


def test_so_many_rows_of_a_line_are_looked_at_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waitlist, "_FAR", 40)
    parked(30, queue="paused")
    (seen,) = parked(1)
    parked(30, queue="paused")
    (too_far,) = parked(1)
    a_paused_queue("paused")
    limit(SCOPE, 4)
    assert let_go() == 1
    assert claim() == [seen.pk]
    assert let_go() == 0
    Task.objects.unguarded().filter(queue="paused").delete()
    assert let_go() == 1
    assert claim() == [too_far.pk]


# Rows that another limit holds back ---------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 30])
def test_parked_rows_that_another_limit_holds_back_close_no_line(number: int) -> None:
    heavy = parked(number, "tenant:1", name="heavy", weight=5)
    behind = parked(2, "tenant:1")
    limit("tenant:1", 6)
    limit("task:heavy", 0)
    for _ in range(number // 10 + 1):
        let_go()
    assert set(claim()) == set(ids(behind))
    limit("task:heavy", 5)
    end(*ids(behind))
    let_go()
    let_go()
    assert claim() == [heavy[0].pk]


def test_rows_that_another_limit_holds_back_wait_for_that_one_and_start_when_it_has_room() -> None:
    rows = parked(3, "tenant:1", name="other")
    limit("tenant:1", 2)
    limit("task:other", 1)
    assert let_go() == 1
    assert set(Task.objects.waiting_for_limit().values_list("waiting_for_limit", flat=True)) == {
        "task:other"
    }
    for row in rows:
        assert claim() == [row.pk]
        end(row.pk)
        let_go()
    assert not Task.objects.waiting_for_limit().exists()


def test_rows_whose_two_limits_have_no_room_go_from_line_to_line_for_nothing() -> None:
    parked(20, "tenant:1", weight=2)
    many_tasks(1, Status.QUEUED)
    limit("tenant:1", 2)
    limit(SCOPE, 2)
    before = dict(Task.objects.values_list("pk", "updated_at"))
    assert [let_go() for _ in range(3)] == [0, 0, 0]
    assert dict(Task.objects.values_list("pk", "updated_at")) == before
