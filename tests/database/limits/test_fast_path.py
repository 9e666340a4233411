"""The fast path uses a queue snapshot that a background thread reads. No caller waits for it inside
a transaction.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.backends.signals import connection_created
from django.test.utils import CaptureQueriesContext

from django_durable_tasks import process_state
from django_durable_tasks.choices import Status
from django_durable_tasks.limits import backpressure
from django_durable_tasks.limits.backpressure import RecentQueueState, late
from django_durable_tasks.models import BatchMessage, Task
from django_durable_tasks.process_state import Refresher
from django_durable_tasks.store import connections
from django_durable_tasks.store.clock import database_now
from tests.celery_settings import celery_configured
from tests.factories import QUEUE, a_paused_queue, a_task, a_tenant, many_tasks
from tests.messages import take_messages, take_task_messages
from tests.process_state import new_process_state
from tests.project import batched, tasks
from tests.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def as_in_production() -> Iterator[list[int]]:
    """Let a thread read the state of queues, and return the threads that open engine
    connections."""
    new_process_state(background=True)
    connections.close_all()
    opened: list[int] = []

    def note(sender: Any, **_: Any) -> None:
        opened.append(threading.get_ident())

    connection.ensure_connection()
    connection_created.connect(note)
    yield opened
    connection_created.disconnect(note)
    new_process_state()
    take_task_messages(QUEUE)


def _state() -> RecentQueueState:
    return process_state.of(RecentQueueState)


def _delay() -> Task:
    return tasks.add.using(queue=QUEUE).schedule(1, 2)


def _published_in_a_transaction() -> bool:
    with transaction.atomic():
        return bool(_delay().status == Status.QUEUED)


def test_a_call_in_a_transaction_opens_no_second_connection_and_waits_for_none(
    as_in_production: list[int],
) -> None:
    # The lock prevents the background thread from reading the snapshot before the call uses it.
    with _state()._lock, transaction.atomic():
        assert _delay().status == Status.PENDING
        tasks.add.using(queue=QUEUE).apply_async((1, 2), countdown=100)
    assert threading.get_ident() not in as_in_production
    until(
        _published_in_a_transaction,
        within=30,
        message="the background thread has read the queue's state",
    )
    assert threading.get_ident() not in as_in_production


def test_the_first_call_outside_a_transaction_reads_the_snapshot_itself(
    as_in_production: list[int],
) -> None:
    assert _delay().status == Status.QUEUED
    with transaction.atomic():
        assert _delay().status == Status.QUEUED


def test_a_call_for_a_batch_reads_no_snapshot_and_publishes_unless_the_queue_is_paused(
    as_in_production: list[int],
) -> None:
    add = batched.add.using(queue=QUEUE)
    with _state()._lock:  # nothing is known yet
        assert add.schedule(1, 2).status == Status.PENDING
    assert threading.get_ident() not in as_in_production
    assert len(take_messages(QUEUE)) == 1
    a_paused_queue()
    _state()._read()

    def is_kept() -> bool:
        BatchMessage.objects.all().delete()
        add.schedule(1, 2)
        return not take_messages(QUEUE)

    until(is_kept, within=30, message="the pause is known")


def test_in_eager_mode_a_call_in_a_transaction_runs_at_its_commit(
    as_in_production: list[int],
) -> None:
    with celery_configured(task_always_eager=True), transaction.atomic():
        task = _delay()
    task.refresh_from_db()
    assert task.status == Status.SUCCESS


def test_the_thread_notices_that_a_queue_was_paused(as_in_production: list[int]) -> None:
    assert _delay().status == Status.QUEUED
    a_paused_queue()
    until(lambda: _delay().status == Status.PENDING, within=30, message="the pause is known")


def test_a_failed_thread_is_restarted_and_an_unused_one_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[int] = []

    def act() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise ValueError("the first time")

    refresher = Refresher("a test", act, 0.01)
    refresher.ask()
    until(lambda: refresher._thread is None, within=30)
    refresher.ask()
    until(lambda: len(calls) > 3, within=30)
    monkeypatch.setattr("django_durable_tasks.process_state.KEPT_FOR", 0.0)
    until(lambda: refresher._thread is None, within=30)
    refresher.ask()
    refresher.stop(10.0)
    assert refresher._thread is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_child_has_a_thread_of_its_own(as_in_production: list[int]) -> None:
    assert _delay().status == Status.QUEUED
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.write(write, b"fresh" if _state()._refresher._thread is None else b"stale")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 10) == b"fresh"
    os.close(read)
    os.close(write)


def test_only_the_queues_that_this_process_publishes_to_are_read() -> None:
    many_tasks(3, Status.QUEUED, queue="elsewhere")
    many_tasks(2, Status.QUEUED)
    found = backpressure.snapshot({QUEUE})
    assert found.queued == {QUEUE: 2}
    assert backpressure.snapshot().queued == {QUEUE: 2, "elsewhere": 3}


def test_the_share_of_a_tenant_counts_the_tenants_of_its_queue_only() -> None:
    one, two = a_tenant(), a_tenant()
    for number in range(5):
        many_tasks(1, Status.QUEUED, queue=f"elsewhere-{number}", tenant=a_tenant())
    many_tasks(4, Status.QUEUED, tenant=one)
    found = backpressure.snapshot()
    assert (found.share(QUEUE, one.pk), found.share(QUEUE, two.pk)) == (25 - 4, 25)


def test_a_queue_is_behind_if_a_due_task_of_any_priority_waits(vendor: str) -> None:
    now = database_now()
    a_task(due=-60, priority=7, queue="late")
    a_task(due=60, queue="early")
    a_task(due=-60, queue="not asked")
    with CaptureQueriesContext(connection) as asked:
        assert late({"late", "early", "empty"}, now - timedelta(seconds=1)) == {"late"}
    assert len(asked) == 1


def _servers_connections() -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid()"
        )
        (number,) = cursor.fetchone()
    return int(number)


@pytest.mark.postgresql
def test_no_connection_is_open_when_django_drops_a_database(as_in_production: list[int]) -> None:
    """Django's test runner drops its database at the end of a run, which PostgreSQL refuses while
    a connection to it is open.
    """
    assert _delay().status == Status.QUEUED
    until(_published_in_a_transaction, within=30, message="the background thread runs")
    assert _servers_connections() > 0
    with connection._nodb_cursor():
        assert connections.count() == 0
    until(lambda: _servers_connections() == 0, within=30, message="the server ended them")
    assert not [one for one in threading.enumerate() if one.name == "durable-queue-state"]
