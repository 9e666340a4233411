"""Real schedulers and a real worker with more concurrency obey a limit from the first start to the
last.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from django_durable_tasks.limits import operator_limits
from django_durable_tasks.models import Limit, Task
from tests.processes.cluster import Cluster
from tests.processes.rows import ended, release
from tests.project import bodies
from tests.waiting import until

_TASKS, _PLACES = 12, 2


@pytest.fixture(autouse=True)
def no_limits_are_left(rows: None) -> Iterator[None]:
    """Delete operator limits before and after the test."""
    yield
    Limit.objects.all().delete()


def _most_at_once(folder: Path) -> int:
    """Return the maximum number of bodies running at once, from the records of their beginnings and
    ends.
    """
    moments = sorted(
        (int(file.name.split("-")[2]), file.name.startswith("started"))
        for file in folder.glob("*-*-*")
    )
    most = running = 0
    for _, begins in moments:
        running += 1 if begins else -1
        most = max(most, running)
    return most


def test_a_limit_of_two_is_never_exceeded_and_everything_runs(
    cluster: Cluster, tmp_path: Path
) -> None:
    operator_limits.set_limit(
        "task:tests.project.bodies.hold", max_concurrency=_PLACES, rate=None, burst=None, by="ann"
    )
    cluster.worker(slots=4)
    cluster.scheduler()
    cluster.scheduler()
    cluster.ready()
    folder = tmp_path / "held"
    tasks = [bodies.hold.schedule(str(folder)) for _ in range(_TASKS)]
    # A task is RUNNING before its body runs: only two bodies that have begun are two at once.
    until(
        lambda: len(list(folder.glob("started-*"))) == _PLACES,
        within=30,
        message="as many run as there are places",
    )
    until(
        lambda: Task.objects.waiting_for_limit().count() == _TASKS - _PLACES,
        within=30,
        message="the others wait for the limit",
    )
    release(folder)
    for task in tasks:
        assert ended(task, within=60).status == "SUCCESS"
    assert _most_at_once(folder) == _PLACES
    assert len(list(folder.glob("ended-*"))) == _TASKS


def test_published_tasks_behind_a_long_one_do_not_use_the_places_of_another_queue(
    cluster: Cluster, tmp_path: Path
) -> None:
    operator_limits.set_limit("tenant:1", max_concurrency=4, rate=None, burst=None, by="ann")
    folder = tmp_path / "held"
    cluster.worker(slots=1, queues=["long"])
    cluster.worker(slots=2)
    cluster.scheduler()
    cluster.ready()
    long = [bodies.hold.using(queue="long").schedule(str(folder)) for _ in range(4)]
    until(lambda: any(folder.glob("started-*")), within=30, message="the first one runs")
    until(lambda: Task.objects.queued().count() == 3, within=30, message="they use all places")
    assert ended(bodies.add.schedule(1, 2), within=40).result == 3
    assert not any(folder.glob("ended-*"))
    release(folder)
    assert [ended(task, within=60).status for task in long] == ["SUCCESS"] * 4
