"""The command beside real processes: what it says of them is so, and a flushed broker is rung full
again.
"""

from __future__ import annotations

from django.conf import settings

from django_durable_tasks.models import Task
from tests.database.commands.durable_command import durable, told
from tests.processes.fleet import Fleet
from tests.processes.rows import ended, purge, waiting_messages
from tests.project import tasks
from tests.waiting import until


def _healthy() -> bool:
    return durable("status").code == 0


def _problems() -> list[str]:
    found: list[str] = durable("status", "--format", "json").told["problems"]
    return found


def test_a_living_fleet_is_healthy_and_a_dead_one_is_not(fleet: Fleet) -> None:
    worker, scheduler = fleet.worker(slots=2), fleet.scheduler()
    fleet.ready()
    until(_healthy, within=20)
    seen = told("status")
    assert seen["leader"]["name"] == scheduler.name
    assert {node["name"]: node["state"] for node in seen["nodes"]} == {
        worker.name: "alive",
        scheduler.name: "leads",
    }
    assert seen["connections"]["needed"] == (1 + 3 * 2) + 8
    for program in fleet.programs:
        program.kill()
    until(lambda: len(_problems()) == 2, within=20)
    assert "No scheduler is alive" in _problems()[0]
    assert "No scheduler leads" in _problems()[1]


def test_after_the_broker_was_flushed_everything_is_rung_by_one_command(fleet: Fleet) -> None:
    queue = settings.CELERY_TASK_DEFAULT_QUEUE
    purge(queue)
    rows = [tasks.add.delay(number, 1) for number in range(20)]
    until(lambda: waiting_messages(queue) == 20, within=20)
    assert Task.objects.queued().count() == 20
    assert purge(queue) == 20
    fleet.worker().ready()
    assert told("republish", "--queue", queue)["republished"] == {queue: 20}
    assert {ended(row, within=60).status for row in rows} == {"SUCCESS"}
