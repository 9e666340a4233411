"""A worker takes durable tasks at their due times, which it reads ahead."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import kombu
import pytest
from django.db import connection, transaction

from django_durable_tasks import conf, ports
from django_durable_tasks.celery import worker_node
from django_durable_tasks.choices import Status
from django_durable_tasks.cluster import queues
from django_durable_tasks.contrib.database_transport import consumers, due_tasks
from django_durable_tasks.contrib.database_transport.due_tasks import DueTasks
from django_durable_tasks.limits.backpressure import read_heads
from django_durable_tasks.models import Task
from django_durable_tasks.scheduler import notifier
from django_durable_tasks.states.demand import QueueDemand
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.tasks import claim
from tests.factories import NOOP, QUEUE, a_task, many_tasks
from tests.project import tasks
from tests.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)


class _Worker:
    """Takes tasks as a consumer does that nothing wakes."""

    def __init__(self, channel: Any) -> None:
        self.due_tasks, self.taken = DueTasks(), 0
        self.channels = {QUEUE: channel}

    def turn(self) -> int:
        """Take what is due if the time has come; return how many tasks were taken up to now."""
        if time.monotonic() >= self.due_tasks.look_at:
            self.taken += len(list(self.due_tasks.take(self.channels)))
        return self.taken


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The looks for due times."""
    found = list[Any]()

    def read(until: datetime) -> Any:
        found.append(until)
        return read_heads(until)

    monkeypatch.setattr(due_tasks, "read_heads", read)
    return found


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Worker]:
    """A worker with three free processes."""
    monkeypatch.setattr(worker_node, "free_processes", lambda *_: 3)
    monkeypatch.setattr(worker_node, "names_in_use", lambda: [NOOP])
    with kombu.Connection("memory://") as broker:
        found = _Worker(broker.default_channel)
        yield found
        found.due_tasks.give_back()


