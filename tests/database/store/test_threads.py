"""In a worker with many threads, some of them use dedicated connections at once, and the others wait."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from django_durable_tasks.store import connections
from django_durable_tasks.store.connections import dedicated_connection
from tests.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def one_place(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadPoolExecutor]:
    """Threads of which one uses a dedicated connection at once."""
    places = connections._Places()
    places.limit(1)
    monkeypatch.setattr(connections, "_places", places)
    with ThreadPoolExecutor(2) as threads:
        yield threads


def test_a_thread_waits_for_its_turn_and_a_heartbeat_does_not(
    one_place: ThreadPoolExecutor,
) -> None:
    if connections.has_one_connection():
        pytest.skip("SQLite in memory has no dedicated connections")
    begins, has_one = threading.Event(), threading.Event()

    def use() -> None:
        begins.set()
        with dedicated_connection():
            has_one.set()

    def beat() -> None:
        with dedicated_connection(at_once=True):
            pass

    with dedicated_connection():
        with dedicated_connection():  # nested: no second turn
            pass
        waiting = one_place.submit(use)
        until(begins.is_set, within=20)
        one_place.submit(beat).result(20)
        assert not has_one.is_set()
    waiting.result(20)


def test_a_turn_that_never_comes_is_not_waited_for(
    one_place: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that has a connection may wait for another thread that needs one."""
    monkeypatch.setattr(connections, "_PLACE_PATIENCE", 0.1)

    def use() -> bool:
        with dedicated_connection():
            return True

    with dedicated_connection():
        assert one_place.submit(use).result(20)
    assert use()
