"""Runs that die together with their worker: only the task that ends it uses up its crashes."""

from __future__ import annotations

import random

import pytest

from django_durable_tasks.models import DeadLetter, Task
from tests.processes.cluster import Cluster, Program
from tests.processes.rows import in_status, release, row, statuses
from tests.project import bodies
from tests.waiting import until

pytestmark = [pytest.mark.timeout(600), pytest.mark.long, pytest.mark.postgresql]


def _supervised(cluster: Cluster, workers: list[Program], pool: str) -> None:
    """Start the worker again if it ended."""
    if not workers[-1].alive():
        workers.append(cluster.worker(pool=pool, slots=4))


@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_the_neighbours_of_a_task_that_ends_its_worker_succeed(cluster: Cluster, pool: str) -> None:
    draw = random.Random(pool)
    cluster.scheduler().ready()
    workers = [cluster.worker(pool=pool, slots=4).ready()]
    neighbours = [bodies.last.delay(draw.uniform(3, 9)) for _ in range(3)]
    poison = bodies.end_the_worker.delay(draw.uniform(0.5, 2.5))

    def ended() -> bool:
        _supervised(cluster, workers, pool)
        return not Task.objects.open().exists()

    until(ended, within=400, message="all tasks ended")
    assert row(poison).status == "FAILED"
    assert (row(poison).reason, row(poison).crashes) == ("CRASHED", row(poison).max_crashes)
    assert [row(one).status for one in neighbours] == ["SUCCESS"] * 3
    assert list(DeadLetter.objects.values_list("task", flat=True)) == [row(poison).pk]


def test_a_worker_that_is_killed_in_each_deployment_fails_no_task(
    cluster: Cluster,
) -> None:
    folder = cluster.folder / "held"
    cluster.scheduler().ready()
    worker = cluster.worker(slots=4).ready()
    tasks = [bodies.hold.delay(str(folder)) for _ in range(4)]
    for task in tasks:
        in_status(task, "RUNNING")
    for _ in range(3):
        worker.kill()
        until(lambda: not statuses()["RUNNING"], within=60, message="the runs are lost")
        worker = cluster.worker(slots=4).ready()
        until(lambda: statuses()["RUNNING"] > 0, within=60, message="a task runs again")
    release(folder)
    until(lambda: statuses()["SUCCESS"] == 4, within=200, message="all succeed")
    assert sum(row(task).crashes for task in tasks) <= 1