def test_each_known_due_time_is_kept_without_another_look(
    worker: _Worker, looks: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look returns only the first due time of each queue. A worker that does not read the others
    starts a task that follows another one at its next look, up to a second late.
    """
    monkeypatch.setattr(due_tasks, "LOOK_EVERY", 600.0)
    a_task()
    for due in (0.3, 0.5, 0.7):
        a_task(due=due)
    until(lambda: worker.turn() == 4, within=30)
    assert len(looks) == 1
    assert Task.objects.running().count() == 4


def test_due_times_beyond_those_that_were_read_are_read_at_the_last_one(
    worker: _Worker, looks: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(due_tasks, "LOOK_EVERY", 600.0)
    monkeypatch.setattr(due_tasks, "_DUE_TIMES", 2)
    for due in (0.3, 0.4, 0.5, 0.6):
        a_task(due=due)
    until(lambda: worker.turn() == 4, within=30)
    assert len(looks) <= 4


def test_a_due_time_whose_task_is_not_taken_is_looked_for_once(
    worker: _Worker, looks: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(due_tasks, "LOOK_EVERY", 600.0)
    row = a_task(due=0.5)
    worker.turn()
    queues.pause(QUEUE, by="anna")
    until(lambda: (worker.turn(), len(looks) == 2)[1], within=30)
    assert worker.due_tasks.look_at > time.monotonic() + 60
    queues.resume(QUEUE, by="anna")
    worker.due_tasks.look_again()
    worker.due_tasks.look_at = 0.0  # as a notification does
    until(lambda: worker.turn() == 1, within=30)
    row.refresh_from_db()
    assert row.status == Status.RUNNING


def test_more_due_tasks_than_free_processes_are_taken_without_a_look(
    worker: _Worker, looks: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(due_tasks, "LOOK_EVERY", 600.0)
    monkeypatch.setattr(due_tasks, "_KNOWN_FOR", 600.0)
    many_tasks(10)
    until(lambda: worker.turn() == 10, within=30)
    assert len(looks) <= 2


def test_what_was_only_claimed_returns_if_it_cannot_be_delivered(
    worker: _Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its message exists in this process only. It waited for a scheduler to publish it again."""
    monkeypatch.setattr(worker_node, "names_in_use", lambda: ["tests.project.tasks.add"])
    monkeypatch.setattr(worker_node, "free_processes", lambda *_: 0)
    worker.due_tasks._gap = 0.01
    row = a_task()
    until(lambda: (worker.turn(), Task.objects.get().status == "QUEUED")[1], within=30)
    worker.due_tasks.give_back()
    row.refresh_from_db()
    assert (row.status, row.epoch) == (Status.PENDING, 2)


def test_a_worker_whose_tasks_all_need_another_check_claims_them(
    worker: _Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as those with ``unique_for``, which a take cannot start."""
    monkeypatch.setattr(worker_node, "names_in_use", lambda: ["shop.plain"])
    row = a_task()
    until(lambda: (worker.turn(), Task.objects.get().status == "QUEUED")[1], within=30)
    row.refresh_from_db()
    assert row.epoch == 1


def test_a_worker_that_ends_takes_nothing(worker: _Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its consumer, by which it knows its tasks, is gone before its connection."""
    monkeypatch.setattr(worker_node, "names_in_use", lambda: ())
    row = a_task()
    worker.turn()
    row.refresh_from_db()
    assert (row.status, row.epoch) == (Status.PENDING, 0)


def test_a_take_searches_only_the_priorities_that_the_last_look_found(
    worker: _Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On MariaDB a take of a worker with 41 queues took half a second, because it searched ten
    priorities of each of them.
    """
    searched = list[Any]()

    def take(demands: Sequence[QueueDemand], *others: Any) -> Any:
        searched.append([(demand.queue, demand.levels) for demand in demands])
        return claim.take(demands, *others)

    monkeypatch.setattr(due_tasks, "claim", SimpleNamespace(**{**vars(claim), "take": take}))
    worker.channels |= {f"other-{number}": worker.channels[QUEUE] for number in range(40)}
    many_tasks(10, priority=7)
    a_task(priority=3, due=0.5)
    a_task(priority=9, due=3600)
    until(lambda: worker.turn() == 11, within=30)
    assert searched[0] == [(QUEUE, 1 << 7 | 1 << 3)]
    assert {queue for demands in searched for queue, _ in demands} == {QUEUE}
    assert not any(bits & ~(1 << 7 | 1 << 3) for demands in searched for _, bits in demands)


def test_a_more_urgent_task_of_another_process_overtakes_a_backlog(
    worker: _Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a notification, and although each take finds enough tasks."""
    monkeypatch.setattr(due_tasks, "_KNOWN_FOR", 0.0)
    many_tasks(30)
    worker.turn()
    urgent = a_task(priority=9)
    worker.due_tasks.look_at = 0.0
    until(lambda: (worker.turn(), Task.objects.running().filter(pk=urgent.pk))[1], within=30)
    assert worker.taken < 30


class _Sleeper:
    woken, echo = 0, 0.0

    def wake(self, echo: float = 0.0) -> None:
        """Count the call."""
        self.woken, self.echo = self.woken + 1, echo


def test_a_task_of_its_own_process_wakes_a_worker_at_the_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in a pool of threads; MariaDB and SQLite have no notifications."""
    monkeypatch.setattr(ports, "takes_tasks", lambda: True)
    monkeypatch.setattr(notifier, "takers_of_process", [])
    monkeypatch.setattr(ports, "due", notifier.OnCommitNotifier())
    due_tasks.of_connection()
    alias, sleeper = conf.settings().DATABASE, _Sleeper()
    consumers.register(alias, sleeper, listen=False)
    try:
        with transaction.atomic():
            tasks.noop.schedule()
            assert sleeper.woken == 0
        assert (sleeper.woken, sleeper.echo) == (1, consumers.ECHO)
        tasks.noop.using(run_at=database_now() + timedelta(hours=1)).schedule()
        assert sleeper.woken == 1
    finally:
        consumers.forget(alias, sleeper)


@pytest.mark.postgresql
def test_workers_are_notified_by_postgresql_also_if_schedulers_are_by_redis(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent = list[str]()
    monkeypatch.setattr(ports, "takes_tasks", lambda: True)

    def sender(way: str) -> Callable[[notifier.Notification], bool]:
        def send(_: notifier.Notification) -> bool:
            sent.append(way)
            return True

        return send

    for way in ("send_by_redis", "send_by_postgresql"):
        monkeypatch.setattr(notifier, way, sender(way))
    notifier.send(notifier.Notification(notifier.NotificationKind.ROWS, database_now()))
    assert sorted(sent) == ["send_by_postgresql", "send_by_redis"]


def test_an_idle_worker_polls_half_as_often_while_notifications_arrive(worker: _Worker) -> None:
    """So messages and due tasks cost one statement a second together."""
    alias, sleeper = conf.settings().DATABASE, _Sleeper()
    worker.turn()
    assert worker.due_tasks.look_at <= time.monotonic() + due_tasks.LOOK_EVERY
    consumers.register(alias, sleeper, listen=True)
    try:
        if connection.vendor == "postgresql":
            until(lambda: consumers.longest_pause(alias, 1.0) == 2.0, within=30)
            worker.due_tasks.look_at = 0.0
            worker.turn()
            assert worker.due_tasks.look_at > time.monotonic() + due_tasks.LOOK_EVERY
        else:
            assert consumers.longest_pause(alias, 1.0) == 1.0
    finally:
        consumers.forget(alias, sleeper)
    assert consumers.longest_pause(alias, 1.0) == 1.0


def test_tasks_of_its_own_process_wake_a_worker_at_most_once_per_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each commit of a worker with threads searched the database for due tasks."""
    wakes = list[None]()
    monkeypatch.setattr(ports, "takes_tasks", lambda: True)
    monkeypatch.setattr(notifier, "takers_of_process", [lambda: wakes.append(None)])
    monkeypatch.setattr(notifier, "INTERVAL", 600.0)
    monkeypatch.setattr(ports, "due", notifier.OnCommitNotifier())
    for _ in range(3):
        tasks.noop.schedule()
    assert len(wakes) == 1


def test_a_task_that_was_not_announced_is_taken_at_the_echo_of_a_wake_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was committed less than 50 ms after another one, and waited up to two seconds. The echo
    became due while the worker was still busy with the first one.
    """
    monkeypatch.setattr(due_tasks, "LOOK_EVERY", 600.0)
    monkeypatch.setattr(worker_node, "free_processes", lambda *_: 3)
    monkeypatch.setattr(worker_node, "names_in_use", lambda: [NOOP])
    with kombu.Connection(
        f"durable-database://{conf.settings().DATABASE}",
        transport_options={"polling_interval": 600.0, "notify": False},
    ) as broker:
        received = list[Any]()
        transport: Any = broker.transport

        def on_message(message: Any) -> None:
            received.append(message)
            if len(received) == 1:
                a_task()
                until(lambda: time.monotonic() >= transport._echo_at, within=30)

        channel = broker.default_channel
        queue = kombu.Queue(QUEUE, channel=channel)
        queue.declare()
        consumer = kombu.Consumer(channel, [queue], on_message=on_message)
        consumer.consume()
        transport.due_tasks = DueTasks()
        a_task()
        try:
            transport.wake(echo=0.5)
            assert transport.poll() == 1
            until(lambda: transport._due() <= 0 and transport.poll() == 1, within=30)
        finally:
            transport.due_tasks.give_back()
            consumer.cancel()
    assert len(received) == 2
