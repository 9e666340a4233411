"""Leaves the prefetch count of a worker with the pool ``threads`` as it is after a lost connection.

Celery reduces it by the running tasks and raises it again with each acknowledgement. Threads
acknowledge messages themselves, so one of them would then wait for RabbitMQ's reply on the
connection that the event loop reads. Each can take a part of the other's frames, and the worker
stops consuming for ever while its heartbeats continue (Celery 5.7).
"""

from __future__ import annotations

from typing import Any

from celery import bootsteps
from celery.concurrency.thread import TaskPool


class KeepPrefetchCount(bootsteps.StartStopStep):
    """A step of the consumer that disables ``worker_enable_prefetch_count_reduction``."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def include_if(self, parent: Any) -> bool:
        """Return whether the tasks run in threads of this process."""
        return isinstance(parent.pool, TaskPool)

    def start(self, parent: Any) -> None:
        """Disable it before a connection can be lost."""
        parent.app.conf.worker_enable_prefetch_count_reduction = False


def add_to(app: Any) -> None:
    """Add the step to the consumers of this application."""
    app.steps["consumer"].add(KeepPrefetchCount)
