"""A queue that cannot be published to, a job that fails or a signal does not block other queues and
jobs.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from celery import current_app
from django.core.exceptions import ImproperlyConfigured
from django.db import connection, transaction
from django.db.models.signals import pre_delete

from django_durable_tasks.celery import publisher
from django_durable_tasks.choices import Status
from django_durable_tasks.cluster.nodes import HeartbeatMonitor
from django_durable_tasks.models import OccurrenceRecord, Task
from django_durable_tasks.models.fields import DatabaseNow
from django_durable_tasks.scheduler.jobs import Job, Prune
from django_durable_tasks.scheduler.loop import Scheduler
from django_durable_tasks.scheduler.threads import PeriodicThread
from django_durable_tasks.states import claims
from django_durable_tasks.store import connections
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.tasks import claim
from tests.database.recurring.schedules import a_schedule
from tests.factories import QUEUE, a_task, many_tasks
from tests.messages import dispatch, take_task_messages
from tests.project import tasks
from tests.republishing import Leader
from tests.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)
NOWHERE = "a-nowhere"


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make Celery accept only configured queues."""
    queues = current_app.amqp.queues
    if QUEUE not in queues:
        queues.add(QUEUE)
    monkeypatch.setattr(queues, "create_missing", False)


def test_an_unknown_queue_stops_neither_the_scheduler_nor_other_queues(strict: None) -> None:
    lost, row = a_task(queue=NOWHERE, due=-60), a_task()
    Scheduler("one").round()
    assert [message.task_id for message in take_task_messages(QUEUE)] == [row.pk]
    lost.refresh_from_db()
    assert lost.status == Status.PENDING
    assert lost.due_at is not None
    assert lost.due_at > lost.updated_at


def test_tasks_due_together_with_one_of_an_unknown_queue_are_published(strict: None) -> None:
    lost, rows = a_task(queue=NOWHERE, due=-1), [a_task(due=-1) for _ in range(20)]
    sent = publisher.dispatch_these(
        [lost.pk, *(row.pk for row in rows)], database_now(), uuid.uuid4()
    )
    assert sent == 20
    assert {message.task_id for message in take_task_messages(QUEUE)} == {row.pk for row in rows}
    assert [row.pk for row in Task.objects.pending()] == [lost.pk]
    assert Task.objects.get(pk=lost.pk).epoch == lost.epoch + 2
    assert publisher.breaker.closed()


def test_no_task_of_a_rejected_queue_is_claimed_except_one_probe(
    strict: None, settings: Any
) -> None:
    settings.DURABLE_TASKS = {"BROKER_BACKOFF": 2}
    rows = [a_task(queue=NOWHERE, due=-1) for _ in range(5)]
    claimed = rows[0].epoch + 2

    def sent(ahead: float = 0.0) -> int:
        return dispatch(NOWHERE, database_now() + timedelta(hours=ahead), 5, uuid.uuid4())

    def epochs() -> list[int]:
        return sorted(Task.objects.filter(queue=NOWHERE).values_list("epoch", flat=True))

    def pass_the_delay() -> None:
        until(lambda: not publisher.backoff.remaining(NOWHERE), within=30)
        Task.objects.unguarded().update(due_at=DatabaseNow())

    assert (sent(), epochs()) == (0, [claimed] * 5)
    assert (sent(ahead=1), epochs()) == (0, [claimed] * 5)
    pass_the_delay()
    assert (sent(), epochs()) == (0, [*[claimed] * 4, claimed + 2])
    current_app.amqp.queues.add(NOWHERE)
    pass_the_delay()
    assert [sent(), sent()] == [1, 4]
    del current_app.amqp.queues[NOWHERE]


def test_a_call_whose_message_cannot_be_published_is_stored_and_raises_nothing(
    strict: None,
) -> None:
    current_app.amqp.queues.add("gone")
    call = tasks.noop.using(queue="gone")
    with transaction.atomic():
        kept = call.delay()
        del current_app.amqp.queues["gone"]
    row = Task.objects.get(pk=kept.id)
    assert (row.status, row.publish_count) == (Status.PENDING, 0)
    current_app.amqp.queues.add("gone")
    # The fast path of this queue is closed.
    assert Task.objects.get(pk=call.delay().id).status == Status.PENDING
    assert Task.objects.get(pk=tasks.noop.delay().id).status == Status.QUEUED


