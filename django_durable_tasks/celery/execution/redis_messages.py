"""Stops Kombu from storing the messages of durable tasks as unacknowledged in Redis.

Kombu copies each message that a worker reads into a hash and a sorted set, and removes both entries
when it is acknowledged. For a durable task this protects nothing: its row is QUEUED until the run
starts, and is published again after REPUBLISH_AFTER. Other messages keep their copies.
"""

from __future__ import annotations

from typing import Any

from celery import bootsteps

_TRANSPORT = "kombu.transport.redis"


class RowMessages(bootsteps.StartStopStep):
    """A step of the consumer that changes the record of its channel, after each connection."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, parent: Any) -> None:
        """Change the record if the broker is Redis."""
        qos = getattr(parent.task_consumer.channel, "qos", None)
        if type(qos).__module__ == _TRANSPORT:
            # Here, because every command would load the client of Redis, whatever the broker is.
            from django_durable_tasks.celery.execution import redis_records  # noqa: PLC0415

            redis_records.keep_in_memory(qos)


def add_to(app: Any) -> None:
    """Add the step to the consumers of this application."""
    app.steps["consumer"].add(RowMessages)
