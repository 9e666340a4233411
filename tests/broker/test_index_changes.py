"""New, moved and cancelled tasks change the due index in Redis, and notifications have two ways."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import transaction

from django_durable_tasks import ports
from django_durable_tasks.due_index import redis_client
from django_durable_tasks.due_index.redis import RedisDueIndex
from django_durable_tasks.engine import transitions
from django_durable_tasks.engine.db import tables
from django_durable_tasks.models import Task
from tests.broker.listening_schedulers import (
    BY_BOTH,
    BY_POSTGRESQL,
    CALM,
    Sleeper,
    sleeping,
    soon,
    telling_fresh,
)
from tests.broker.test_due_index import REDIS
from tests.broker.test_redis_away import frozen, url
from tests.project import bodies
from tests.waiting import until

__all__ = ["sleeping", "url"]


@pytest.fixture
def index(rows: None, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[RedisDueIndex]:
    """Give the shared index under REDIS_URL, empty."""
    settings.DURABLE_TASKS = {**CALM, "REDIS_URL": REDIS}
    redis_client.close_idle()
    telling_fresh(monkeypatch)
    door = redis_client.connection()
    assert door is not None
    index = RedisDueIndex(door)
    door.client.delete(*index._keys)
    yield index
    door.client.delete(*index._keys)
    redis_client.close_idle()


def known(index: RedisDueIndex) -> dict[Any, datetime]:
    """Take everything out of the index: which rows, and when."""
    return {due.task_id: due.at for due in index.pop_due(datetime(2100, 1, 1, tzinfo=UTC), 1_000)}


def test_births_moves_and_cancels_keep_the_index_in_redis(index: RedisDueIndex) -> None:
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


def test_every_verb_by_which_a_row_waits_no_more_takes_its_entry_away(index: RedisDueIndex) -> None:
    verbs: list[Callable[[Any], Any]] = [
        lambda question: transitions.force_complete(question, "by hand"),
        lambda question: transitions.cancel(question, "by hand"),
        lambda question: transitions.skip(question, "by hand"),
        lambda question: transitions.expire(question, 1),
        transitions.block,
    ]
    for verb in verbs:
        waiting, stays = (bodies.add.schedule(1, 2, run_at=soon(60)).pk for _ in range(2))
        verb(tables.tasks().filter(pk=waiting))
        assert Task.objects.get(pk=waiting).status != "PENDING"
        assert set(known(index)) == {stays}


def test_a_row_that_waits_again_in_the_same_transaction_keeps_its_entry(
    index: RedisDueIndex,
) -> None:
    row = bodies.add.schedule(1, 2, run_at=soon(60)).pk
    with transaction.atomic():
        ports.due.rescheduled([row])
        with (
            transaction.atomic()
        ):  # what is told in a savepoint is heard after what the transaction around it tells
            ports.due.removed([row])
        ports.due.rescheduled([row])
    assert set(known(index)) == {row}


def test_the_index_in_redis_hears_of_nothing_that_was_rolled_back(index: RedisDueIndex) -> None:
    with transaction.atomic():
        bodies.add.schedule(1, 2, run_at=soon(60))
        transaction.set_rollback(True)
    assert known(index) == {}


def test_wake_ups_come_by_redis_and_by_postgresql_while_it_is_frozen(
    sleeping: Callable[..., Sleeper], url: str
) -> None:
    sleeper, first, second = sleeping(BY_BOTH, REDIS_URL=url), soon(), soon(0.5)
    bodies.add.schedule(1, 2, run_at=first)
    until(lambda: sleeper.heard(first), within=20)
    with frozen(url):
        bodies.add.schedule(1, 2, run_at=second)
        until(lambda: sleeper.heard(second), within=20)
        until(lambda: sleeper.wakeups.state == BY_POSTGRESQL, within=20)
    until(lambda: sleeper.wakeups.state == BY_BOTH, within=30)
