"""Each process has one object of each class of state; a child and a renewed state start anew."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from django_durable_tasks import process_state


class _Counter:
    def __init__(self) -> None:
        self.number = 0
        self.stopped_within: float | None = None

    def stop(self, patience: float) -> None:
        self.stopped_within = patience


@pytest.fixture(autouse=True)
def renewed() -> Iterator[None]:
    """Leave no object of a test behind."""
    yield
    process_state.renew()


def test_every_caller_gets_the_same_object() -> None:
    found: list[_Counter] = []
    threads = [
        threading.Thread(target=lambda: found.append(process_state.of(_Counter))) for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(found) == 20
    assert len(set(map(id, found))) == 1


def test_renew_stops_the_old_objects_and_creates_new_ones() -> None:
    old = process_state.of(_Counter)
    old.number = 7
    process_state.renew()
    assert old.stopped_within is not None
    assert process_state.of(_Counter).number == 0


def test_an_object_that_is_created_while_the_state_ends_is_stopped() -> None:
    """A thread that it starts would go on beside those of the new state."""
    state = process_state.ProcessState()
    state.stop(0.0)
    assert state.of(_Counter).stopped_within is not None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_child_starts_with_a_new_state() -> None:
    process_state.of(_Counter).number = 7
    child = os.fork()
    if not child:
        os._exit(process_state.of(_Counter).number)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert process_state.of(_Counter).number == 7
