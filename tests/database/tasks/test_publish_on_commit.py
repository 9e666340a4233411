"""Rolled back means gone, committed means rung: one hook a transaction, and the conditions of the
fast path.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import TestCase, override_settings
from django.utils import timezone

from django_durable_tasks.celery.publishing import broker_outage
from django_durable_tasks.engine import transitions
from django_durable_tasks.engine.limits import backpressure
from django_durable_tasks.models import Task
from django_durable_tasks.rules.states import Status
from tests.factories import NOOP, QUEUE, a_node, a_paused_queue, a_task, many_tasks
from tests.messages import take_rings
from tests.process_state import new_process_state
from tests.project import tasks

pytestmark = pytest.mark.django_db(transaction=True)


def _delay(**options: Any) -> Task:
    row: Task = tasks.noop.using(queue=QUEUE, **options).delay().task
    return row


def _hooks() -> int:
    return len(connection.run_on_commit)


class _Abort(Exception):
    """What the tests roll back with."""


@contextmanager
def _rolled_back() -> Iterator[None]:
    with suppress(_Abort), transaction.atomic():
        yield
        raise _Abort


def test_a_task_outside_a_transaction_is_rung_at_once() -> None:
    row = _delay()
    assert (row.status, row.epoch, row.publish_count) == (Status.QUEUED, 1, 1)
    assert [(message.task_id, message.epoch) for message in take_rings(QUEUE)] == [(row.pk, 1)]


def test_the_alarm_of_a_row_that_was_rung_is_a_quarter_of_a_minute_away() -> None:
    row = _delay()
    assert row.due_at is not None
    assert (row.due_at - row.run_at).total_seconds() == pytest.approx(15)


def test_nothing_is_rung_before_the_commit_and_everything_after_it_by_one_hook() -> None:
    with transaction.atomic():
        rows = [_delay() for _ in range(5)]
        assert _hooks() == 1
        assert take_rings(QUEUE) == []
    assert [message.task_id for message in take_rings(QUEUE)] == [row.pk for row in rows]


def test_rolled_back_means_gone() -> None:
    with _rolled_back():
        _delay()
        tasks.noop.using(queue=QUEUE, key="k").schedule()
        tasks.add.schedule_many([(1, 2)] * 3)
    assert not Task.objects.exists()
    assert take_rings(QUEUE) == []


def test_a_savepoint_that_is_rolled_back_takes_its_tasks_and_rings_with_it() -> None:
    with transaction.atomic():
        before = _delay()
        with _rolled_back():
            _delay()
        with transaction.atomic():
            inside = _delay()
        after = _delay()
    assert {row.pk for row in Task.objects.all()} == {before.pk, inside.pk, after.pk}
    assert {message.task_id for message in take_rings(QUEUE)} == {before.pk, inside.pk, after.pk}


def test_a_savepoint_that_does_not_exist_shares_the_hook_of_its_transaction() -> None:
    with transaction.atomic():
        _delay()
        with transaction.atomic(savepoint=False):
            _delay()
        assert _hooks() <= 2
    assert len(take_rings(QUEUE)) == 2


def test_a_transaction_rings_a_hundred_at_most_and_the_rest_wait_for_the_poll() -> None:
    with transaction.atomic():
        rows = [_delay() for _ in range(105)]
        assert _hooks() == (2 if connection.vendor == "postgresql" else 1), (
            "one rings; one wakes where it can"
        )
    assert [row.status for row in rows] == [Status.QUEUED] * 100 + [Status.PENDING] * 5
    assert len(take_rings(QUEUE)) == 100


def test_the_hundred_are_counted_over_savepoints() -> None:
    with override_settings(DURABLE_TASKS={"FAST_PATH_MAX": 3}), transaction.atomic():
        rows = []
        for _ in range(5):
            with transaction.atomic():
                rows.append(_delay())
    assert [row.status for row in rows] == [Status.QUEUED] * 3 + [Status.PENDING] * 2


def test_a_test_that_runs_its_hooks_twice_in_one_transaction_rings_for_what_came_between() -> None:
    """Django's ``captureOnCommitCallbacks`` runs hooks while the transaction around a
    test goes on.
    """
    with transaction.atomic():
        for _ in range(3):
            with TestCase.captureOnCommitCallbacks(execute=True):
                row = _delay()
            assert [message.task_id for message in take_rings(QUEUE)] == [row.pk]


def test_a_hook_of_ours_that_fails_does_not_take_the_hooks_of_others_with_it() -> None:
    called = []
    with transaction.atomic():
        _delay()
        transaction.on_commit(lambda: called.append(1))
    assert called == [1]


@pytest.fixture
def _autocommit_off() -> Iterator[None]:
    connection.set_autocommit(False)
    yield
    connection.rollback()
    connection.set_autocommit(True)


@pytest.mark.usefixtures("_autocommit_off")
def test_with_autocommit_switched_off_by_hand_a_task_is_born_pending_and_nothing_is_raised() -> (
    None
):
    row = _delay()
    keyed = tasks.noop.using(queue=QUEUE, key="k").schedule()
    assert tasks.noop.using(queue=QUEUE, key="k").schedule().pk == keyed.pk
    once = [tasks.noop.using(queue=QUEUE, idempotency_key="i").schedule().pk for _ in range(2)]
    assert once[0] == once[1]
    assert {row.status, keyed.status} == {Status.PENDING}
    connection.commit()
    assert Task.objects.count() == 3
    assert take_rings(QUEUE) == []


@pytest.mark.usefixtures("_autocommit_off")
def test_with_autocommit_switched_off_by_hand_a_rollback_takes_the_task_with_it() -> None:
    _delay()
    connection.rollback()
    assert not Task.objects.exists()


# The conditions of the fast path ------------------------------------------------------------------


def test_a_task_for_later_waits_in_its_row() -> None:
    row = _delay(run_at=timezone.now() + timedelta(seconds=60))
    assert (row.status, take_rings(QUEUE)) == (Status.PENDING, [])


def test_a_task_whose_time_has_passed_is_rung_at_once() -> None:
    assert _delay(run_at=timezone.now() - timedelta(days=1)).status == Status.QUEUED


def test_a_paused_queue_takes_no_fast_path() -> None:
    a_paused_queue()
    new_process_state()
    assert _delay().status == Status.PENDING
    assert tasks.urgent.delay().task.status == Status.QUEUED
    take_rings("urgent")


def test_a_full_window_takes_no_fast_path() -> None:
    many_tasks(2, Status.QUEUED)
    with override_settings(DURABLE_TASKS={"QUEUE_WINDOW": 3}):
        new_process_state()
        assert [_delay().status for _ in range(2)] == [Status.QUEUED, Status.PENDING]


def test_births_leave_half_of_the_window_to_rows_that_wait_longer() -> None:
    waiting = a_task(due=-60)
    with override_settings(DURABLE_TASKS={"QUEUE_WINDOW": 4}):
        new_process_state()
        assert [_delay().status for _ in range(3)] == [Status.QUEUED, Status.QUEUED, Status.PENDING]
        transitions.cancel(Task.objects.filter(pk=waiting.pk), "TEST")
        new_process_state()
        assert [_delay().status for _ in range(3)] == [Status.QUEUED, Status.QUEUED, Status.PENDING]


def test_an_open_breaker_takes_no_fast_path_and_nobody_is_blocked() -> None:
    broker_outage.breaker.failed()
    assert _delay().status == Status.PENDING
    broker_outage.breaker.succeeded()
    assert _delay().status == Status.QUEUED


def test_the_fast_path_can_be_switched_off() -> None:
    with override_settings(DURABLE_TASKS={"FAST_PATH": False}):
        assert _delay().status == Status.PENDING


def test_the_window_is_a_thousand_while_no_worker_is_known_and_follows_the_slots_then() -> None:
    assert backpressure.snapshot().window(QUEUE) == 1_000
    a_node(concurrency=150, queues=[QUEUE])
    a_node(concurrency=50, queues=[QUEUE, "other"])
    a_node(concurrency=999, queues=[QUEUE], stopped=1)
    picture = backpressure.snapshot()
    assert (picture.window(QUEUE), picture.window(QUEUE, starts_per_second=100)) == (400, 600)
    assert picture.window("other") == 200


def test_the_picture_is_painted_on_a_connection_of_our_own() -> None:
    with transaction.atomic():
        new_process_state()
        many_tasks(5, Status.QUEUED)
        assert backpressure.FastPath().is_open(NOOP, QUEUE, 1)