def test_a_broker_that_was_not_migrated_is_logged_once_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(messages: Any) -> Any:
        raise ImproperlyConfigured("Database 'default' has no table x: run `manage.py migrate`.")

    monkeypatch.setattr(publisher, "_publish_once", refuse)
    rows = [a_task(Status.QUEUED, due=60, publish_count=1) for _ in range(3)]
    claimed = claims.claimed_tasks(Task.objects.filter(pk__in=[row.pk for row in rows]))
    publisher.publish_claimed(claims.messages_for(claimed))
    (record,) = [one for one in caplog.records if "Publishing" in one.getMessage()]
    assert record.exc_info is None
    assert "run `manage.py migrate`. 3 tasks are published again in" in record.getMessage()
    assert set(Task.objects.values_list("status", flat=True)) == {Status.PENDING}


def test_a_message_that_no_broker_accepts_does_not_increase_the_delay_of_the_next() -> None:
    row = a_task(Status.QUEUED, due=-1, publish_count=5)
    fresh = a_task(Status.QUEUED, due=60, publish_count=1)
    publisher.breaker.failed()
    with connections.dedicated_connection():
        messages = claim.republish(Task.objects.filter(pk=row.pk), database_now(), 5)
    assert [message.number for message in messages] == [6]
    publisher.publish_claimed(messages)
    row.refresh_from_db()
    assert (row.status, row.publish_count) == (Status.QUEUED, 5)
    assert row.due_at is not None
    assert row.due_at <= database_now()
    claimed = claims.claimed_tasks(Task.objects.filter(pk=fresh.pk))
    publisher.publish_claimed(claims.messages_for(claimed))
    fresh.refresh_from_db()
    assert (fresh.status, fresh.publish_count) == (Status.PENDING, 0)


def test_tasks_queued_during_an_outage_are_compared_when_the_broker_answers_again(
    settings: Any,
) -> None:
    settings.DURABLE_TASKS = {"BATCH_SIZE": 2}
    take_task_messages(QUEUE)
    leader = Leader()
    rows = [a_task(Status.QUEUED, due=9, publish_count=7) for _ in range(5)]
    assert leader.compare() == 0
    publisher.breaker.failed()
    assert leader.compare() == 0
    publisher.breaker.succeeded()
    assert leader.compare() == 5
    assert {message.task_id for message in take_task_messages(QUEUE)} == {row.pk for row in rows}
    assert leader.compare() == 0


def test_after_an_outage_nothing_is_published_to_a_rejected_queue(strict: None) -> None:
    take_task_messages(QUEUE)
    a_task(Status.QUEUED, queue=NOWHERE, due=-1, publish_count=3)
    row, leader = a_task(Status.QUEUED, due=-1), Leader()
    leader.compare()
    assert {message.task_id for message in take_task_messages(QUEUE)} == {row.pk}
    lost = Task.objects.get(queue=NOWHERE)
    assert (lost.status, lost.publish_count) == (Status.QUEUED, 3)


def test_undoing_a_publish_leaves_tasks_that_were_published_or_started_meanwhile() -> None:
    row = a_task(Status.QUEUED, due=-1, publish_count=5)
    messages = [(row.pk, row.epoch, 4), (row.pk, row.epoch + 1, 5)]
    assert claims.not_published(messages, 0.0) == 0
    assert claims.not_published([(row.pk, row.epoch, 5)], 0.0) == 1


@pytest.fixture
def no_dead_letters() -> Iterator[None]:
    """Make every query of dead letters fail."""
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE durable_tasks_dead_letter RENAME TO hidden_away")
    yield
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE hidden_away RENAME TO durable_tasks_dead_letter")


@pytest.mark.postgresql
def test_a_failing_job_stops_neither_the_other_jobs_nor_the_heartbeat_monitor(
    no_dead_letters: None, settings: Any
) -> None:
    settings.DURABLE_TASKS = {"WATCHDOG_URL": "https://watchdog.example/"}
    scheduler = Scheduler("one")
    scheduler.leader.step()
    scheduler.maintenance.round()
    assert scheduler.steps.is_failing("Job watch_dead_letters")
    assert Task.objects.get().name == "django_durable_tasks.watchdog"
    assert scheduler.maintenance.monitor.contact == 1


@pytest.mark.postgresql
def test_a_read_only_database_does_not_count_as_contact() -> None:
    scheduler = Scheduler("one")
    scheduler.maintenance.round()
    assert scheduler.maintenance.monitor.contact == 1
    name = connection.ops.quote_name(str(connection.settings_dict["NAME"]))
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    try:
        connections.close_all()
        scheduler.maintenance._read_at = 0.0
        scheduler.maintenance.round()
        assert scheduler.maintenance.monitor.contact == 0
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
        connections.close_all()


