"""Celery applications with their own queues and routes, for one test, and the messages in their
queues.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from celery import Celery, current_app
from django.conf import settings
from kombu import Connection, Queue

from django_durable_tasks.celery import publisher
from django_durable_tasks.ports import TaskMessage

NAME = "tests.project.bodies.add"


@contextmanager
def application(broker_url: str | None = None, **configuration: Any) -> Iterator[Celery]:
    """Make an application of this configuration current in this thread, and remove its queues
    afterwards.
    """
    before = current_app._get_current_object()
    app = Celery(f"routes-{uuid.uuid4().hex[:8]}", set_as_current=False)
    address = {
        "broker_url": broker_url or settings.CELERY_BROKER_URL,
        "broker_transport_options": settings.CELERY_BROKER_TRANSPORT_OPTIONS,
    }
    app.conf.update(
        {**address, "task_serializer": "json", "accept_content": ["json"], **configuration}
    )
    app.set_current()
    forget()
    try:
        yield app
    finally:
        before.set_current()
        forget()
        _remove(app)


def forget() -> None:
    """Discard connections, the breaker and the list of rejected queues."""
    publisher.close_idle()
    publisher.breaker.succeeded()
    publisher.backoff.forget()


def _remove(app: Celery) -> None:
    """Delete the queues at the broker directly: the application may use a proxy that is cut."""
    for queue in app.amqp.queues.values():
        with (
            Connection(
                settings.CELERY_BROKER_URL,
                transport_options=settings.CELERY_BROKER_TRANSPORT_OPTIONS,
            ) as connection,
            suppress(*connection.channel_errors, OSError),
        ):
            queue(connection.default_channel).delete()


def waiting(app: Celery) -> dict[str, int]:
    """Return how many messages wait in each queue of the application."""
    found = {}
    for queue in app.amqp.queues.values():
        with app.connection_for_write() as connection, connection.channel() as channel:
            bound: Queue = queue(channel)
            found[queue.name] = int(bound.queue_declare(passive=False).message_count)
    return found


def declare(app: Celery) -> None:
    """Declare every queue with its bindings, as workers do."""
    with app.connection_for_write() as connection, connection.channel() as channel:
        for queue in app.amqp.queues.values():
            queue(channel).declare()


def messages(queue: str, number: int = 1, **values: Any) -> list[TaskMessage]:
    """Return messages for tasks of this queue that do not exist in the database."""
    return [
        TaskMessage(
            **{
                "task_id": uuid.uuid4(),
                "epoch": 1,
                "number": 1,
                "name": NAME,
                "queue": queue,
                "priority": 0,
                **values,
            }
        )
        for _ in range(number)
    ]


def increase(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Return the queues whose number of messages increased, with the difference."""
    return {
        queue: number - before[queue] for queue, number in after.items() if number != before[queue]
    }
