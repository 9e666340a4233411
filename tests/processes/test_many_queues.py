"""A scheduler and a worker serve many queues (a thousand on Redis) with two due tasks each."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from celery import current_app
from django.conf import settings as django_settings
from django.db import transaction

from tests.processes.cluster import SHORT, Cluster
from tests.processes.rows import logs, statuses
from tests.project import tasks
from tests.waiting import until

QUEUES = {"redis": 1_000, "rabbitmq": 100, "filesystem": 100}
"""A worker declares its queues one by one, and RabbitMQ writes each of them, its exchange and its
binding to disk.
"""
DUE = 2


@pytest.fixture
def queues(rows: None) -> Iterator[list[str]]:
    """Return names of queues for this test only. The queues and their exchanges are deleted
    afterwards.
    """
    names = [
        f"{django_settings.CELERY_TASK_DEFAULT_QUEUE}-{number}"
        for number in range(QUEUES[os.environ["TEST_BROKER"]])
    ]
    yield names
    with current_app.connection_for_write() as broker:
        for name in names:
            broker.default_channel.queue_delete(name)
            broker.default_channel.exchange_delete(name)


@pytest.mark.timeout(600)
def test_all_tasks_of_many_queues_run(cluster: Cluster, queues: list[str], settings: Any) -> None:
    settings.DURABLE_TASKS = {**SHORT, "FAST_PATH": False}  # the scheduler publishes
    cluster.worker(pool="threads", slots=4, queues=queues)
    cluster.scheduler()
    cluster.ready()
    with transaction.atomic():
        for name in queues:
            for _ in range(DUE):
                tasks.noop.using(queue=name).schedule()
    everything = Counter(SUCCESS=DUE * len(queues))
    until(lambda: statuses() == everything, within=300, message="all tasks have run")
    assert logs() == everything
