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

from django_durable_tasks.scheduler.due_index import DueEntry, DueIndex, RedisDueIndex
from django_durable_tasks.scheduler.notifier import RedisConnection, from_ms, instant_ms
from tests.backends import address
from tests.repetitions import repetitions

NOW = datetime(2026, 3, 29, 1, 0, tzinfo=UTC)
REDIS = urlsplit(address("redis"))._replace(path="/12").geturl()


def due(at: float = 0.0, number: int = 1, *, queue: str = "mail", shard: int = 3) -> DueEntry:
    """Return an entry that is due `at` seconds after NOW."""
    return DueEntry(NOW + timedelta(seconds=at), queue, uuid.UUID(int=number), shard)


def rest(index: DueIndex) -> list[int]:
    """Remove and return what the index contains, as numbers."""
    return [row.task_id.int for row in index.pop_due(NOW + timedelta(days=1), 10_000)]


@pytest.fixture
def of_redis() -> Iterator[Callable[[], RedisDueIndex]]:
    """Return a function that opens another client of the same empty index in Redis."""
    redis_connection = RedisConnection(REDIS)
    key = RedisDueIndex(redis_connection).key
    redis_connection.client.delete(key)
    yield lambda: RedisDueIndex(redis_connection)
    redis_connection.client.delete(key)
    redis_connection.client.close()


@pytest.fixture(params=["memory", "redis"])
def index(request: pytest.FixtureRequest) -> DueIndex:
    """Return an empty index."""
    if request.param == "memory":
        return DueIndex()
    index: DueIndex = request.getfixturevalue("of_redis")()
    return index


def test_an_empty_index_returns_nothing(index: DueIndex) -> None:
    assert (index.next_at(), index.pop_due(NOW, 10)) == (None, [])


def test_due_entries_are_returned_once_completely_and_earliest_first(index: DueIndex) -> None:
    rows = [due(-n, n, queue=f"queue {n}", shard=60 + n) for n in (1, 3, 2)]
    index.add(rows)
    index.add([due(5, 9)])
    assert index.next_at() == NOW - timedelta(seconds=3)
    assert index.pop_due(NOW, 10) == sorted(rows)
    assert index.pop_due(NOW, 10) == []
    assert index.next_at() == NOW + timedelta(seconds=5)
    assert rest(index) == [9]


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
    assert index.pop_due(NOW, 10) == [due()]
    assert rest(index) == []


def test_a_rescheduled_task_replaces_its_older_entry(index: DueIndex) -> None:
    index.add([due(-5)])
    index.add([due(5)])
    assert index.pop_due(NOW, 10) == []
    index.add([due(-1)])
    assert index.pop_due(NOW, 10) == [due(-1)]
    assert rest(index) == []


def test_removed_entries_are_not_returned(index: DueIndex) -> None:
    index.add([due(-n, n) for n in (1, 2, 3)])
    assert index.discard([uuid.UUID(int=2), uuid.UUID(int=77)]) == 1
    assert index.discard([]) == 0
    assert rest(index) == [3, 1]


def test_a_popped_entry_can_be_added_again(index: DueIndex) -> None:
    for _ in range(2):
        index.add([due()])
        assert index.pop_due(NOW, 10) == [due()]


def test_at_most_limit_entries_are_returned(index: DueIndex) -> None:
    index.add([due(-n, n) for n in range(1, 8)])
    assert [len(index.pop_due(NOW, limit)) for limit in (0, 3, 3, 3)] == [0, 3, 3, 1]


def test_only_entries_of_the_requested_shards_are_returned_and_the_rest_stays(
    of_redis: Callable[[], RedisDueIndex],
) -> None:
    index = of_redis()
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
    assert index.discard(uuid.UUID(int=n) for n in range(1, 2_001)) == 2_000
    assert rest(index) == list(range(6_000, 2_000, -1))


def test_concurrent_pops_return_no_entry_twice(of_redis: Callable[[], RedisDueIndex]) -> None:
    of_redis().add([due(-1, n, shard=n % 4) for n in range(1, 1_001)])
    popped: list[DueEntry] = []
    failed: list[Exception] = []

    def pop(shards: frozenset[int] | None) -> None:
        mine = of_redis()
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
        st.tuples(st.just("add"), st.integers(1, 5), st.integers(-3, 3)),
        st.tuples(st.just("discard"), st.integers(1, 5), st.just(0)),
        st.tuples(st.just("pop"), st.integers(1, 4), st.integers(-3, 3)),
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
    index: DueIndex, moves: list[tuple[str, int, int]]
) -> None:
    rest(index)
    table = dict[uuid.UUID, DueEntry]()
    for operation, number, at in moves:
        if operation == "add":
            row = due(at, number)
            table[row.task_id] = row
            index.add([row])
        elif operation == "discard":
            known = table.pop(uuid.UUID(int=number), None)
            assert index.discard([uuid.UUID(int=number)]) == (known is not None)
        else:
            now = NOW + timedelta(seconds=at)
            popped = index.pop_due(now, number)
            ripe = sorted(row.at for row in table.values() if row.at <= now)
            assert [row.at for row in popped] == ripe[:number]
            for row in popped:
                assert table.pop(row.task_id) == row
        assert index.next_at() == min((row.at for row in table.values()), default=None)


def test_the_instants_of_redis_are_rounded_up_to_milliseconds() -> None:
    assert instant_ms(NOW) == instant_ms(NOW - timedelta(microseconds=1))
    assert instant_ms(NOW) + 1 == instant_ms(NOW + timedelta(microseconds=1))
    assert from_ms(instant_ms(NOW)) == NOW
