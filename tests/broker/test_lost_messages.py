"""A lost or corrupted message costs no task: the task is republished."""

import uuid
from typing import Any

import pytest
from celery import current_app
from django.conf import settings as django_settings
from kombu import Producer

from django_durable_tasks.celery.prepared_messages import HEADER, headers_of
from django_durable_tasks.models import Task
from django_durable_tasks.ports import TaskMessage
from tests.processes.cluster import Cluster
from tests.processes.rows import ended, logged, purge, row
from tests.project import bodies

QUEUE: str = django_settings.CELERY_TASK_DEFAULT_QUEUE


@pytest.mark.smoke
def test_a_message_lost_by_the_broker_is_republished(cluster: Cluster) -> None:
    task = bodies.add.schedule(1, 2)
    assert (row(task).status, row(task).publish_count) == ("QUEUED", 1)
    assert purge(QUEUE) == 1
    cluster.worker()
    cluster.scheduler()
    cluster.ready()
    found = ended(task)
    assert (found.status, found.attempts, logged(task)) == ("SUCCESS", 1, ["SUCCESS"])
    assert found.executions.get().celery_id == f"{task.pk}.1.2"


def _broken(
    task: Task, body: bytes, without: str = "", headers: dict[str, str] | None = None, **sent: str
) -> None:
    message = TaskMessage(task.pk, 1, 1, task.name, QUEUE, 0)
    full = {
        "id": str(uuid.uuid4()),
        "task": task.name,
        "lang": "py",
        **headers_of(message),
        **(headers or {}),
    }
    full.pop(without, None)
    options: dict[str, Any] = {
        "content_type": "application/json",
        "content_encoding": "utf-8",
        **sent,
    }
    with current_app.connection_for_write() as connection:
        Producer(connection).publish(body, routing_key=QUEUE, headers=full, **options)


def test_a_corrupted_message_costs_no_task(cluster: Cluster, broker: str) -> None:
    task = bodies.add.schedule(1, 2)
    assert row(task).status == ("PENDING" if broker == "database" else "QUEUED")
    purge(QUEUE)
    for body in (b"{", b"\xff\xfe", b"[[], {}"):
        _broken(task, body)
    _broken(task, b"[[], {}, {}]", content_type="application/x-rubbish", content_encoding="binary")
    _broken(task, b"[[], {}, {}]", without="task")
    _broken(task, b"[[], {}, {}]", headers={HEADER: "no.such.task"})
    worker, _ = cluster.worker(), cluster.scheduler()
    cluster.ready()
    found = ended(task)
    assert (found.status, found.result, found.attempts, logged(task)) == (
        "SUCCESS",
        3,
        1,
        ["SUCCESS"],
    )
    assert worker.alive()
