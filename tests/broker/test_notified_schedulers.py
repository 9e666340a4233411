"""Schedulers with a poll interval of an hour start tasks that are due soon, because of
notifications, and survive lost ones.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from django_durable_tasks.dependencies import resolve
from django_durable_tasks.models import OccurrenceRecord, RecurringTask, Task, WorkflowRun
from django_durable_tasks.scheduler import notifier
from django_durable_tasks.scheduler.due_index import RedisDueIndex
from django_durable_tasks.workflows import Workflow
from tests.broker.test_redis_away import frozen, url
from tests.processes.cluster import SHORT, cluster_in
from tests.processes.rows import ended, logged
from tests.project import bodies
from tests.waiting import until

__all__ = ["url"]
SLEEPY = {**SHORT, "POLL": 3600, "LOOKAHEAD": 3600, "FAST_PATH": False}
READY = {**SHORT, "FAST_PATH": False, "LOOKAHEAD": 600}


@pytest.fixture
def notifying(rows: None, settings: Any) -> Iterator[Any]:
    """Make this process send notifications as part of the installation."""
    settings.DURABLE_TASKS = dict(SLEEPY)
    notifier.redis_at.cache_clear()
    yield settings
    notifier.redis_at.cache_clear()


def soon(seconds: float = 0.3) -> Any:
    """Return an instant in the near future."""
    return timezone.now() + timedelta(seconds=seconds)


def test_a_sleeping_scheduler_starts_tasks_due_soon_rescheduled_or_due_now(
    notifying: Any, tmp_path: Path
) -> None:
    with cluster_in(tmp_path, SLEEPY) as cluster:
        cluster.worker(slots=2)
        scheduler = cluster.scheduler()
        cluster.ready()
        until(
            lambda: "Notifications are received through PostgreSQL" in scheduler.output(), within=20
        )
        assert ended(bodies.add.schedule(1, 2)).result == 3
        assert ended(bodies.add.schedule(3, 4, run_at=soon())).result == 7
        task = bodies.add.using(key="report", run_at=soon(86_400)).schedule(5, 6)
        Task.objects.reschedule("report", soon())
        assert ended(task).result == 11


def repeated(act: Callable[[], Any], seen: Callable[[], Any]) -> None:
    """Repeat the call until its effect is seen: a notification is a hint, and one may be lost on a
    busy machine.
    """
    for _ in range(5):
        act()
        with suppress(AssertionError):
            until(seen, within=30)
            return
    raise AssertionError("no scheduler was woken in five attempts")


@pytest.mark.timeout(300)
def test_a_sleeping_leader_resolves_endings_left_to_it_and_counts_workflows(
    notifying: Any, tmp_path: Path
) -> None:
    """More dependents than a worker resolves itself, and the end of a workflow, with a poll
    interval of an hour.
    """
    with cluster_in(tmp_path, SLEEPY) as cluster:
        cluster.worker(slots=2)
        scheduler = cluster.scheduler()
        cluster.ready()
        until(
            lambda: "Notifications are received through PostgreSQL" in scheduler.output(), within=20
        )

        def wait_for_one() -> None:
            upstream = bodies.add.using(run_at=soon(3)).schedule(1, 2)
            for number in range(resolve.SMALL + 1):
                bodies.add.using(depends_on=[upstream], queue="nobody").schedule(number, 1)

        def run_one() -> None:
            flow = Workflow("short")
            flow.add(bodies.add, 3, 4)
            flow.start(run_at=soon())

        repeated(wait_for_one, lambda: not Task.objects.blocked().exists())
        repeated(run_one, WorkflowRun.objects.filter(status="SUCCESS").exists)


def test_a_sleeping_leader_fires_a_schedule_that_was_just_declared_changed_or_resumed(
    notifying: Any, tmp_path: Path
) -> None:
    with cluster_in(tmp_path, SLEEPY) as cluster:
        scheduler = cluster.scheduler()
        cluster.ready()
        until(
            lambda: "Notifications are received through PostgreSQL" in scheduler.output(), within=20
        )
        fires = partial(
            RecurringTask.objects.upsert,
            name="soon",
            task=bodies.add,
            args=[1, 2],
            queue="nobody",
            overlap="ALLOW",
        )

        def fired() -> int:
            return OccurrenceRecord.objects.filter(task__isnull=False).count()

        fires(interval=86_400, start_time=soon(0.5))
        until(lambda: fired() == 1, within=20, message="it fires")
        row = fires(interval=0.5)
        until(lambda: fired() >= 2, within=20, message="it fires as it was changed")
        row.pause("a test")
        before = fired()
        row.resume()
        until(lambda: fired() > before, within=20, message="it fires again")


def test_two_schedulers_share_the_index_in_redis_and_continue_while_it_is_frozen_or_emptied(
    notifying: Any, tmp_path: Path, url: str
) -> None:
    notifying.DURABLE_TASKS = {**READY, "REDIS_URL": url}
    with cluster_in(tmp_path, {**READY, "REDIS_URL": url}) as cluster:
        cluster.worker(slots=2)
        cluster.scheduler(), cluster.scheduler()
        cluster.ready()
        redis_connection = notifier.redis_connection()
        assert redis_connection is not None
        index = RedisDueIndex(redis_connection)
        later = bodies.add.schedule(0, 1, run_at=soon(120))
        until(index.next_at, within=20, message="a scheduler adds what it reads in advance")
        Task.objects.filter(pk=later.pk).cancel()
        tasks = [bodies.add.schedule(number, 1, run_at=soon(0.1 * number)) for number in range(10)]
        redis_connection.client.flushall()
        tasks += [bodies.add.schedule(number, 1, run_at=soon(0.1 * number)) for number in range(10)]
        with frozen(url):
            tasks += [
                bodies.add.schedule(number, 1, run_at=soon(0.1 * number)) for number in range(10)
            ]
            assert all(ended(task).status == "SUCCESS" for task in tasks)
        assert all(logged(task) == ["SUCCESS"] for task in tasks)
        index.pop_due(soon(200), 10_000)
        assert index.next_at() is None
