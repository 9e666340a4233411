"""On Redis, the message of a durable task has no copy while a worker has it, other messages have
one; nothing is lost by a kill.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from celery import current_app
from django.conf import settings as django_settings

from django_durable_tasks.celery.prepared_messages import HEADER, headers_of
from django_durable_tasks.celery.redis_records import belongs_to_row, keep_in_memory
from django_durable_tasks.models import Task
from django_durable_tasks.ports import TaskMessage
from tests.processes.cluster import Cluster
from tests.processes.rows import ended, purge
from tests.project import bodies
from tests.waiting import until

QUEUE: str = django_settings.CELERY_TASK_DEFAULT_QUEUE
DURABLE = {
    "id": f"{uuid.UUID(int=7)}.1.1",
    **headers_of(TaskMessage(uuid.UUID(int=7), 1, 1, "tests.task", QUEUE, 0)),
}
PLAIN = {"id": str(uuid.UUID(int=8)), "task": "tests.plain"}


@pytest.fixture
def channel() -> Iterator[Any]:
    """A channel to an empty queue of this test, whose record is that of a worker."""
    with current_app.connection_for_read() as connection:
        channel = connection.default_channel
        channel.qos.restore_at_shutdown = False
        keep_in_memory(channel.qos)
        current_app.amqp.queues[QUEUE](channel).declare()
        channel.queue_purge(QUEUE)
        channel.client.delete(channel.unacked_key, channel.unacked_index_key)
        yield channel
        channel.client.delete(channel.unacked_key, channel.unacked_index_key)
        channel.queue_purge(QUEUE)


def _read(channel: Any, *kinds: dict[str, str]) -> list[Any]:
    producer = current_app.amqp.Producer(channel)
    for headers in kinds:
        producer.publish([], routing_key=QUEUE, headers=headers, serializer="json")
    return [channel.basic_get(QUEUE) for _ in kinds]


def _copies(channel: Any) -> tuple[int, int]:
    """Return how many messages of the queue have a copy, and how many of these are in the index.

    Other runs use the same Redis database at the same time.
    """
    stored = channel.client.hgetall(channel.unacked_key)
    own = [tag for tag, copy in stored.items() if json.loads(copy)[2] == QUEUE]
    index = channel.unacked_index_key
    return len(own), sum(channel.client.zscore(index, tag) is not None for tag in own)


def test_only_other_messages_have_a_copy(channel: Any) -> None:
    durable, plain = _read(channel, DURABLE, PLAIN)
    assert _copies(channel) == (1, 1)
    channel.basic_ack(plain.delivery_tag)
    channel.basic_ack(durable.delivery_tag)
    assert _copies(channel) == (0, 0)
    assert channel._size(QUEUE) == 0


def test_an_unacknowledged_message_counts_for_the_prefetch_count(channel: Any) -> None:
    channel.basic_qos(0, 1, False)
    (durable,) = _read(channel, DURABLE)
    assert not channel.qos.can_consume()
    channel.basic_ack(durable.delivery_tag)
    assert channel.qos.can_consume()


@pytest.mark.parametrize("kind", [DURABLE, PLAIN], ids=["durable", "plain"])
def test_a_rejected_message_is_back_in_its_queue(channel: Any, kind: dict[str, str]) -> None:
    (message,) = _read(channel, kind)
    channel.basic_reject(message.delivery_tag, requeue=True)
    assert (channel._size(QUEUE), _copies(channel)) == (1, (0, 0))
    again = channel.basic_get(QUEUE)
    assert (again.headers["id"], again.headers["redelivered"]) == (kind["id"], True)


def test_a_worker_that_stops_puts_both_kinds_back(channel: Any) -> None:
    _read(channel, DURABLE, PLAIN, DURABLE)
    channel.qos.restore_unacked()
    assert (channel._size(QUEUE), _copies(channel)) == (3, (0, 0))
    found = {channel.basic_get(QUEUE).headers["id"] for _ in range(3)}
    assert found == {DURABLE["id"], PLAIN["id"]}


@pytest.mark.parametrize(
    "headers",
    [
        None,
        {},
        [],
        PLAIN,
        {"id": DURABLE["id"]},
        {HEADER: DURABLE["id"]},
        {**PLAIN, HEADER: DURABLE["id"]},
        {"id": "x", HEADER: "x"},
        {"id": 1, HEADER: 1},
    ],
)
def test_a_message_that_only_resembles_one_of_ours_keeps_its_copy(headers: Any) -> None:
    assert not belongs_to_row(headers)


def test_a_killed_worker_loses_no_task(cluster: Cluster) -> None:
    """Two processes and prefetched messages: those that the killed worker had read and not started
    are nowhere but in the rows.
    """
    purge(QUEUE)
    tasks = [bodies.hold_the_interpreter.schedule(0.2) for _ in range(30)]
    scheduler, worker = cluster.scheduler(), cluster.worker(slots=2)
    cluster.ready()
    until(lambda: Task.objects.filter(status="SUCCESS").exists(), within=30)
    with current_app.connection_for_read() as connection:
        assert _copies(connection.default_channel) == (0, 0)
    worker.kill()
    cluster.worker(slots=2)
    for task in tasks:
        assert ended(task).status == "SUCCESS"
    assert scheduler.alive()
