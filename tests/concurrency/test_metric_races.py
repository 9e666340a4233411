"""Two schedulers count while attempts end: each attempt is counted once, whatever commits when."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from django_durable_tasks.choices import Status
from django_durable_tasks.contrib.metrics import counts
from django_durable_tasks.models import Task
from django_durable_tasks.store.clock import database_now
from tests.concurrency.racing import no_errors, race
from tests.database.metrics.counting import count_all, minute_totals, recount, totals
from tests.database.transitions.transition_calls import FAILURE, end, succeed
from tests.factories import many_tasks


def _end_all(tasks: list[Task]) -> int:
    for number, task in enumerate(tasks):
        if number % 3:
            succeed(task)
        else:
            end(task, outcome=FAILURE)
    return len(tasks)


def _count_repeatedly() -> None:
    job = count_all()
    for _ in range(20):
        count_all(job=job)


def test_a_minute_that_another_leader_has_settled_is_not_written_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _end_all(many_tasks(6, Status.RUNNING))
    now, write = database_now(), counts.raise_minute

    def after_another(*given: Any) -> None:
        monkeypatch.setattr(counts, "raise_minute", write)
        count_all(now + timedelta(hours=2))
        write(*given)

    monkeypatch.setattr(counts, "raise_minute", after_another)
    count_all(now)
    count_all(now + timedelta(hours=2))
    assert sum(recount().values()) == 6
    assert totals() == minute_totals() == recount()


def test_attempts_that_end_while_two_schedulers_count_are_counted_once() -> None:
    tasks = many_tasks(120, Status.RUNNING)
    parts = [partial(_end_all, tasks[part::3]) for part in range(3)]
    no_errors(race([*parts, _count_repeatedly, _count_repeatedly]))
    count_all()
    assert sum(recount().values()) == 120
    assert totals() == minute_totals() == recount()
