"""Publishing of messages, singly and in batches. Features that a message cannot carry are refused
at the call.
"""

import uuid
from typing import Any

import pytest
from celery import chain, chord, current_app, group
from django.conf import settings as django_settings

from django_durable_tasks.celery import publisher
from django_durable_tasks.celery.prepared_messages import HEADER, celery_id_of
from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.models import Task
from django_durable_tasks.ports import TaskMessage
from tests.processes.cluster import Cluster
from tests.processes.rows import ended, in_status, row, statuses, waiting_messages
from tests.project import bodies
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("rows")
NAME = "tests.project.bodies.add"


@pytest.fixture
def queue(rows: None) -> str:
    """Return the name of the queue of this run, which is empty."""
    name: str = django_settings.CELERY_TASK_DEFAULT_QUEUE
    assert waiting_messages(name) == 0
    return name


def _messages(queue: str, number: int) -> list[TaskMessage]:
    return [
        TaskMessage(uuid.uuid4(), 1, 1, NAME, queue, priority % 10, timeout=30)
        for priority in range(number)
    ]


def _received(queue: str) -> Any:
    with current_app.connection_for_read() as connection:
        bound = current_app.amqp.queues[queue](connection.default_channel)
        return until(lambda: bound.get(no_ack=True), within=30)


@pytest.mark.smoke
def test_a_published_message_contains_tokens_and_no_arguments(queue: str) -> None:
    message = TaskMessage(
        uuid.uuid4(), 7, 2, NAME, queue, 0, timeout=30, soft_timeout=20, idempotency_key="key"
    )
    publisher.publish([message])
    taken = _received(queue)
    assert taken.headers["id"] == taken.headers[HEADER] == celery_id_of(message)
    assert celery_id_of(message) == f"{message.task_id}.7.2"
    assert (taken.headers["task"], taken.headers["timelimit"]) == (NAME, [30, 20])
    assert taken.payload[:2] == [[], {}]


@pytest.mark.smoke
def test_a_batch_is_one_message_per_task(queue: str) -> None:
    publisher.publish(_messages(queue, 50))
    until(lambda: waiting_messages(queue) == 50, within=30)


def test_a_batch_on_rabbitmq_is_confirmed_when_publish_returns(queue: str, broker: str) -> None:
    for number in (40, 2, 60):
        publisher.publish(_messages(queue, number))
    if broker == "rabbitmq":
        assert waiting_messages(queue) == 102
    until(lambda: waiting_messages(queue) == 102, within=30)


def test_the_most_urgent_of_many_waiting_messages_is_delivered_first(
    cluster: Cluster, settings: Any, broker: str
) -> None:
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "FAST_PATH": False}
    tasks = [bodies.add.using(priority=priority).schedule(1, 2) for priority in (0, 6, 3, 9, 0)]
    cluster.scheduler().ready()
    ready = "PENDING" if broker == "database" else "QUEUED"
    until(lambda: statuses()[ready] == 5, within=20)
    cluster.worker(pool="solo").ready()
    for task in tasks:
        ended(task)
    served = list(Task.objects.order_by("started_at").values_list("priority", flat=True))
    assert served == [9, 6, 3, 0, 0]


@pytest.mark.parametrize("option", ["link", "link_error", "chord"])
def test_a_callback_that_would_be_sent_with_the_message_is_refused(option: str) -> None:
    with pytest.raises(InvalidOption, match="from_canvas"):
        bodies.add.apply_async((1, 2), **{option: bodies.plain.s()})
    assert not Task.objects.exists()


@pytest.mark.parametrize("canvas", [chain, group, chord])
def test_a_durable_task_in_a_canvas_is_refused_before_anything_is_written(canvas: Any) -> None:
    made = {
        chain: lambda: chain(bodies.add.s(1, 2), bodies.plain.si()),
        group: lambda: group(bodies.add.s(1, 2), bodies.add.s(3, 4)),
        chord: lambda: chord([bodies.add.s(1, 2)], bodies.plain.si()),
    }[canvas]()
    with pytest.raises((InvalidOption, NotImplementedError), match=r"from_canvas|result backend"):
        made.apply_async()
    assert not Task.objects.exists()


def test_a_signature_creates_a_task(cluster: Cluster) -> None:
    result = bodies.add.s(1, 2).delay()
    assert row(result).args == [1, 2]
    cluster.worker()
    cluster.scheduler()
    cluster.ready()
    assert in_status(result, "SUCCESS").result == result.get(timeout=1) == 3
