"""Records from which queue a message was consumed. The worker's consumer writes it; the gate and
the report of the worker read it.

The exchange and routing key of a message show where it was sent, not where it arrived. Only the
consumer knows the queue. It overwrites what the message contains.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from celery import current_app
from kombu import Message

from django_durable_tasks.celery.publishing.message_id import BATCH_HEADER, HEADER

CONSUMED_FROM = "durable_consumed_from"


class _RecordedQueue:
    """A queue that adds its name to the headers of the messages it delivers."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def consume(self, consumer_tag: str, callback: Callable[[Any], Any], **options: Any) -> Any:
        return self._queue.consume(
            consumer_tag, partial(_deliver, self._queue.name, callback), **options
        )


def _deliver(queue: str, callback: Callable[[Any], Any], message: Any) -> Any:
    # py-amqp's message becomes Kombu's in the callback.
    headers = (
        message.headers
        if isinstance(message, Message)
        else message.properties.get("application_headers")
    )
    if headers and (HEADER in headers or BATCH_HEADER in headers):
        headers[CONSUMED_FROM] = queue
    else:
        mixed.received_foreign(queue)
    return callback(message)


class MixedQueues:
    """The queues from which this worker has consumed messages that belong to no task."""

    _FOR = 3_600.0
    """Seconds. Long enough for a queue whose foreign messages run for a long time."""

    def __init__(self) -> None:
        self._at: dict[str, float] = {}

    def received_foreign(self, queue: str) -> None:
        """Record such a message."""
        self._at[queue] = time.monotonic()

    def recent(self) -> list[str]:
        """Return these queues."""
        since = time.monotonic() - self._FOR
        return [queue for queue, at in list(self._at.items()) if at > since]


mixed = MixedQueues()


def record_queues(app: Any) -> None:
    """Make new consumers of this application record the queue of each message."""
    consumer: Any = app.amqp.Consumer
    if getattr(consumer, "records_queues", False):
        return

    class Consumer(consumer):
        records_queues = True

        def _basic_consume(self, queue: Any, *args: Any, **options: Any) -> Any:
            return super()._basic_consume(_RecordedQueue(queue), *args, **options)

    app.amqp.Consumer = Consumer


def names_of(headers: Any) -> tuple[str, ...]:
    """Return the names of the queue from which this was consumed: its own name, then its aliases.
    Empty if unknown.

    ``headers`` are those of a message, or a request, which has them as attributes.
    """
    queue = (
        headers.get(CONSUMED_FROM)
        if isinstance(headers, dict)
        else getattr(headers, CONSUMED_FROM, None)
    )
    if not isinstance(queue, str):
        return ()
    aliases = current_app.amqp.queues.aliases
    return queue, *(alias for alias, found in list(aliases.items()) if found.name == queue)
