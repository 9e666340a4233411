"""Claims and publishes due tasks, and reads the messages that were published to the broker of this
run.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection
from datetime import datetime
from typing import Any

from celery import current_app

from django_durable_tasks.celery import publisher
from django_durable_tasks.celery.prepared_messages import BATCH_HEADER, Envelope, parse
from django_durable_tasks.ports import TaskMessage
from django_durable_tasks.states.demand import QueueDemand
from django_durable_tasks.tasks.claim import claim_of


def take_messages(queue: str) -> list[Any]:
    """Remove all messages from the queue and return them in the order of arrival."""
    app, found = current_app._get_current_object(), []
    with app.connection_for_read() as connection, connection.channel() as channel:
        app.amqp.queues[queue](channel).declare()
        while (message := channel.basic_get(queue, no_ack=True)) is not None:
            found.append(message)
    return found


def take_task_messages(queue: str) -> list[Envelope]:
    """Remove all messages from the queue and return their tasks and epochs, in the order of
    arrival. Batch messages are left out, because they name no task.
    """
    found = []
    for message in take_messages(queue):
        if BATCH_HEADER in message.headers:
            continue
        envelope = parse(message.headers["id"])
        assert envelope is not None, f"a foreign message: {message.headers}"
        found.append(envelope)
    return found


def claim_due(
    queue: str,
    now: datetime,
    limit: int,
    node: uuid.UUID,
    shards: Collection[int] | None = None,
    least: int = 0,
) -> list[TaskMessage]:
    """Claim at most ``limit`` due tasks of a queue as dispatch does; return their messages."""
    return claim_of([QueueDemand(queue, limit, least)], now, limit, node, shards).messages


def dispatch(queue: str, now: datetime, limit: int, node: uuid.UUID) -> int:
    """Publish at most ``limit`` due tasks of a queue; return how many the broker accepted."""
    done = publisher.Dispatched()
    publisher.dispatch_of(done, [QueueDemand(queue, limit)], now, limit, node)
    return done.sent.total()
