"""Publishes batch messages: at most one is outstanding for each queue and task name.

The record of a message is committed before it is published. If the broker does not accept it, the
record is changed, so that a scheduler publishes the next one when the broker accepts messages.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext

from django.db import Error

from django_durable_tasks.celery.publishing import broker_outage, dispatcher
from django_durable_tasks.engine.db.connections import dedicated_connection
from django_durable_tasks.engine.db.outages import reason_of
from django_durable_tasks.engine.limits import backpressure
from django_durable_tasks.engine.tasks import batch_messages
from django_durable_tasks.engine.tasks.batch_messages import ReservedMessage
from django_durable_tasks.ports import TaskMessage

logger = logging.getLogger("django_durable_tasks.broker")
CARRIER = "django_durable_tasks.run_batch"
"""The name of the Celery task that starts batches."""


def publish(priorities: Mapping[tuple[str, str], int]) -> int:
    """Publish a message for each of these queues and task names that has none outstanding, with
    these priorities; return how many the broker accepted.

    Queues that the broker rejects are left out, and nothing is published while the breaker is open,
    except a single message as a probe.
    """
    return _publish(priorities, dedicated_connection)


def publish_after_commit(priorities: Mapping[tuple[str, str], int]) -> None:
    """Publish as ``publish`` does, after COMMIT, on the connection of the caller. Raises no error
    of the broker or the database, because a scheduler finds the tasks.
    """
    try:
        _publish(priorities, nullcontext)
    except Error as error:
        logger.warning(
            "The batch messages of %s were not published (%s); a scheduler publishes them.",
            ", ".join(sorted({name for _, name in priorities})),
            reason_of(error),
        )


def _publish(
    priorities: Mapping[tuple[str, str], int],
    connection: Callable[[], AbstractContextManager[None]],
) -> int:
    room = broker_outage.capacity()
    pairs = [pair for pair in priorities if broker_outage.capacity_of(pair[0]) > 0][:room]
    if not pairs:
        return 0
    parts: dict[bool, list[tuple[str, str]]] = {}
    for pair in pairs:
        parts.setdefault(not backpressure.is_unserved(pair[0]), []).append(pair)
    with connection():
        reserved = [
            one
            for consumed, part in parts.items()
            for one in batch_messages.reserve(part, consumed=consumed)
        ]
    messages = [_message(one, priorities[one.queue, one.name]) for one in reserved]
    refused = dispatcher.publish_or_refuse(messages) if messages else ()
    for one in refused:
        with connection():
            batch_messages.not_published(
                [(one.message.queue, str(one.message.batch_of))], one.delay
            )
    return len(messages) - len(refused)


def _message(reserved: ReservedMessage, priority: int) -> TaskMessage:
    return TaskMessage(
        task_id=uuid.uuid4(),
        epoch=reserved.number,
        number=reserved.publish_count,
        name=CARRIER,
        queue=reserved.queue,
        priority=priority,
        batch_of=reserved.name,
    )
