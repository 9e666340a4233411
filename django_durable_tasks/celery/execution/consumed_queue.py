"""From which queue a message was consumed: noted by the worker's consumer, read by the gate.

Exchange and routing key of a message say where it was sent, not where it arrived. Only the consumer
knows the queue, and it writes it over whatever the message says.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from celery import current_app
from kombu import Message

from django_durable_tasks.celery.publishing.message_id import HEADER

CONSUMED_FROM = "durable_consumed_from"


class _Noted:
    """A queue whose messages carry its name when they are handed on; everything else is the
    queue's.
    """

    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def consume(self, consumer_tag: str, callback: Callable[[Any], Any], **options: Any) -> Any:
        return self._queue.consume(
            consumer_tag, partial(_hand_on, self._queue.name, callback), **options
        )


def _hand_on(queue: str, callback: Callable[[Any], Any], message: Any) -> Any:
    # py-amqp's message becomes Kombu's in the callback.
    headers = (
        message.headers
        if isinstance(message, Message)
        else message.properties.get("application_headers")
    )
    if headers and HEADER in headers:
        headers[CONSUMED_FROM] = queue
    return callback(message)


def note(app: Any) -> None:
    """Let the consumers that this application makes from now on note the queue of each message."""
    consumer: Any = app.amqp.Consumer
    if getattr(consumer, "notes_queues", False):
        return

    class Consumer(consumer):
        notes_queues = True

        def _basic_consume(self, queue: Any, *args: Any, **options: Any) -> Any:
            return super()._basic_consume(_Noted(queue), *args, **options)

    app.amqp.Consumer = Consumer


def names_of(headers: Any) -> tuple[str, ...]:
    """Return the names of the queue from which this was consumed: its own, then its aliases; empty
    if unknown.

    ``headers``: a message's, or a request, which has them as attributes.
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
