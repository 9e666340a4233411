"""A worker takes durable tasks at their due times, which it reads ahead."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import kombu
import pytest
from django.db import connection

from django_durable_tasks import conf
from django_durable_tasks.celery import worker_node
from django_durable_tasks.choices import Status
from django_durable_tasks.cluster import queues
from django_durable_tasks.contrib.database_transport import due_tasks, wakeups
from django_durable_tasks.contrib.database_transport.due_tasks import DueTasks
from django_durable_tasks.limits.backpressure import read_heads
from django_durable_tasks.models import Task
from tests.factories import NOOP, QUEUE, a_task, many_tasks
from tests.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)


class _Worker:
    """Takes tasks as a consumer does that nothing wakes."""

    def __init__(self, channel: Any) -> None:
        self.due_tasks, self.channels, self.taken = DueTasks(), {QUEUE: channel}, 0

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
    many_tasks(10)
    until(lambda: worker.turn() == 10, within=30)
    assert len(looks) <= 2


class _Sleeper:
    def wake(self, echo: float = 0.0) -> None:
        """Do nothing."""


def test_an_idle_worker_polls_half_as_often_while_notifications_arrive(worker: _Worker) -> None:
    """So messages and due tasks cost one statement a second together."""
    alias, sleeper = conf.settings().DATABASE, _Sleeper()
    worker.turn()
    assert worker.due_tasks.look_at <= time.monotonic() + due_tasks.LOOK_EVERY
    wakeups.register(alias, sleeper, listen=True)
    try:
        if connection.vendor == "postgresql":
            until(lambda: wakeups.longest_pause(alias, 1.0) == 2.0, within=30)
            worker.due_tasks.look_at = 0.0
            worker.turn()
            assert worker.due_tasks.look_at > time.monotonic() + due_tasks.LOOK_EVERY
        else:
            assert wakeups.longest_pause(alias, 1.0) == 1.0
    finally:
        wakeups.forget(alias, sleeper)
    assert wakeups.longest_pause(alias, 1.0) == 1.0
