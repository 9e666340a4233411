"""Two schedulers count while attempts end: each attempt is counted once, whatever commits when."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from django_durable_tasks.choices import Status
from django_durable_tasks.metrics import counts
from django_durable_tasks.metrics.counts import count_attempts
from django_durable_tasks.models import Task
from django_durable_tasks.store.clock import database_now
from tests.concurrency.racing import no_errors, on_another_connection, race
from tests.database.metrics.counting import count_all, minute_totals, recount, totals
from tests.database.transitions.transition_calls import FAILURE, end, succeed
from tests.factories import many_tasks


@pytest.fixture(autouse=True)
def counted(settings: Any) -> None:
    """Count for the metrics."""
    settings.DURABLE_TASKS = {"METRICS": True}


def _end_all(tasks: list[Task]) -> int:
    for number, task in enumerate(tasks):
        if number % 3:
            succeed(task)
        else:
            end(task, outcome=FAILURE)
    return len(tasks)


def _count_repeatedly() -> int:
    return sum(count_attempts(database_now(), 7) for _ in range(40))


@pytest.mark.postgresql
@pytest.mark.mariadb
def test_of_two_counts_of_the_same_attempts_one_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _end_all(many_tasks(6, Status.RUNNING))
    now, record = database_now(), counts.record_counts
    answers: list[int] = []

    def after_another(*given: Any) -> bool:
        monkeypatch.setattr(counts, "record_counts", record)
        answers.append(on_another_connection(partial(count_attempts, now, 100)))
        return record(*given)

    monkeypatch.setattr(counts, "record_counts", after_another)
    assert count_attempts(now, 100) == 0
    assert answers == [6]
    assert sum(recount().values()) == 6
    assert totals() == minute_totals() == recount()
    count_all()
    assert totals() == minute_totals() == recount()


def test_attempts_that_end_while_two_schedulers_count_are_counted_once() -> None:
    tasks = many_tasks(120, Status.RUNNING)
    parts = [partial(_end_all, tasks[part::3]) for part in range(3)]
    no_errors(race([*parts, _count_repeatedly, _count_repeatedly]))
    count_all()
    assert sum(recount().values()) == 120
    assert totals() == minute_totals() == recount()
