"""A claim does not block an insert, and an insert does not block a claim: neither gaps nor other
rows are locked.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import override_settings

from django_durable_tasks.choices import Status
from django_durable_tasks.models import Task
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.tasks import attempts, operator_actions
from tests.concurrency.racing import no_errors, race
from tests.database.transitions.transition_calls import CRASH, FAILURE, PLACE, end, question, start
from tests.factories import QUEUE, a_run, a_task, many_tasks
from tests.messages import claim_due
from tests.project import tasks

# SQLite has one writer at a time by design, so every transaction there blocks others.
pytestmark = [pytest.mark.postgresql, pytest.mark.mariadb]


@pytest.fixture(autouse=True)
def _no_fast_path() -> Iterator[None]:
    with override_settings(DURABLE_TASKS={"FAST_PATH": False}):
        yield


def _impatient() -> None:
    """Make waiting for a lock an error."""
    limit = (
        "SET lock_timeout = 1000"
        if connection.vendor == "postgresql"
        else "SET innodb_lock_wait_timeout = 1"
    )
    with connection.cursor() as cursor:
        cursor.execute(limit)


@contextmanager
def _open(act: Any) -> Iterator[Any]:
    """Run the function here in a transaction that stays open while others continue."""
    with transaction.atomic():
        yield act()


def _elsewhere(act: Any) -> Any:
    def impatiently() -> Any:
        _impatient()
        return act()

    return no_errors(race([impatiently]))[0]


def _claim() -> list[Any]:
    return [message.task_id for message in claim_due(QUEUE, database_now(), 3, PLACE.node)]


def _insert() -> Any:
    return tasks.noop.using(queue=QUEUE, priority=5, run_at=database_now()).schedule().pk


def _insert_with_keys() -> Any:
    keyed = tasks.noop.using(idempotency_key="i", key="k")
    return keyed.using(queue=QUEUE, run_at=database_now()).schedule().pk


@pytest.mark.parametrize("insert", [_insert, _insert_with_keys])
def test_an_open_claim_does_not_block_an_insert(insert: Any) -> None:
    for priority in (0, 5, 9):
        many_tasks(5, priority=priority)
    with _open(_claim) as claimed:
        assert len(claimed) == 3
        assert _elsewhere(insert)


@pytest.mark.parametrize("insert", [_insert, _insert_with_keys])
def test_an_open_insert_does_not_block_a_claim_and_is_not_claimed(insert: Any) -> None:
    rows = many_tasks(5, priority=5)
    with _open(insert) as created:
        assert set(_elsewhere(_claim)) <= {row.pk for row in rows}
        assert len(_elsewhere(_claim)) == 2
    assert _claim() == [created]


def test_a_second_claim_skips_the_rows_that_the_first_has_locked(vendor: str) -> None:
    rows = many_tasks(6)
    with _open(_claim) as first:
        second = _elsewhere(_claim)
        # MariaDB reads before it locks, so a second claim may find only locked rows; it tries again
        # at its next tick.
        assert len(second) == 3 or vendor == "mariadb"
    third = _claim()
    assert sorted([*first, *second, *third]) == [row.pk for row in rows]


def test_a_claim_that_finds_only_locked_rows_does_not_wait() -> None:
    many_tasks(3)
    with _open(_claim):
        assert _elsewhere(_claim) == []


def test_starts_and_endings_of_one_task_do_not_block_another() -> None:
    queued, running = many_tasks(2, Status.QUEUED), many_tasks(4, Status.RUNNING)
    with _open(
        lambda: (start(queued[0]), end(running[0], outcome=FAILURE), end(running[1], outcome=CRASH))
    ):
        assert _elsewhere(lambda: start(queued[1])) is not None
        assert _elsewhere(lambda: attempts.succeed(a_run(running[2]), None, "w"))
        assert _elsewhere(lambda: end(running[3], outcome=CRASH))
        assert _elsewhere(_insert)


def test_an_operator_who_locks_one_task_does_not_block_a_claim() -> None:
    failed, waiting = a_task(Status.FAILED), many_tasks(3)
    with _open(lambda: operator_actions.replay(question(failed), by="bob")):
        assert set(_elsewhere(_claim)) == {row.pk for row in waiting}
    assert Task.objects.pending().count() == 1
