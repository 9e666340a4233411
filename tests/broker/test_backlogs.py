"""A backlog without a fault has one message per task; lost messages are replaced unnoticed."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.conf import settings as django_settings
from django.db.models import Max, Sum

from django_durable_tasks.models import Task
from tests.processes.cluster import SHORT, Cluster
from tests.processes.rows import purge, waiting_messages
from tests.project import bodies
from tests.waiting import until

QUEUE: str = django_settings.CELERY_TASK_DEFAULT_QUEUE
# Seconds of work of the workers: more than twice REPUBLISH_AFTER of these processes.
BACKLOG = 2.3 * SHORT["REPUBLISH_AFTER"]
PER_TASK = 1.1
"""The largest number of messages per task in a backlog without a fault."""


def _messages() -> int:
    return int(Task.objects.aggregate(number=Sum("publish_count"))["number"] or 0)


def _schedule(number: int, seconds: float, folder: Path) -> None:
    bodies.work.schedule_many([(place, seconds, str(folder)) for place in range(number)])


def _all_ended() -> bool:
    return not Task.objects.filter(completed_at=None).exists()


@pytest.mark.parametrize(
    ("seconds", "workers"), [pytest.param(0.3, 2, marks=pytest.mark.smoke), (0.05, 1)]
)
def test_a_backlog_that_is_older_than_republish_after_has_one_message_per_task(
    cluster: Cluster, tmp_path: Path, seconds: float, workers: int
) -> None:
    slots = 2
    number = int(workers * slots * BACKLOG / seconds)
    cluster.scheduler()
    cluster.ready()
    _schedule(number, seconds, tmp_path)
    until(lambda: Task.objects.queued().exists(), within=20)
    for _ in range(workers):
        cluster.worker(slots=slots)
    until(_all_ended, within=120, message=f"{number} tasks of {seconds} s have ended")
    assert Task.objects.filter(status="SUCCESS").count() == number
    assert _messages() <= PER_TASK * number, f"{_messages()} messages for {number} tasks"


@pytest.mark.parametrize("when", ["before the first worker", "while all run", "during a restart"])
def test_messages_that_were_lost_unnoticed_are_replaced_and_new_tasks_run(
    cluster: Cluster, tmp_path: Path, when: str
) -> None:
    scheduler = cluster.scheduler()
    if when != "before the first worker":
        cluster.worker()
    cluster.ready()
    _schedule(80, 0.1, tmp_path)
    # A task is QUEUED before its message has arrived in the broker.
    until(lambda: waiting_messages(QUEUE) >= 20, within=20)
    if when == "during a restart":
        for program in cluster.programs:
            program.terminate()
        assert not scheduler.alive()
    assert purge(QUEUE)
    if when == "during a restart":
        cluster.scheduler()
    if when != "while all run":
        cluster.worker()
    bodies.work.schedule(80, 0.0, str(tmp_path))
    until(_all_ended, within=60)
    assert Task.objects.filter(status="SUCCESS").count() == 81
    assert Task.objects.aggregate(most=Max("publish_count"))["most"] == 2
