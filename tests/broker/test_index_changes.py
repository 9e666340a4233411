"""New, rescheduled and cancelled tasks update the due index in Redis, and notifications have two
transports.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import transaction

from django_durable_tasks import ports
from django_durable_tasks.models import Task
from django_durable_tasks.scheduler import redis_index
from django_durable_tasks.scheduler.redis_index import RedisDueIndex
from django_durable_tasks.states import transitions
from django_durable_tasks.store import tables
from tests.broker.listening_schedulers import (
    BY_BOTH,
    BY_POSTGRESQL,
    CALM,
    Recorder,
    notifying_unlimited,
    recorder,
    soon,
)
from tests.broker.test_due_index import REDIS
from tests.broker.test_redis_away import frozen, url
from tests.project import bodies
from tests.waiting import until

__all__ = ["recorder", "url"]


@pytest.fixture
def index(rows: None, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[RedisDueIndex]:
    """Return the shared index under REDIS_URL, empty."""
    settings.DURABLE_TASKS = {**CALM, "REDIS_URL": REDIS}
    redis_index.close_idle()
    notifying_unlimited(monkeypatch)
    redis_connection = redis_index.connection()
    assert redis_connection is not None
    index = RedisDueIndex(redis_connection)
    redis_connection.client.delete(*index._keys)
    yield index
    redis_connection.client.delete(*index._keys)
    redis_index.close_idle()


def known(index: RedisDueIndex) -> dict[Any, datetime]:
    """Remove all entries from the index, and return the tasks with their instants."""
    return {due.task_id: due.at for due in index.pop_due(datetime(2100, 1, 1, tzinfo=UTC), 1_000)}


def test_creating_rescheduling_and_cancelling_update_the_index_in_redis(
    index: RedisDueIndex,
) -> None:
    stays, _, moves, _ = (
        bodies.add.using(key=key, run_at=soon(60)).schedule(1, 2)
        for key in ("stays", "goes", "moves", "leaves")
    )
    bodies.add.schedule(1, 2, run_at=soon(3600))
    comes = bodies.add.using(key="comes", run_at=soon(3600)).schedule(1, 2)
    Task.objects.cancel("goes")
    Task.objects.reschedule("moves", soon(90))
    Task.objects.reschedule("leaves", soon(3600))
    Task.objects.reschedule("comes", soon(120))
    bodies.add.using(key="stays", run_at=soon(45), priority=7).schedule(3, 4)
    found = known(index)
    assert set(found) == {stays.pk, moves.pk, comes.pk}
    for task_id, at in found.items():
        alarm = Task.objects.get(pk=task_id).due_at
        assert alarm is not None
        assert timedelta(0) <= at - alarm < timedelta(milliseconds=1)


def test_every_transition_out_of_pending_removes_the_entry(index: RedisDueIndex) -> None:
    operations: list[Callable[[Any], Any]] = [
        lambda question: transitions.force_complete(question, "by hand"),
        lambda question: transitions.cancel(question, "by hand"),
        lambda question: transitions.skip(question, "by hand"),
        lambda question: transitions.expire(question, 1),
        transitions.block,
    ]
    for operation in operations:
        waiting, stays = (bodies.add.schedule(1, 2, run_at=soon(60)).pk for _ in range(2))
        operation(tables.tasks().filter(pk=waiting))
        assert Task.objects.get(pk=waiting).status != "PENDING"
        assert set(known(index)) == {stays}


def test_a_task_that_returns_to_pending_in_the_same_transaction_keeps_its_entry(
    index: RedisDueIndex,
) -> None:
    row = bodies.add.schedule(1, 2, run_at=soon(60)).pk
    with transaction.atomic():
        ports.due.rescheduled([row])
        with (
            transaction.atomic()
        ):  # changes inside a savepoint are applied after those of the transaction around it
            ports.due.removed([row])
        ports.due.rescheduled([row])
    assert set(known(index)) == {row}


def test_rolled_back_changes_do_not_reach_the_index_in_redis(index: RedisDueIndex) -> None:
    with transaction.atomic():
        bodies.add.schedule(1, 2, run_at=soon(60))
        transaction.set_rollback(True)
    assert known(index) == {}


def test_notifications_are_sent_by_redis_and_by_postgresql_while_it_is_frozen(
    recorder: Callable[..., Recorder], url: str
) -> None:
    sleeper, first, second = recorder(BY_BOTH, REDIS_URL=url), soon(), soon(0.5)
    bodies.add.schedule(1, 2, run_at=first)
    until(lambda: sleeper.received(first), within=20)
    with frozen(url):
        bodies.add.schedule(1, 2, run_at=second)
        until(lambda: sleeper.received(second), within=20)
        until(lambda: sleeper.wakeups.state == BY_POSTGRESQL, within=20)
    until(lambda: sleeper.wakeups.state == BY_BOTH, within=30)
