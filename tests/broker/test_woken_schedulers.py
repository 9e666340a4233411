"""Schedulers that would not look for an hour start what is due soon, because they are told; and
survive not being.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from django_durable_tasks.due_index import redis_client
from django_durable_tasks.due_index.redis import RedisDueIndex
from django_durable_tasks.engine.dependencies import resolve
from django_durable_tasks.models import OccurrenceRecord, RecurringTask, Task, WorkflowRun
from django_durable_tasks.workflows import Workflow
from tests.broker.test_redis_away import frozen, url
from tests.processes.fleet import SHORT, fleet_in
from tests.processes.rows import ended, logged
from tests.project import bodies
from tests.waiting import until

__all__ = ["url"]
SLEEPY = {**SHORT, "POLL": 3600, "LOOKAHEAD": 3600, "FAST_PATH": False}
READY = {**SHORT, "FAST_PATH": False}


@pytest.fixture
def telling(rows: None, settings: Any) -> Iterator[Any]:
    """Let this process tell as one of the installation."""
    settings.DURABLE_TASKS = dict(SLEEPY)
    redis_client.close_idle()
    yield settings
    redis_client.close_idle()


def soon(seconds: float = 0.3) -> Any:
    """Give an instant that is soon."""
    return timezone.now() + timedelta(seconds=seconds)


def test_a_sleeping_scheduler_starts_what_is_due_soon_moved_or_now(
    telling: Any, tmp_path: Path
) -> None:
    with fleet_in(tmp_path, SLEEPY) as fleet:
        fleet.worker(slots=2)
        scheduler = fleet.scheduler()
        fleet.ready()
        until(
            lambda: "Notifications are received through PostgreSQL" in scheduler.said(), within=20
        )
        assert ended(bodies.add.schedule(1, 2)).result == 3
        assert ended(bodies.add.schedule(3, 4, run_at=soon())).result == 7
        task = bodies.add.using(key="report", run_at=soon(86_400)).schedule(5, 6)
        Task.objects.reschedule("report", soon())
        assert ended(task).result == 11


def woken(act: Callable[[], Any], seen: Callable[[], Any]) -> None:
    """Do it until it is seen: a wake-up is a hint, and one may be lost on a machine that is short
    of time.
    """
    for _ in range(5):
        act()
        with suppress(AssertionError):
            until(seen, within=15)
            return
    raise AssertionError("nobody was woken five times")


@pytest.mark.timeout(300)
def test_a_sleeping_leader_tells_endings_that_were_left_to_it_and_counts_workflows(
    telling: Any, tmp_path: Path
) -> None:
    """More dependents than a worker tells by itself, and the end of a workflow; nobody polls for an
    hour.
    """
    with fleet_in(tmp_path, SLEEPY) as fleet:
        fleet.worker(slots=2)
        scheduler = fleet.scheduler()
        fleet.ready()
        until(
            lambda: "Notifications are received through PostgreSQL" in scheduler.said(), within=20
        )

        def wait_for_one() -> None:
            upstream = bodies.add.using(run_at=soon(3)).schedule(1, 2)
            for number in range(resolve.SMALL + 1):
                bodies.add.using(depends_on=[upstream], queue="nobody").schedule(number, 1)

        def run_one() -> None:
            flow = Workflow("short")
            flow.add(bodies.add, 3, 4)
            flow.start(run_at=soon())

        woken(wait_for_one, lambda: not Task.objects.blocked().exists())
        woken(run_one, WorkflowRun.objects.filter(status="SUCCESS").exists)


def test_a_sleeping_leader_fires_a_schedule_that_was_just_declared_changed_or_resumed(
    telling: Any, tmp_path: Path
) -> None:
    with fleet_in(tmp_path, SLEEPY) as fleet:
        scheduler = fleet.scheduler()
        fleet.ready()
        until(
            lambda: "Notifications are received through PostgreSQL" in scheduler.said(), within=20
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


def test_two_schedulers_share_the_set_in_redis_and_go_on_while_it_is_frozen_or_emptied(
    telling: Any, tmp_path: Path, url: str
) -> None:
    telling.DURABLE_TASKS = {**READY, "REDIS_URL": url}
    with fleet_in(tmp_path, {**READY, "REDIS_URL": url}) as fleet:
        fleet.worker(slots=2)
        fleet.scheduler(), fleet.scheduler()
        fleet.ready()
        door = redis_client.connection()
        assert door is not None
        index = RedisDueIndex(door)
        until(
            lambda: index.next_at() or index.filled_until,
            within=20,
            message="the leader fills the set",
        )
        tasks = [bodies.add.schedule(number, 1, run_at=soon(0.1 * number)) for number in range(10)]
        door.client.flushall()
        tasks += [bodies.add.schedule(number, 1, run_at=soon(0.1 * number)) for number in range(10)]
        with frozen(url):
            tasks += [
                bodies.add.schedule(number, 1, run_at=soon(0.1 * number)) for number in range(10)
            ]
            assert all(ended(task).status == "SUCCESS" for task in tasks)
        assert all(logged(task) == ["SUCCESS"] for task in tasks)
        assert len(index) == 0
