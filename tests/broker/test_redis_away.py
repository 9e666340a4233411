"""A frozen, full, emptied or stopped Redis blocks nothing. The node reports it, polls, and uses
Redis again later.
"""

import logging
import os
import signal
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta

import pytest

from django_durable_tasks.scheduler import notifier
from django_durable_tasks.scheduler.due_index import DueEntry, RedisDueIndex
from django_durable_tasks.scheduler.notifier import RedisConnection
from tests.starting import CannotStart, start_redis
from tests.waiting import until

NOW = datetime.now(UTC)
AWAY, BACK = "Redis does not serve", "The connection to Redis is restored"


def due(number: int) -> DueEntry:
    """Give an entry that is due."""
    return DueEntry(NOW, "mail", uuid.UUID(int=number), 1)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a Redis for this file only."""
    with ExitStack() as stack:
        try:
            address = start_redis(tmp_path_factory.mktemp("own"), stack)
        except CannotStart as reason:
            pytest.skip(f"no Redis that may be mistreated: {reason}")
        yield address


@pytest.fixture
def redis_connection(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[RedisConnection]:
    """Return a client with a short pause after errors, with an empty Redis."""
    monkeypatch.setattr(notifier, "REDIS_PAUSE", 0.2)
    redis_connection = RedisConnection(url)
    redis_connection.client.flushall()
    yield redis_connection
    redis_connection.client.close()


@contextmanager
def frozen(url: str) -> Iterator[None]:
    """Stop the process of the server for a while."""
    other = RedisConnection(url)
    pid = int(other.client.info("server")["process_id"])
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
        other.client.close()


def serves(redis_connection: RedisConnection, index: RedisDueIndex) -> Callable[[], bool]:
    """Return a condition: a newly added entry is returned. Another caller than the index tests
    whether Redis is available.
    """

    def condition() -> bool:
        redis_connection.call(lambda client: client.ping(), None)
        index.add([due(99)])
        return due(99).task_id in {
            row.task_id for row in index.pop_due(NOW + timedelta(seconds=1), 10)
        }

    return condition


def test_a_frozen_redis_costs_one_short_wait_and_is_logged_once(
    url: str,
    redis_connection: RedisConnection,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(notifier, "REDIS_PAUSE", 30.0)
    index, done = RedisDueIndex(redis_connection), threading.Event()
    assert index.next_at() is None
    assert index.state == "redis"

    def requests() -> None:
        for number in range(400):
            index.add([due(number)])
            index.discard([due(number).task_id])
            assert index.pop_due(NOW, 10) == []
            index.next_at()
        done.set()

    with frozen(url):
        threading.Thread(target=requests, daemon=True).start()
        until(
            done.is_set,
            within=20,
            message="1,600 requests of half a second each end, except the first",
        )
        assert "polling every 1 s: Redis does not serve (TimeoutError)" in index.state
    assert caplog.text.count(AWAY) == 1
    assert url not in caplog.text


def test_an_index_whose_redis_was_frozen_is_empty_meanwhile_and_works_again(
    url: str, redis_connection: RedisConnection, caplog: pytest.LogCaptureFixture
) -> None:
    index = RedisDueIndex(redis_connection)
    with frozen(url):
        index.add([due(1)])
        index.add([due(2)])
        assert "polling every 1 s: Redis does not serve" in index.state
        assert index.pop_due(NOW, 1) == []
    until(serves(redis_connection, index), within=20)
    assert index.state == "redis"
    index.add([due(1)])
    added = index.pop_due(NOW + timedelta(seconds=1), 1)
    assert [row.task_id for row in added] == [due(1).task_id], "the next poll adds it again"
    assert caplog.text.count(AWAY) == caplog.text.count(BACK) == 1


def test_a_redis_that_was_emptied_or_lost_its_scripts_serves(
    redis_connection: RedisConnection,
) -> None:
    index = RedisDueIndex(redis_connection)
    index.add([due(1)])
    redis_connection.client.flushall()
    assert index.pop_due(NOW + timedelta(seconds=1), 10) == []
    redis_connection.client.script_flush()
    until(serves(redis_connection, index), within=20)


def test_a_full_redis_is_logged_and_used_again_when_it_has_space(
    redis_connection: RedisConnection, caplog: pytest.LogCaptureFixture
) -> None:
    index = RedisDueIndex(redis_connection)
    redis_connection.client.config_set("maxmemory-policy", "noeviction")
    redis_connection.client.config_set("maxmemory", "1mb")
    try:
        index.add(due(number) for number in range(20_000))
        assert "OutOfMemoryError" in index.state
    finally:
        redis_connection.client.config_set("maxmemory", "0")
    until(serves(redis_connection, index), within=20)
    assert caplog.text.count(AWAY) == caplog.text.count(BACK) == 1


def test_a_missing_redis_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    redis_connection = RedisConnection("redis://127.0.0.1:1/0")
    index = RedisDueIndex(redis_connection)
    index.add([due(1)])
    assert (index.next_at(), index.pop_due(NOW, 5)) == (None, [])
    assert caplog.text.count(AWAY) == 1
    assert caplog.records[0].levelno == logging.ERROR
    redis_connection.client.close()


def test_the_index_expires_when_no_node_writes_to_it(redis_connection: RedisConnection) -> None:
    index = RedisDueIndex(redis_connection)
    index.add([due(1)])
    assert redis_connection.client.keys("*") == [index.key]
    assert redis_connection.client.pttl(index.key) > 0


def test_a_child_forked_during_a_command_can_use_redis(url: str) -> None:
    notifier.use_redis(url)
    try:
        redis_connection = notifier.redis_connection()
        assert redis_connection is not None
        redis_connection.client.flushall()
        with redis_connection._breaker._lock:
            child = os.fork()
            if child == 0:
                os._exit(0 if serves(redis_connection, RedisDueIndex(redis_connection))() else 1)
        assert os.waitpid(child, 0)[1] == 0
    finally:
        notifier.use_redis(None)
        notifier.redis_at.cache_clear()