@pytest.fixture
def exiting_receiver() -> Iterator[None]:
    """Connect a receiver that ends its thread when a task of queue "exit" is deleted."""

    def leave(instance: Task, **_: Any) -> None:
        if instance.queue == "exit":
            sys.exit("enough")

    pre_delete.connect(leave, sender=Task)
    yield
    pre_delete.disconnect(leave, sender=Task)


def test_a_receiver_that_calls_sys_exit_keeps_only_its_own_task(
    exiting_receiver: None, settings: Any
) -> None:
    settings.DURABLE_TASKS = {"RETENTION": {"CANCELLED": 0.001}}
    old = database_now() - timedelta(days=2)
    kept = a_task(Status.CANCELLED, completed_at=old, queue="exit")
    a_task(Status.CANCELLED, completed_at=old)
    scheduler = Scheduler("one")
    scheduler.leader.step()
    scheduler.maintenance.round()
    assert not scheduler.steps.is_failing("Job prune")
    assert Task.objects.get() == kept


def test_a_thread_whose_round_calls_sys_exit_begins_the_next_round() -> None:
    rounds = list[int]()

    def act() -> float:
        rounds.append(1)
        if len(rounds) == 1:
            sys.exit()
        return 60.0

    thread = PeriodicThread("test", act)
    thread.start()
    until(lambda: len(rounds) == 2, within=30, message="a second round")
    thread.stop()
    assert not thread.is_alive()


def test_heartbeats_of_nodes_are_read_between_jobs_too(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = Scheduler("one")
    scheduler.leader.step()

    def long_job(now: datetime, monitor: HeartbeatMonitor) -> int:
        scheduler.maintenance._read_at = 0.0  # long enough that the heartbeats are read again
        return 0

    found = [Job(f"job {number}", long_job, every=1.0) for number in range(3)]
    monkeypatch.setattr(scheduler.maintenance.schedule, "take_due", lambda: found)
    scheduler.maintenance.round()
    assert scheduler.maintenance.monitor.contact == 3


def test_pruning_continues_until_nothing_is_left(settings: Any) -> None:
    settings.DURABLE_TASKS = {"BATCH_SIZE": 10, "RETENTION": {"CANCELLED": 0.001}}
    many_tasks(35, Status.CANCELLED)
    job, later = Prune(), database_now() + timedelta(hours=1)
    assert all(iter(lambda: job(later, HeartbeatMonitor()), 0))
    assert not Task.objects.exists()


@pytest.fixture
def prune(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """A job that prunes, an hour from now, and ends its slice after each batch."""
    monkeypatch.setattr("django_durable_tasks.scheduler.jobs._SLICE", 0.0)
    job, later = Prune(), database_now() + timedelta(hours=1)
    return lambda: job(later, HeartbeatMonitor())


def test_pruning_runs_again_soon_while_it_skips_tasks_that_are_kept(
    settings: Any, prune: Callable[[], int]
) -> None:
    settings.DURABLE_TASKS = {"BATCH_SIZE": 5, "RETENTION": {"CANCELLED": 0.001}}
    kept = [a_task(Status.CANCELLED, idempotency_key=f"key {number}") for number in range(15)]
    a_task(Status.CANCELLED)
    assert all(prune() for _ in range(4))  # a page of each kind
    assert Task.objects.count() == 16
    assert sum(iter(prune, 0)) >= 3  # the other pages of tasks
    assert set(Task.objects.values_list("pk", flat=True)) == {row.pk for row in kept}


def test_pruning_an_endless_backlog_of_tasks_still_prunes_the_ledger(
    settings: Any, prune: Callable[[], int]
) -> None:
    settings.DURABLE_TASKS = {"BATCH_SIZE": 1, "RETENTION": {"CANCELLED": 0.001, "LEDGER": 0.001}}
    many_tasks(10, Status.CANCELLED)
    a_schedule().trigger_now()
    for _ in range(4):
        prune()
    assert not OccurrenceRecord.objects.exists()
    assert Task.objects.filter(status=Status.CANCELLED).count() == 9


def test_a_scheduler_that_is_asked_to_stop_during_any_operation_stops() -> None:
    scheduler = Scheduler("one")
    before = signal.signal(signal.SIGUSR2, lambda *_: scheduler.stop())
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR2)).start()
    try:
        scheduler.run()
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert not scheduler.leader.is_alive()


def test_broker_connections_of_a_peak_are_closed_after_they_have_been_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    publisher.close_idle()
    with publisher.borrowed(), publisher.borrowed(), publisher.borrowed():
        pass
    assert publisher._pool.count() == 3
    monkeypatch.setattr("django_durable_tasks.process_state.IDLE_FOR", 0.0)
    for left in (2, 1, 1):
        with publisher.borrowed():
            pass
        assert publisher._pool.count() == left
