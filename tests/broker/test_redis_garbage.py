"""Whatever stands in the keys of the due index, schedulers go on: it is removed and reported, and
tasks are found.
"""

import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_durable_tasks.due_index import loader, redis_client
from django_durable_tasks.due_index.redis import RedisDueIndex, instant_ms, keys, scope
from django_durable_tasks.due_index.redis_client import RedisConnection
from django_durable_tasks.engine.db.clock import database_now
from django_durable_tasks.models import Task
from django_durable_tasks.notifier.message import wake_channel
from django_durable_tasks.scheduler.loop import Scheduler
from tests.broker.test_due_index import REDIS, due
from tests.broker.test_redis_filling import door, rows_due
from tests.database.commands.durable_command import durable
from tests.processes.fleet import SHORT, fleet_in
from tests.processes.rows import ended
from tests.project import bodies
from tests.waiting import until

__all__ = ["door"]
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
ODD_MARKS = [
    b"not-a-number",
    b"",
    b"-",
    b"1e3",
    b"nan",
    b"inf",
    b"\xff\xfe",
    b" 12",
    b"9" * 40,
    b"007",
    b"12.0",
]


def _entry(index: RedisDueIndex) -> None:
    """Find one entry that is added beside whatever is there."""
    index.add([due(1, 7)])
    assert due(1, 7) in index.pop_due(due(2).at, 10_000)


@pytest.mark.parametrize("score", [0, "-inf", 10**17, -(10**17), 1.5])
@pytest.mark.parametrize("member", ODD_MEMBERS)
def test_a_member_that_cannot_be_read_is_removed_and_counted(
    door: RedisConnection, member: bytes, score: Any, caplog: pytest.LogCaptureFixture
) -> None:
    index = RedisDueIndex(door)
    door.client.zadd(keys()[0], {member: score})
    index.next_at()
    _entry(index)
    if score == 10**17:  # it is never due; `durable verify` removes it
        assert (len(index), index.unreadable) == (1, 0)
        return
    assert (len(index), index.unreadable) == (0, 1)
    assert "1 unreadable entries were removed" in index.state
    assert caplog.text.count("cannot read") == 1


@pytest.mark.parametrize("mark", ODD_MARKS)
def test_a_mark_that_cannot_be_read_is_none_and_the_set_is_filled_again(
    door: RedisConnection, mark: bytes
) -> None:
    index = RedisDueIndex(door)
    door.client.set(keys()[2], mark)
    index.next_at()
    assert index.filled_until is None
    wanted = rows_due(5)
    assert loader.fill(database_now()) == 1
    assert [
        row.task_id for row in index.pop_due(database_now() + timedelta(seconds=10), 10)
    ] == wanted
    assert index.filled_until is not None


def test_a_mark_that_promises_years_is_not_believed(door: RedisConnection) -> None:
    door.client.set(keys()[2], instant_ms(database_now() + timedelta(days=3_000)))
    rows_due(5)
    assert loader.fill(database_now()) == 1


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("kind", ["text", "list", "set", "hash", "zset", "stream"])
def test_a_key_of_another_type_is_replaced(door: RedisConnection, kind: str, number: int) -> None:
    key, client = keys()[number], door.client
    acts: dict[str, Any] = {
        "text": lambda: client.set(key, "x"),
        "list": lambda: client.rpush(key, "x"),
        "set": lambda: client.sadd(key, "x"),
        "hash": lambda: client.hset(key, "x", "y"),
        "zset": lambda: client.zadd(key, {"x": 1}),
        "stream": lambda: client.xadd(key, {"x": "y"}),
    }
    acts[kind]()
    index = RedisDueIndex(door)
    index.next_at()
    _entry(index)
    wanted = rows_due(5)
    loader.fill(database_now())
    assert index.pop_due(database_now() + timedelta(seconds=10), 100)[-1].task_id == wanted[0]
    assert door.open()
    assert index.filled_until is not None


