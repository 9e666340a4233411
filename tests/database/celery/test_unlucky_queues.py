"""A queue that cannot be published to, a duty that fails and a signal hold nothing else up."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from celery import current_app
from django.db import connection

from django_durable_tasks.lifecycle import connections
from django_durable_tasks.lifecycle.clock import database_now
from django_durable_tasks.models import Task
from django_durable_tasks.rules.states import Status
from django_durable_tasks.scheduler import duties
from django_durable_tasks.scheduler.loop import Scheduler
from tests.factories import QUEUE, a_task, many_tasks
from tests.messages import take_rings
from tests.project import tasks

pytestmark = pytest.mark.django_db(transaction=True)
NOWHERE = "a-nowhere"


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Celery know only the queues that it was told of."""
    queues = current_app.amqp.queues
    if QUEUE not in queues:
        queues.add(QUEUE)
    monkeypatch.setattr(queues, "create_missing", False)


def test_a_queue_that_celery_does_not_know_stops_neither_the_scheduler_nor_other_queues(strict: None) -> None:
    lost, row = a_task(queue=NOWHERE, due=-60), a_task()
    Scheduler("one").round()
    assert [ring.task_id for ring in take_rings(QUEUE)] == [row.pk]
    lost.refresh_from_db()
    assert lost.status == Status.PENDING
    assert lost.alarm_at is not None
    assert lost.alarm_at > lost.updated_at


def test_ringing_again_reaches_the_rows_beside_one_that_cannot_be_rung(strict: None) -> None:
    a_task(Status.QUEUED, queue=NOWHERE, due=-60)
    row = a_task(Status.QUEUED, due=-1)
    scheduler = Scheduler("one")
    scheduler.leader.step()
    scheduler.round()
    assert {ring.task_id for ring in take_rings(QUEUE)} == {row.pk}  # doubled rings are dropped


def test_a_call_whose_ring_cannot_be_published_is_kept_and_raises_nothing(strict: None) -> None:
    current_app.amqp.queues.add("gone")
    call = tasks.noop.using(queue="gone")
    del current_app.amqp.queues["gone"]
    row = Task.objects.get(pk=call.delay().id)
    assert row.is_open


@pytest.fixture
def no_dead_letters() -> Iterator[None]:
    """Let every question for dead letters fail."""
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE durable_tasks_dead_letter RENAME TO hidden_away")
    yield
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE hidden_away RENAME TO durable_tasks_dead_letter")


@pytest.mark.postgresql
def test_a_duty_that_fails_keeps_neither_its_sisters_nor_the_vigil_from_going_on(no_dead_letters: None) -> None:
    scheduler = Scheduler("one")
    scheduler.leader.step()
    row = a_task(Status.QUEUED, due=-1)
    scheduler.round()
    assert "The duty watch_dead_letters" in scheduler._failing
    assert [ring.task_id for ring in take_rings(QUEUE)] == [row.pk]
    assert scheduler._vigil.contact == 1


@pytest.mark.postgresql
def test_a_database_that_answers_but_takes_no_writes_is_no_contact() -> None:
    scheduler = Scheduler("one")
    scheduler.round()
    assert scheduler._vigil.contact == 1
    name = connection.ops.quote_name(str(connection.settings_dict["NAME"]))
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    try:
        connections.close_all()
        scheduler._look_at = 0.0
        scheduler.round()
        assert scheduler._vigil.contact == 0
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
        connections.close_all()


def test_pruning_goes_on_until_nothing_is_left(settings: Any) -> None:
    settings.DURABLE_TASKS = {"BATCH_SIZE": 10, "RETENTION": {"CANCELLED": 0.001}}
    many_tasks(35, Status.CANCELLED)
    assert duties.prune(database_now() + timedelta(hours=1), Scheduler("one")._vigil) == 35


def test_a_scheduler_asked_to_stop_in_the_middle_of_anything_stops() -> None:
    scheduler = Scheduler("one")
    before = signal.signal(signal.SIGUSR2, lambda *_: scheduler.stop())
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR2)).start()
    try:
        scheduler.run()
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert not scheduler.leader.is_alive()
