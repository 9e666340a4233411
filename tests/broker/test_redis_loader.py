"""The leader fills the due index in Redis from the database. Schedulers rely on it while it is
filled.
"""

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_durable_tasks import ports
from django_durable_tasks.models import Task
from django_durable_tasks.scheduler import redis_index, shared_index
from django_durable_tasks.scheduler.due_index import DueEntry, MemoryDueIndex
from django_durable_tasks.scheduler.notify_on_commit import OnCommitNotifier
from django_durable_tasks.scheduler.redis_index import RedisConnection, RedisDueIndex
from django_durable_tasks.scheduler.shared_index import SharedDueIndex, due_index
from django_durable_tasks.store.clock import database_now
from tests.broker.test_due_index import REDIS, due
from tests.broker.test_redis_away import frozen, url
from tests.processes.cluster import SHORT
from tests.project import bodies
from tests.waiting import until

__all__ = ["url"]


class SilentNotifier(OnCommitNotifier):
    """A notifier that sends nothing."""

    def announce(self, batch: Any) -> None:
        """Send nothing."""


@pytest.fixture
def redis_connection(
    rows: None, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RedisConnection]:
    """Return this process's client with an empty index, without notifications of created tasks."""
    settings.DURABLE_TASKS = {**SHORT, "FAST_PATH": False, "REDIS_URL": REDIS}
    monkeypatch.setattr(ports, "due", SilentNotifier())
    redis_index.close_idle()
    redis_connection = redis_index.connection()
    assert redis_connection is not None
    keys = RedisDueIndex(redis_connection)._keys
    redis_connection.client.delete(*keys)
    yield redis_connection
    redis_connection.client.delete(*keys)
    redis_index.close_idle()


def rows_due(*seconds: float) -> list[uuid.UUID]:
    """Create a waiting task for each of these instants, in seconds from now."""
    made = [
        bodies.add.schedule(1, 2, run_at=timezone.now() + timedelta(seconds=wait))
        for wait in seconds
    ]
    return [task.pk for task in made]


def _of_one_instant(number: int, at: datetime) -> set[uuid.UUID]:
    """Create this number of tasks that are due at this instant."""
    return {bodies.add.schedule(1, 2, run_at=at).pk for _ in range(number)}


def taken(redis_connection: RedisConnection) -> list[uuid.UUID]:
    """Remove all entries and return them, earliest first."""
    return [
        row.task_id
        for row in RedisDueIndex(redis_connection).pop_due(
            datetime(2100, 1, 1, tzinfo=UTC), 100_000
        )
    ]


def test_exactly_the_tasks_within_the_horizon_are_added(redis_connection: RedisConnection) -> None:
    wanted = rows_due(5, 100, 295)
    rows_due(400)
    now = database_now()
    assert shared_index.fill_redis(now) == 3
    index = RedisDueIndex(redis_connection)
    index.next_at()
    assert index.filled_until is not None
    assert (
        timedelta(0)
        <= index.filled_until - (now + timedelta(seconds=300))
        < timedelta(milliseconds=1)
    )
    assert taken(redis_connection) == wanted


def test_the_next_step_reads_only_tasks_that_entered_the_horizon(
    redis_connection: RedisConnection,
) -> None:
    first = rows_due(5, 310)
    now = database_now()
    shared_index.fill_redis(now)
    assert taken(redis_connection) == first[:1]
    assert shared_index.fill_redis(now + timedelta(seconds=20)) == 1
    assert taken(redis_connection) == first[1:]


def test_an_emptied_index_is_filled_again(redis_connection: RedisConnection) -> None:
    wanted = rows_due(5, 100)
    shared_index.fill_redis(database_now())
    redis_connection.client.delete(*RedisDueIndex(redis_connection)._keys)
    assert shared_index.fill_redis(database_now()) == 2
    assert taken(redis_connection) == wanted


def test_tasks_of_many_queues_pages_and_instants_are_all_added(
    redis_connection: RedisConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_index, "_PAGE", 7)
    at = timezone.now() + timedelta(seconds=60)
    for queue in ("a", "b"):
        for number in range(30):
            bodies.add.using(queue=queue, run_at=at + timedelta(milliseconds=number)).schedule(1, 2)
    shared_index.fill_redis(database_now())
    assert set(taken(redis_connection)) == set(Task.objects.values_list("pk", flat=True))


def test_more_tasks_of_one_instant_than_a_page_are_all_added(
    redis_connection: RedisConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_index, "_PAGE", 7)
    wanted = _of_one_instant(30, timezone.now() + timedelta(seconds=60))
    shared_index.fill_redis(database_now())
    assert set(taken(redis_connection)) == wanted


def test_tasks_of_one_instant_that_do_not_fit_are_not_marked_as_filled(
    redis_connection: RedisConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_index, "_PAGE", 5)
    monkeypatch.setattr(shared_index, "_MOST", 10)
    at = timezone.now().replace(microsecond=300) + timedelta(seconds=60)
    before = _of_one_instant(3, at - timedelta(seconds=1))
    wanted = before | _of_one_instant(20, at)
    assert shared_index.fill_redis(database_now()) == 10
    index = RedisDueIndex(redis_connection)
    index.next_at()
    assert index.filled_until is not None
    assert at - timedelta(seconds=1) < index.filled_until <= at
    assert len(index) == 10
    assert shared_index.fill_redis(database_now()) == 0, "a full set is left as it is"
    assert before < set(taken(redis_connection)) < wanted
    monkeypatch.setattr(shared_index, "_MOST", 100)
    shared_index.fill_redis(database_now())
    assert set(taken(redis_connection)) == wanted - before, (
        "who goes on begins where the mark stands"
    )