_BYTES = st.one_of(st.binary(max_size=60), st.sampled_from(ODD_MEMBERS + ODD_MARKS))
_SCORES = st.one_of(
    st.floats(allow_nan=False), st.integers(-(10**15), 10**15), st.sampled_from(["-inf", "+inf"])
)
_DEEDS = st.lists(
    st.one_of(
        st.tuples(st.just("zadd"), st.integers(0, 2), _BYTES, _SCORES),
        st.tuples(st.just("set"), st.integers(0, 2), _BYTES, st.just(0)),
        st.tuples(st.just("hset"), st.integers(0, 2), _BYTES, _BYTES),
        st.tuples(st.just("rpush"), st.integers(0, 2), _BYTES, st.just(0)),
        st.tuples(st.just("publish"), st.just(0), _BYTES, st.just(0)),
    ),
    min_size=1,
    max_size=12,
)


def _do(client: Any, verb: str, number: int, value: bytes, more: Any) -> None:
    key = keys()[number]
    if verb == "publish":
        client.publish(wake_channel(scope()), value)
        return
    client.delete(key)
    if verb == "zadd":
        client.zadd(key, {value: more})
    elif verb == "hset":
        client.hset(key, value, more)
    else:
        getattr(client, verb)(key, value)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(deeds=_DEEDS)
def test_a_scheduler_dispatches_whatever_its_keys_hold(
    door: RedisConnection, deeds: list[tuple[str, int, bytes, Any]]
) -> None:
    scheduler = Scheduler("one")
    row = bodies.add.schedule(1, 2)
    for verb, number, value, more in deeds:
        _do(door.client, verb, number, value, more)
        scheduler.round()
    until(
        lambda: (scheduler.round(), Task.objects.queued().filter(pk=row.pk).exists())[1], within=30
    )
    loader.fill(database_now())
    assert scheduler.steps.failing() == []
    durable("verify", "--only", "due-index", "--repair", "--yes")


def test_verify_removes_members_that_are_never_due(door: RedisConnection) -> None:
    for number, member in enumerate(ODD_MEMBERS):
        door.client.zadd(keys()[0], {member: ("+inf", 10**17, 4.5e12 + 0.5)[number % 3]})
    assert "not-a-uuid" in durable("verify", "--only", "due-entries").out
    durable("verify", "--only", "due-entries", "--repair", "--yes")
    # Three have an id that may be that of a task of another installation with a database of this
    # name.
    assert len(RedisDueIndex(door)) == 3


@pytest.mark.timeout(300)
def test_run_scheduler_survives_garbage_under_a_load(
    rows: None, settings: Any, tmp_path: Path
) -> None:
    """A process with its threads: members, marks, types and messages of the channel, while tasks go
    on to run.
    """
    settings.DURABLE_TASKS = {**SHORT, "FAST_PATH": False, "REDIS_URL": REDIS}
    redis_client.close_idle()
    door = redis_client.connection()
    assert door is not None
    with fleet_in(tmp_path, {**SHORT, "FAST_PATH": False, "REDIS_URL": REDIS}) as fleet:
        fleet.worker(slots=2)
        scheduler = fleet.scheduler()
        fleet.ready()
        for member in ODD_MEMBERS:
            door.client.zadd(keys()[0], {member: 0})
            door.client.publish(wake_channel(scope()), member)
        tasks = [bodies.add.schedule(1, 2)]
        for mark in ODD_MARKS:
            door.client.set(keys()[2], mark)
            tasks.append(bodies.add.schedule(1, 2))
        for key in keys():
            door.client.delete(key)
            door.client.rpush(key, "x")
            tasks.append(bodies.add.schedule(1, 2))
        assert all(ended(task).result == 3 for task in tasks)
        assert scheduler.alive()
        until(lambda: "unreadable" in durable("status").out, within=20, message="status shows it")
    redis_client.close_idle()
