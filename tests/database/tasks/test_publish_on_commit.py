"""A rolled-back task is gone, a committed one is published by one hook per transaction, under the
conditions of the fast path.
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

from django_durable_tasks.celery import publisher
from django_durable_tasks.choices import Status
from django_durable_tasks.limits import backpressure
from django_durable_tasks.models import Task
from django_durable_tasks.states import endings
from django_durable_tasks.tasks import enqueue
from tests.factories import NOOP, QUEUE, a_node, a_paused_queue, a_task, many_tasks
from tests.messages import take_task_messages
from tests.process_state import new_process_state
from tests.project import tasks

pytestmark = pytest.mark.django_db(transaction=True)


def _delay(**options: Any) -> Task:
    row: Task = tasks.noop.using(queue=QUEUE, **options).delay().task
    return row


def _hooks() -> int:
    return len(connection.run_on_commit)


class _Abort(Exception):
    """The exception with which the tests roll back."""


@contextmanager
def _rolled_back() -> Iterator[None]:
    with suppress(_Abort), transaction.atomic():
        yield
        raise _Abort


def test_a_task_outside_a_transaction_is_published_at_once() -> None:
    row = _delay()
    assert (row.status, row.epoch, row.publish_count) == (Status.QUEUED, 1, 1)
    (message,) = take_task_messages(QUEUE)
    assert (message.task_id, message.epoch) == (row.pk, 1)
    # It is republished after 15 seconds.
    assert row.due_at is not None
    assert (row.due_at - row.run_at).total_seconds() == pytest.approx(15)


def test_nothing_is_published_before_the_commit_and_everything_after_it_by_one_hook() -> None:
    with transaction.atomic():
        rows = [_delay() for _ in range(5)]
        assert _hooks() == 1
        assert take_task_messages(QUEUE) == []
    assert [message.task_id for message in take_task_messages(QUEUE)] == [row.pk for row in rows]


def test_a_rolled_back_task_does_not_exist() -> None:
    with _rolled_back():
        _delay()
        tasks.noop.using(queue=QUEUE, key="k").schedule()
        tasks.add.schedule_many([(1, 2)] * 3)
    assert not Task.objects.exists()
    assert take_task_messages(QUEUE) == []


def test_a_rolled_back_savepoint_removes_its_tasks_and_messages() -> None:
    with transaction.atomic():
        before = _delay()
        with _rolled_back():
            _delay()
        with transaction.atomic():
            inside = _delay()
        after = _delay()
    committed = {before.pk, inside.pk, after.pk}
    assert {row.pk for row in Task.objects.all()} == committed
    assert {message.task_id for message in take_task_messages(QUEUE)} == committed


def test_a_savepoint_false_block_shares_the_hook_of_its_transaction() -> None:
    with transaction.atomic():
        _delay()
        with transaction.atomic(savepoint=False):
            _delay()
        assert _hooks() <= 2
    assert len(take_task_messages(QUEUE)) == 2


def test_a_transaction_publishes_at_most_a_hundred_and_the_rest_wait_for_the_poll(
    settings: Any,
) -> None:
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "QUEUE_WINDOW": 200}
    with transaction.atomic():
        rows = [_delay() for _ in range(105)]
        assert _hooks() == (2 if connection.vendor == "postgresql" else 1), (
            "one publishes; one notifies if it can"
        )
    assert [row.status for row in rows] == [Status.QUEUED] * 100 + [Status.PENDING] * 5
    assert len(take_task_messages(QUEUE)) == 100


def test_the_hundred_are_counted_across_savepoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enqueue, "FAST_PATH_MAX", 3)
    with transaction.atomic():
        rows = []
        for _ in range(5):
            with transaction.atomic():
                rows.append(_delay())
    assert [row.status for row in rows] == [Status.QUEUED] * 3 + [Status.PENDING] * 2


def test_hooks_run_twice_in_one_transaction_publish_tasks_created_in_between() -> None:
    """Django's ``captureOnCommitCallbacks`` runs hooks while the transaction around a test
    continues.
    """
    with transaction.atomic():
        for _ in range(3):
            with TestCase.captureOnCommitCallbacks(execute=True):
                row = _delay()
            assert [message.task_id for message in take_task_messages(QUEUE)] == [row.pk]


def test_a_failing_hook_of_the_package_does_not_stop_other_hooks() -> None:
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
def test_with_autocommit_switched_off_a_task_is_created_pending_and_nothing_is_raised() -> None:
    row = _delay()
    keyed = tasks.noop.using(queue=QUEUE, key="k").schedule()
    assert tasks.noop.using(queue=QUEUE, key="k").schedule().pk == keyed.pk
    once = [tasks.noop.using(queue=QUEUE, idempotency_key="i").schedule().pk for _ in range(2)]
    assert once[0] == once[1]
    assert {row.status, keyed.status} == {Status.PENDING}
    connection.commit()
    assert Task.objects.count() == 3
    assert take_task_messages(QUEUE) == []


@pytest.mark.usefixtures("_autocommit_off")
def test_with_autocommit_switched_off_a_rollback_removes_the_task() -> None:
    _delay()
    connection.rollback()
    assert not Task.objects.exists()


# The conditions of the fast path ------------------------------------------------------------------


def test_a_task_for_later_is_not_published() -> None:
    row = _delay(run_at=timezone.now() + timedelta(seconds=60))
    assert (row.status, take_task_messages(QUEUE)) == (Status.PENDING, [])


def test_a_task_whose_time_has_passed_is_published_at_once() -> None:
    assert _delay(run_at=timezone.now() - timedelta(days=1)).status == Status.QUEUED


def test_a_paused_queue_is_not_published_to() -> None:
    a_paused_queue()
    new_process_state()
    assert _delay().status == Status.PENDING
    assert tasks.urgent.delay().task.status == Status.QUEUED
    take_task_messages("urgent")


def test_a_full_window_is_not_published_to() -> None:
    many_tasks(2, Status.QUEUED)
    with override_settings(DURABLE_TASKS={"QUEUE_WINDOW": 3}):
        new_process_state()
        assert [_delay().status for _ in range(2)] == [Status.QUEUED, Status.PENDING]


def test_the_fast_path_leaves_half_of_the_window_to_tasks_that_wait_longer() -> None:
    waiting = a_task(due=-60)
    with override_settings(DURABLE_TASKS={"QUEUE_WINDOW": 4}):
        new_process_state()
        assert [_delay().status for _ in range(3)] == [Status.QUEUED, Status.QUEUED, Status.PENDING]
        endings.cancel(Task.objects.filter(pk=waiting.pk), "TEST")
        new_process_state()
        assert [_delay().status for _ in range(3)] == [Status.QUEUED, Status.QUEUED, Status.PENDING]


def test_with_an_open_breaker_nothing_is_published_and_no_call_blocks() -> None:
    publisher.breaker.failed()
    assert _delay().status == Status.PENDING
    publisher.breaker.succeeded()
    assert _delay().status == Status.QUEUED


def test_the_fast_path_can_be_switched_off() -> None:
    with override_settings(DURABLE_TASKS={"FAST_PATH": False}):
        assert _delay().status == Status.PENDING


def test_the_window_follows_the_concurrency_and_the_starts_that_workers_report() -> None:
    smallest = backpressure.SMALLEST_WINDOW
    assert backpressure.snapshot().window(QUEUE) == smallest
    a_node(concurrency=150, queues=[QUEUE], active={"number": 9, "ids": [], "starts": 80.4})
    a_node(concurrency=50, queues=[QUEUE, "other"])
    a_node(concurrency=999, queues=[QUEUE], stopped=1, active={"starts": 1_000})
    snapshot = backpressure.snapshot()
    assert (snapshot.window(QUEUE), snapshot.window("other")) == (480, 100)
    assert snapshot.window("elsewhere") == smallest


def test_the_snapshot_is_read_on_a_connection_of_the_engine() -> None:
    with transaction.atomic():
        new_process_state()
        many_tasks(5, Status.QUEUED)
        assert backpressure.FastPath().is_open(NOOP, QUEUE, 1)
