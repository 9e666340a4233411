"""Both implementations of the due index behave alike: in memory, and in Redis, where several nodes
share it.
"""

import threading
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_durable_tasks.scheduler import redis_index
from django_durable_tasks.scheduler.due_index import DueEntry, DueIndex
from django_durable_tasks.scheduler.redis_index import RedisConnection, RedisDueIndex
from tests.backends import address
from tests.repetitions import repetitions

NOW = datetime(2026, 3, 29, 1, 0, tzinfo=UTC)
REDIS = urlsplit(address("redis"))._replace(path="/12").geturl()


def due(
    at: float = 0.0, number: int = 1, *, queue: str = "mail", priority: int = 0, shard: int = 3
) -> DueEntry:
    """Return an entry that is due `at` seconds after NOW."""
    return DueEntry(NOW + timedelta(seconds=at), queue, uuid.UUID(int=number), priority, shard)


@pytest.fixture(params=["memory", "redis"])
def forms(request: pytest.FixtureRequest) -> Iterator[Callable[[], DueIndex]]:
    """Return a function that opens an empty index. For Redis each call opens another client of the
    same one.
    """
    if request.param == "memory":
        yield DueIndex
        return
    redis_connection = RedisConnection(REDIS)
    redis_connection.client.delete(*RedisDueIndex(redis_connection)._keys)
    yield lambda: RedisDueIndex(redis_connection)
    redis_connection.client.delete(*RedisDueIndex(redis_connection)._keys)
    redis_connection.close()


@pytest.fixture
def index(forms: Callable[[], DueIndex]) -> DueIndex:
    """Return an empty index."""
    return forms()


def test_an_empty_index_returns_nothing(index: DueIndex) -> None:
    assert (len(index), index.next_at(), index.pop_due(NOW, 10)) == (0, None, [])


def test_due_entries_are_returned_once_completely_and_earliest_first(index: DueIndex) -> None:
    rows = [due(-n, n, queue=f"queue {n}", priority=n, shard=60 + n) for n in (1, 3, 2)]
    index.add(rows)
    index.add([due(5, 9)])
    assert index.next_at() == NOW - timedelta(seconds=3)
    assert index.pop_due(NOW, 10) == sorted(rows)
    assert index.pop_due(NOW, 10) == []
    assert (len(index), index.next_at()) == (1, NOW + timedelta(seconds=5))


def test_no_entry_is_returned_before_its_instant(index: DueIndex) -> None:
    """Not even by a part of a millisecond: the claim would refuse the task, and only a poll would
    find it again.
    """
    index.add([due(0.0005, 1), due(0.001, 2)])
    assert index.pop_due(NOW, 10) == []
    assert [row.task_id.int for row in index.pop_due(NOW + timedelta(milliseconds=1), 10)] == [1, 2]


def test_adding_twice_adds_once(index: DueIndex) -> None:
    index.add([due(), due()])
    index.add([due()])
    assert len(index) == 1
    assert index.pop_due(NOW, 10) == [due()]


def test_a_rescheduled_task_replaces_its_older_entry(index: DueIndex) -> None:
    index.add([due(-5, 1, queue="old", priority=1)])
    index.add([due(5, 1, queue="new", priority=9)])
    assert (len(index), index.pop_due(NOW, 10)) == (1, [])
    index.add([due(-1, 1, queue="new", priority=9)])
    assert index.pop_due(NOW, 10) == [due(-1, 1, queue="new", priority=9)]
    assert index.pop_due(NOW + timedelta(hours=1), 10) == []


def test_removed_entries_are_not_returned(index: DueIndex) -> None:
    index.add([due(-n, n) for n in (1, 2, 3)])
    index.discard([uuid.UUID(int=2), uuid.UUID(int=77)])
    index.discard([])
    assert [row.task_id.int for row in index.pop_due(NOW, 10)] == [3, 1]
    assert len(index) == 0


def test_a_popped_entry_can_be_added_again(index: DueIndex) -> None:
    for _ in range(2):
        index.add([due()])
        assert index.pop_due(NOW, 10) == [due()]


def test_at_most_limit_entries_are_returned(index: DueIndex) -> None:
    index.add([due(-n, n) for n in range(1, 8)])
    assert [len(index.pop_due(NOW, limit)) for limit in (0, 3, 3, 3)] == [0, 3, 3, 1]