def test_the_mark_of_many_queues_is_the_earliest_of_them(
    redis_connection: RedisConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_index, "_PAGE", 5)
    monkeypatch.setattr(shared_index, "_MOST", 10)
    at = timezone.now() + timedelta(seconds=60)
    for queue, apart in (("a", 10), ("b", 100)):
        for number in range(20):
            bodies.add.using(
                queue=queue, run_at=at + timedelta(milliseconds=apart * number)
            ).schedule(1, 2)
    index = RedisDueIndex(redis_connection)
    shared_index.fill_redis(database_now())
    index.next_at()
    assert index.filled_until is not None
    held = {row.task_id for row in index.pop_due(datetime(2100, 1, 1, tzinfo=UTC), 100)}
    assert index.filled_until > at
    assert held.issuperset(
        Task.objects.filter(due_at__lt=index.filled_until).values_list("pk", flat=True)
    )


def test_a_task_within_the_millisecond_of_the_mark_is_added(
    redis_connection: RedisConnection,
) -> None:
    now = database_now().replace(microsecond=400)
    task = bodies.add.schedule(1, 2, run_at=now + timedelta(seconds=300, microseconds=300))
    shared_index.fill_redis(now)
    shared_index.fill_redis(now + timedelta(seconds=20))
    assert taken(redis_connection) == [task.pk]


def test_a_full_index_stays_and_its_mark_is_true(
    redis_connection: RedisConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_index, "_MOST", 3)
    wanted = rows_due(5, 6, 7, 100, 200)
    now = database_now()
    shared_index.fill_redis(now)
    index = RedisDueIndex(redis_connection)
    index.next_at()
    assert index.filled_until is not None
    assert index.filled_until < now + timedelta(seconds=100)
    assert taken(redis_connection) == wanted[:3]


def test_a_change_lost_during_filling_causes_another_complete_fill(
    redis_connection: RedisConnection,
) -> None:
    index = RedisDueIndex(redis_connection)
    shared_index.fill_redis(database_now())
    index.next_at()
    other = RedisDueIndex(redis_connection)
    other._change_lost = True
    other.add([])
    other.discard([uuid.uuid4()])
    assert not index.filled(database_now() + timedelta(seconds=60)), (
        "the mark was taken away meanwhile"
    )
    wanted = rows_due(3)
    assert shared_index.fill_redis(database_now()) == 1
    assert taken(redis_connection) == wanted


def test_nothing_is_filled_without_redis_or_during_its_outage(
    redis_connection: RedisConnection, settings: Any
) -> None:
    rows_due(5)
    settings.DURABLE_TASKS = {**SHORT, "REDIS_URL": "redis://127.0.0.1:1/0"}
    assert shared_index.fill_redis(database_now()) == 0
    settings.DURABLE_TASKS = dict(SHORT)
    assert shared_index.fill_redis(database_now()) == 0
    assert isinstance(due_index(), MemoryDueIndex)


# The index of a scheduler -------------------------------------------------------------------------


def _ids(rows: list[DueEntry]) -> list[int]:
    return [row.task_id.int for row in rows]


def test_a_scheduler_shares_the_index_and_needs_none_of_its_own(
    redis_connection: RedisConnection,
) -> None:
    shared_index.fill_redis(database_now())
    mine, theirs = due_index(), due_index()
    assert isinstance(mine, SharedDueIndex)
    mine.next_at()
    theirs.next_at()
    mine.add([due(number, number) for number in (1, 2, 3)])
    late = due(9).at
    assert _ids(theirs.pop_due(late, 2)) == [1, 2]
    assert _ids(mine.pop_due(late, 2)) == [3]
    mine.add([due(number, number) for number in (1, 2, 4)])
    assert _ids(theirs.pop_due(late, 3)) == [4], (
        "what another popped is not brought again by the next look ahead"
    )


def test_a_scheduler_uses_its_own_index_while_redis_is_frozen_and_returns(
    redis_connection: RedisConnection,
    settings: Any,
    url: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(redis_index, "PAUSE", 0.3)
    settings.DURABLE_TASKS = {**SHORT, "REDIS_URL": url}
    shared_index.fill_redis(database_now())
    index, late = due_index(), due(99).at
    assert isinstance(index, SharedDueIndex)
    index.next_at()
    index.add([due(1, 1)])
    with frozen(url):
        assert index.pop_due(late, 5) == []
        index.add([due(2, 2), due(3, 3)])
        assert "polling" in index.state
        assert _ids(index.pop_due(late, 1)) == [2]
        assert index.next_at() == due(3).at
    mine = redis_index.connection()
    assert mine is not None
    until(lambda: mine.call(lambda client: client.ping(), False), within=20)
    shared_index.fill_redis(database_now())
    assert sorted(_ids(index.pop_due(late, 5))) == [1, 3], "what is left in memory comes too"
    assert index.state == "redis"
    index.add([due(4, 4)])
    assert len(index) == 1
    assert caplog.text.count("Due tasks are read from the database") == 1
    assert caplog.text.count("The due index in Redis is complete") == 1
    index.close()
