"""Whatever the keys of the due index contain, schedulers continue: it is removed and reported, and
tasks are dispatched.
"""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_durable_tasks.limits.backpressure import SMALLEST_WINDOW
from django_durable_tasks.models import Task
from django_durable_tasks.scheduler import notifier
from django_durable_tasks.scheduler.due_index import RedisDueIndex
from django_durable_tasks.scheduler.loop import Scheduler
from django_durable_tasks.scheduler.notifier import RedisConnection, redis_scope, wake_channel
from tests.broker.test_due_index import REDIS, due, rest
from tests.database.commands.durable_command import durable
from tests.processes.cluster import SHORT, cluster_in
from tests.processes.rows import ended
from tests.project import bodies
from tests.repetitions import repetitions
from tests.waiting import until

ODD_MEMBERS = [
    b"q_default|0|3|not-a-uuid",
    b"",
    b"|",
    b"|||",
    b"\xff\xfe|0|3|\x80",
    b"\xff|0|3|" + str(uuid.uuid4()).encode(),
    b"mail|high|3|" + str(uuid.uuid4()).encode(),
    str(uuid.uuid4()).encode(),
    b'{"queue": "mail"}',
    b"\x00" * 50,
    b"v2|mail|0|3|extra|" + str(uuid.uuid4()).encode() + b"|",
    b"%s %d {0}",
]


def key() -> str:
    """Return the key of the sorted set."""
    return f"{redis_scope()}:due_tasks"


@pytest.fixture
def redis_connection(rows: None, settings: Any) -> Iterator[RedisConnection]:
    """Return this process's client, with empty keys."""
    settings.DURABLE_TASKS = {**SHORT, "FAST_PATH": False, "REDIS_URL": REDIS}
    notifier.redis_at.cache_clear()
    redis_connection = notifier.redis_connection()
    assert redis_connection is not None
    redis_connection.client.delete(key())
    yield redis_connection
    redis_connection.client.delete(key())
    notifier.redis_at.cache_clear()


def _entry(index: RedisDueIndex) -> None:
    """Find one entry that was added beside the invalid ones."""
    index.add([due(1, 7)])
    assert due(1, 7) in index.pop_due(due(2).at, 10_000)


@pytest.mark.parametrize("score", [0, "-inf", 10**17, -(10**17), 1.5])
@pytest.mark.parametrize("member", ODD_MEMBERS)
def test_an_unreadable_member_is_removed_and_counted(
    redis_connection: RedisConnection, member: bytes, score: Any, caplog: pytest.LogCaptureFixture
) -> None:
    index = RedisDueIndex(redis_connection)
    redis_connection.client.zadd(key(), {member: score})
    index.next_at()
    _entry(index)
    if score == 10**17:  # it is never due
        assert (redis_connection.client.zcard(key()), index.unreadable) == (1, 0)
        return
    assert (rest(index), index.unreadable) == ([], 1)
    assert "1 unreadable entries were removed" in index.state
    assert caplog.text.count("cannot read") == 1


@pytest.mark.parametrize("kind", ["text", "list", "set", "hash", "zset", "stream"])
def test_a_key_of_another_type_is_replaced(redis_connection: RedisConnection, kind: str) -> None:
    client = redis_connection.client
    acts: dict[str, Any] = {
        "text": lambda: client.set(key(), "x"),
        "list": lambda: client.rpush(key(), "x"),
        "set": lambda: client.sadd(key(), "x"),
        "hash": lambda: client.hset(key(), "x", "y"),
        "zset": lambda: client.zadd(key(), {"x": 1}),
        "stream": lambda: client.xadd(key(), {"x": "y"}),
    }
    acts[kind]()
    index = RedisDueIndex(redis_connection)
    index.next_at()
    _entry(index)
    assert redis_connection.open()


_BYTES = st.one_of(st.binary(max_size=60), st.sampled_from(ODD_MEMBERS))
_SCORES = st.one_of(
    st.floats(allow_nan=False), st.integers(-(10**15), 10**15), st.sampled_from(["-inf", "+inf"])
)
_OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("zadd"), _BYTES, _SCORES),
        st.tuples(st.just("set"), _BYTES, st.just(0)),
        st.tuples(st.just("hset"), _BYTES, _BYTES),
        st.tuples(st.just("rpush"), _BYTES, st.just(0)),
        st.tuples(st.just("publish"), _BYTES, st.just(0)),
    ),
    min_size=1,
    max_size=12,
)


def _do(client: Any, command: str, value: bytes, more: Any) -> None:
    if command == "publish":
        client.publish(wake_channel(redis_scope()), value)
        return
    client.delete(key())
    if command == "zadd":
        client.zadd(key(), {value: more})
    elif command == "hset":
        client.hset(key(), value, more)
    else:
        getattr(client, command)(key(), value)


@settings(
    # The tasks of all examples stay QUEUED. Their number must be smaller than a window.
    max_examples=repetitions(SMALLEST_WINDOW // 2),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(operations=_OPERATIONS)
def test_a_scheduler_dispatches_whatever_its_keys_contain(
    redis_connection: RedisConnection, operations: list[tuple[str, bytes, Any]]
) -> None:
    scheduler = Scheduler("one")
    row = bodies.add.schedule(1, 2)
    for command, value, more in operations:
        _do(redis_connection.client, command, value, more)
        scheduler.round()
    until(
        lambda: (scheduler.round(), Task.objects.queued().filter(pk=row.pk).exists())[1], within=30
    )
    assert scheduler.steps.failing() == []


@pytest.mark.timeout(300)
def test_run_scheduler_survives_garbage_under_load(
    rows: None, settings: Any, tmp_path: Path
) -> None:
    """A process with its threads: invalid members, types and channel messages, while tasks
    continue to run.
    """
    settings.DURABLE_TASKS = {**SHORT, "FAST_PATH": False, "REDIS_URL": REDIS}
    notifier.redis_at.cache_clear()
    redis_connection = notifier.redis_connection()
    assert redis_connection is not None
    with cluster_in(tmp_path, {**SHORT, "FAST_PATH": False, "REDIS_URL": REDIS}) as cluster:
        cluster.worker(slots=2)
        scheduler = cluster.scheduler()
        cluster.ready()
        for member in ODD_MEMBERS:
            redis_connection.client.zadd(key(), {member: 0})
            redis_connection.client.publish(wake_channel(redis_scope()), member)
        tasks = [bodies.add.schedule(1, 2)]
        redis_connection.client.delete(key())
        redis_connection.client.rpush(key(), "x")
        tasks.append(bodies.add.schedule(1, 2))
        assert all(ended(task).result == 3 for task in tasks)
        assert scheduler.alive()
        until(lambda: "unreadable" in durable("status").out, within=20, message="status shows it")
    notifier.redis_at.cache_clear()
