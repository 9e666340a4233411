"""A stream of calls needs the memory of some parts, for any number of calls."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator

import pytest

from django_durable_tasks.models import Task
from django_durable_tasks.states import inserts
from django_durable_tasks.task_values import NewTask
from django_durable_tasks.tasks import enqueue
from tests.project import tasks

pytestmark = pytest.mark.django_db
PART, PARTS, WARM_UP = 40, 100, 5
SAMPLED = 10 * PART
"""A collection of garbage takes a second in a process that has run the suite."""
ID = 80
"""The bytes that one id needs at least; a kept task needs more."""


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write parts of 40 tasks, each by COPY if the database has it."""
    monkeypatch.setattr(enqueue, "BULK", PART)
    monkeypatch.setattr(inserts, "_COPIED", 10)


def _calls() -> Iterator[tuple[int, int]]:
    return ((one, 1) for one in range(PART * PARTS))


def test_a_stream_keeps_none_of_the_tasks_that_were_written() -> None:
    alive: list[int] = []

    def progress(number: int) -> None:
        if number % SAMPLED == 0:
            alive.append(sum(type(found) is NewTask for found in gc.get_objects()))

    tasks.add.schedule_stream(_calls(), progress=progress)
    assert len(alive) == PARTS * PART // SAMPLED
    assert max(alive) <= 2 * PART
    assert Task.objects.count() == PART * PARTS


def test_the_memory_of_a_stream_does_not_grow_with_its_length() -> None:
    sizes: list[int] = []

    def progress(number: int) -> None:
        if number % SAMPLED == 0 or number == PART * WARM_UP:
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])

    tracemalloc.start()
    try:
        assert tasks.add.schedule_stream(_calls(), progress=progress) == PART * PARTS
    finally:
        tracemalloc.stop()
    grown, written = sizes[-1] - sizes[0], PART * (PARTS - WARM_UP)
    assert grown < written * ID / 4, (grown, written)
