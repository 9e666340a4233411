"""Workers consume quorum queues of RabbitMQ: no task is lost when a worker or its messages are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest
from celery import Celery, current_app
from django.conf import settings
from kombu import Queue

from django_durable_tasks.models import Task
from tests.broker.routes import application
from tests.processes.cluster import Cluster
from tests.processes.rows import accepted_twice, all_ended, ended, purge, statuses
from tests.project import bodies
from tests.waiting import until

QUEUE = f"{settings.CELERY_TASK_DEFAULT_QUEUE}-quorum"
TASKS = 40
# Celery declares them, and an exchange for each, beside the quorum queues of a worker.
DELAYED = [*(f"celery_delayed_{level}" for level in range(28)), "celery_delayed_delivery"]


@pytest.fixture
def app(cluster: Cluster) -> Iterator[Celery]:
    """Return an application with one quorum queue, which is deleted after the cluster has ended."""
    queue = Queue(QUEUE, routing_key=QUEUE, queue_arguments={"x-queue-type": "quorum"})
    with application(task_queues=[queue], task_default_queue=QUEUE) as made:
        yield made
        cluster.end()
    with current_app.connection_for_write() as connection:
        for name in (QUEUE, *DELAYED):
            with suppress(*connection.channel_errors), connection.channel() as channel:
                channel.queue_delete(name)
                channel.exchange_delete(name)


def _declared_as(app: Celery) -> str:
    """Return how RabbitMQ refuses a declaration as a classic queue; it names the kind."""
    with app.connection_for_write() as connection, connection.channel() as channel:
        try:
            channel.queue_declare(QUEUE, durable=True, auto_delete=False)
        except connection.channel_errors as refused:
            return str(refused)
    return "classic"


def test_tasks_of_a_quorum_queue_run_although_messages_and_a_worker_are_lost(
    cluster: Cluster, app: Celery
) -> None:
    called = [bodies.add.using(queue=QUEUE).schedule(number, 1) for number in range(TASKS)]
    assert "quorum" in _declared_as(app)
    until(lambda: Task.objects.filter(status="QUEUED").exists(), within=10)
    purge(QUEUE)
    workers = [cluster.worker(queues=[QUEUE], TEST_QUORUM="yes") for _ in range(2)]
    cluster.scheduler(TEST_QUORUM="yes")
    cluster.ready()
    ended(called[0])
    workers[0].kill()
    all_ended(TASKS)
    assert statuses() == {"SUCCESS": TASKS}
    assert accepted_twice() == []
