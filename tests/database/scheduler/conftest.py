"""Schedulers whose threads are not started."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_durable_tasks.scheduler.loop import Scheduler


@pytest.fixture
def scheduler() -> Scheduler:
    """A scheduler that does not lead."""
    return Scheduler("one")


@pytest.fixture
def leader(scheduler: Scheduler) -> Iterator[Scheduler]:
    """A scheduler that leads."""
    scheduler.leader.step()
    yield scheduler
    scheduler.leader.resign()
