"""Without PostgreSQL and Redis no notification is sent or received, and the state gives the reason."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone

from django_durable_tasks.scheduler import notifier
from django_durable_tasks.scheduler.due_index import DueIndex, due_index
from django_durable_tasks.scheduler.notifier import Listeners, Notification, NotificationKind
from tests.factories import QUEUE
from tests.project import tasks

pytestmark = pytest.mark.django_db


def _notifiers() -> int:
    return sum(isinstance(hook, notifier._Batch) for _, hook, *_ in connection.run_on_commit)


def _schedule(wait: float = 0.0) -> None:
    tasks.noop.using(
        queue=QUEUE, key="k", run_at=timezone.now() + timedelta(seconds=wait)
    ).schedule()


@pytest.mark.mariadb
@pytest.mark.sqlite
def test_nothing_is_sent_and_the_state_says_that_the_scheduler_polls(settings: Any) -> None:
    with transaction.atomic():
        _schedule(0.5)
        _schedule(1.0)
        assert _notifiers() == 0
    wakeups = Listeners(lambda at: None)
    wakeups.start()
    assert not wakeups.listening
    assert wakeups.state.startswith("polling every 1 s (")
    assert wakeups.state.endswith("sends no notifications; REDIS_URL would give wake-ups)")
    assert wakeups.source_state.startswith("none, polling every 1 s: ")
    wakeups.stop()
    assert not notifier.send_by_postgresql(Notification(NotificationKind.ROWS, timezone.now()))


@pytest.mark.postgresql
def test_only_tasks_due_soon_are_announced(settings: Any) -> None:
    with transaction.atomic():
        tasks.noop.using(queue=QUEUE, run_at=timezone.now() + timedelta(hours=1)).schedule()
        tasks.noop.using(queue=QUEUE).delay()
        assert _notifiers() == 0
        _schedule(0.5)
        assert _notifiers() == 1


def test_without_redis_each_scheduler_has_an_index_of_its_own() -> None:
    assert type(due_index()) is DueIndex


def test_the_address_of_the_command_line_overrides_the_setting(settings: Any) -> None:
    settings.DURABLE_TASKS = {"REDIS_URL": "redis://one:1/0"}
    assert notifier.redis_url() == "redis://one:1/0"
    notifier.use_redis("redis://two:2/0")
    assert notifier.redis_url() == "redis://two:2/0"
    notifier.use_redis(None)
    assert notifier.redis_url() == "redis://one:1/0"
