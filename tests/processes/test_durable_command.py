"""The command beside real processes reports their state, and republishes all tasks after the broker
was flushed.
"""

from __future__ import annotations

from django.conf import settings

from django_durable_tasks.models import Task
from tests.database.commands.durable_command import durable, json_of
from tests.processes.cluster import Cluster
from tests.processes.rows import ended, purge, waiting_messages
from tests.project import tasks
from tests.waiting import until


def _healthy() -> bool:
    return durable("status").code == 0


def _problems() -> list[str]:
    found: list[str] = durable("status", "--format", "json").data["problems"]
    return found


def test_a_running_cluster_is_healthy_and_a_dead_one_is_not(cluster: Cluster) -> None:
    worker, scheduler = cluster.worker(slots=2), cluster.scheduler()
    cluster.ready()
    until(_healthy, within=20)
    seen = json_of("status")
    assert seen["leader"]["name"] == scheduler.name
    assert {node["name"]: node["state"] for node in seen["nodes"]} == {
        worker.name: "alive",
        scheduler.name: "leads",
    }
    assert seen["connections"]["needed"] == (1 + 3 * 2) + 8
    for program in cluster.programs:
        program.kill()
    until(lambda: len(_problems()) == 2, within=20)
    assert "No scheduler is alive" in _problems()[0]
    assert "No scheduler leads" in _problems()[1]


def test_after_the_broker_was_flushed_all_tasks_are_republished_by_one_command(
    cluster: Cluster,
) -> None:
    queue = settings.CELERY_TASK_DEFAULT_QUEUE
    purge(queue)
    rows = [tasks.add.delay(number, 1) for number in range(20)]
    until(lambda: waiting_messages(queue) == 20, within=20)
    assert Task.objects.queued().count() == 20
    assert purge(queue) == 20
    cluster.worker().ready()
    assert json_of("republish", "--queue", queue)["republished"] == {queue: 20}
    assert {ended(row, within=60).status for row in rows} == {"SUCCESS"}
