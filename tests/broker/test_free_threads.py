"""A worker with the pool ``threads`` gets the next messages as soon as a thread is free."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_durable_tasks.models import Task
from tests.processes.cluster import Cluster, cluster_in
from tests.project import bodies
from tests.waiting import until


@pytest.fixture(scope="module")
def shared(shared_database: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One worker with two threads and one scheduler."""
    with cluster_in(tmp_path_factory.mktemp("threads")) as cluster:
        cluster.worker(pool="threads", slots=2)
        cluster.scheduler()
        yield cluster.ready()


def test_many_tasks_run_without_pauses_between_messages(shared: Cluster, rows: None) -> None:
    """On Redis, Celery's consumer alone notices free threads every few seconds: these tasks would
    take minutes.
    """
    bodies.add.schedule_many([(number, 1) for number in range(200)])
    until(lambda: Task.objects.filter(status="SUCCESS").count() == 200, within=90)
