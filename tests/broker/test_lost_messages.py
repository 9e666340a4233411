"""A message that is lost or spoilt costs no task: the row rings again."""

import uuid
from typing import Any

import pytest
from celery import current_app
from django.conf import settings as django_settings
from kombu import Producer

from django_durable_tasks.celery.publishing.message_id import HEADER, headers_of
from django_durable_tasks.models import Task
from django_durable_tasks.ports import TaskMessage
from tests.processes.fleet import Fleet
from tests.processes.rows import ended, logged, purge, row
from tests.project import bodies

QUEUE: str = django_settings.CELERY_TASK_DEFAULT_QUEUE


@pytest.mark.smoke
def test_a_message_that_the_broker_lost_is_rung_again(fleet: Fleet) -> None:
    task = bodies.add.schedule(1, 2)
    assert (row(task).status, row(task).publish_count) == ("QUEUED", 1)
    assert purge(QUEUE) == 1
    fleet.worker()
    fleet.scheduler()
    fleet.ready()
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


def test_rubbish_in_the_place_of_a_ring_costs_a_message_and_no_task(fleet: Fleet) -> None:
    task = bodies.add.schedule(1, 2)
    assert row(task).status == "QUEUED"
    purge(QUEUE)
    for body in (b"{", b"\xff\xfe", b"[[], {}"):
        _broken(task, body)
    _broken(task, b"[[], {}, {}]", content_type="application/x-rubbish", content_encoding="binary")
    _broken(task, b"[[], {}, {}]", without="task")
    _broken(task, b"[[], {}, {}]", headers={HEADER: "no.such.ring"})
    worker, _ = fleet.worker(), fleet.scheduler()
    fleet.ready()
    found = ended(task)
    assert (found.status, found.result, found.attempts, logged(task)) == (
        "SUCCESS",
        3,
        1,
        ["SUCCESS"],
    )
    assert worker.alive()