def test_only_entries_of_the_requested_shards_are_returned_and_the_rest_stays(
    index: DueIndex,
) -> None:
    index.add([due(-n, n, shard=n % 12) for n in range(1, 300)])
    assert {row.shard for row in index.pop_due(NOW, 500, frozenset({1, 11}))} == {1, 11}
    assert index.pop_due(NOW, 500, frozenset()) == []
    assert index.pop_due(NOW, 500, frozenset({1})) == []
    assert {row.shard for row in index.pop_due(NOW, 500)} == set(range(12)) - {1, 11}


@pytest.mark.parametrize("queue", ["a|b", "|", "reports:eu,1,", "Größe \N{SNOWMAN}", "x" * 200])
def test_any_name_of_a_queue_is_preserved(index: DueIndex, queue: str) -> None:
    index.add([due(queue=queue)])
    assert index.pop_due(NOW, 1, frozenset({3})) == [due(queue=queue)]


def test_thousands_of_entries_are_added_and_returned(index: DueIndex) -> None:
    index.add(due(-n / 1000, n) for n in range(1, 6_001))
    assert len(index) == 6_000
    assert [row.task_id.int for row in index.pop_due(NOW, 6_000)] == list(range(6_000, 0, -1))
    index.discard(uuid.UUID(int=n) for n in range(2_000))


def test_concurrent_pops_return_no_entry_twice(
    forms: Callable[[], DueIndex], index: DueIndex
) -> None:
    index.add([due(-1, n, shard=n % 4) for n in range(1, 1_001)])
    shared = None if isinstance(index, RedisDueIndex) else index
    popped: list[DueEntry] = []
    failed: list[Exception] = []

    def pop(shards: frozenset[int] | None) -> None:
        mine = shared or forms()
        try:
            while rows := mine.pop_due(NOW, 7, shards):
                popped.extend(rows)
        except Exception as error:  # noqa: BLE001 - raised by the test
            failed.append(error)

    threads = [
        threading.Thread(target=pop, args=(shards,))
        for shards in (None, None, frozenset({1, 2}), frozenset({2, 3}))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert not failed
    assert sorted(row.task_id.int for row in popped) == list(range(1, 1_001))


_MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 5), st.integers(-3, 3), st.integers(0, 2)),
        st.tuples(st.just("discard"), st.integers(1, 5), st.just(0), st.just(0)),
        st.tuples(st.just("pop"), st.integers(1, 4), st.integers(-3, 3), st.integers(-1, 2)),
    ),
    max_size=25,
)


@settings(
    max_examples=repetitions(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(moves=_MOVES)
def test_any_history_equals_that_of_a_plain_table(
    forms: Callable[[], DueIndex], moves: list[tuple[str, int, int, int]]
) -> None:
    index, table = forms(), dict[uuid.UUID, DueEntry]()
    index.discard(uuid.UUID(int=n) for n in range(1, 6))
    for operation, number, at, shard in moves:
        if operation == "add":
            row = due(at, number, shard=shard, queue=f"of {shard}")
            table[row.task_id] = row
            index.add([row])
        elif operation == "discard":
            table.pop(uuid.UUID(int=number), None)
            index.discard([uuid.UUID(int=number)])
        else:
            now, wanted = NOW + timedelta(seconds=at), None if shard < 0 else frozenset({shard})
            popped = index.pop_due(now, number, wanted)
            ripe = [
                row
                for row in table.values()
                if row.at <= now and (wanted is None or row.shard in wanted)
            ]
            assert sorted(row.at for row in popped) == sorted(row.at for row in ripe)[:number]
            for row in popped:
                assert table.pop(row.task_id) == row
        assert len(index) == len(table)
        assert index.next_at() == min((row.at for row in table.values()), default=None)


def test_the_instants_of_redis_are_rounded_up_to_milliseconds() -> None:
    assert redis_index.instant_ms(NOW) == redis_index.instant_ms(NOW - timedelta(microseconds=1))
    assert redis_index.instant_ms(NOW) + 1 == redis_index.instant_ms(
        NOW + timedelta(microseconds=1)
    )
    assert redis_index.from_ms(redis_index.instant_ms(NOW)) == NOW
