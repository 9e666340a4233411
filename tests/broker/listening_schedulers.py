"""Schedulers that wait for notifications, for tests."""

import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_durable_tasks import ports
from django_durable_tasks.models import Task
from django_durable_tasks.scheduler import notifier
from django_durable_tasks.scheduler.notifier import Listeners
from django_durable_tasks.store.connections import dedicated_connection
from tests.processes.cluster import SHORT
from tests.waiting import until

BY_POSTGRESQL, BY_BOTH = "listening (PostgreSQL)", "listening (Redis, PostgreSQL)"


CALM = {**SHORT, "FAST_PATH": False}


class Recorder:
    """Records the wake-ups of a scheduler, with the number of waiting tasks that were visible at
    each.
    """

    def __init__(self) -> None:
        self.woken: list[datetime] = []
        self.saw: list[int] = []
        self.leader_work = threading.Event()
        self.wakeups = Listeners(self.wake, self.leader_work.set)

    def wake(self, at: datetime) -> None:
        """Record a wake-up."""
        with dedicated_connection():
            self.saw.append(Task.objects.pending().count())
        self.woken.append(at)

    def received(self, at: datetime) -> bool:
        """Return whether a wake-up was for this instant, to the millisecond."""
        return any(abs(woken - at) <= timedelta(milliseconds=1) for woken in self.woken)


@pytest.fixture
def recorder(
    rows: None, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Recorder]]:
    """Return a function that starts a recorder which listens with these settings."""
    monkeypatch.setattr(notifier, "_TEST_EVERY", 0.3)
    monkeypatch.setattr(notifier, "REDIS_PAUSE", 0.3)
    monkeypatch.setattr(notifier, "_LONGEST_PAUSE", 0.3)
    started: list[Recorder] = []

    def start(state: str = BY_POSTGRESQL, **keys: Any) -> Recorder:
        settings.DURABLE_TASKS = {**CALM, **keys}
        sleeper = Recorder()
        started.append(sleeper)
        sleeper.wakeups.start()
        until(lambda: sleeper.wakeups.state.startswith(state), within=20, message=state)
        return sleeper

    notifier.redis_at.cache_clear()
    notifying_unlimited(monkeypatch)
    yield start
    for sleeper in started:
        sleeper.wakeups.stop(10)
    notifier.redis_at.cache_clear()


def notifying_unlimited(patch: pytest.MonkeyPatch) -> None:
    """Make this process send notifications without the rate limit of earlier tests."""
    patch.setattr(ports, "due", notifier.OnCommitNotifier())


def soon(seconds: float = 0.3) -> datetime:
    """Return an instant in the near future."""
    return timezone.now() + timedelta(seconds=seconds)
