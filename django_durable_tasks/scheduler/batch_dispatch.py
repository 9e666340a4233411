"""Publishes batch messages for due tasks that workers start in batches."""

from __future__ import annotations

from datetime import datetime

from django_durable_tasks.celery.publishing import batch_publisher
from django_durable_tasks.engine.db.connections import dedicated_connection
from django_durable_tasks.engine.limits import backpressure
from django_durable_tasks.engine.tasks import batch_messages
from django_durable_tasks.engine.tasks.batch_messages import BatchHead


class BatchDispatch:
    """The queues and task names with tasks that wait for a batch, as of the last poll."""

    def __init__(self) -> None:
        self._heads: list[BatchHead] = []

    def read(self, now: datetime) -> None:
        """Read them, on the connection of the caller."""
        self._heads = batch_messages.heads(now)

    def publish(self) -> int:
        """Publish a message for those that are due and have none outstanding; return how many.

        A worker that finds more due tasks than it starts publishes the next message itself.
        """
        due = {
            (one.queue, one.name): one.priority for one in self._heads if one.priority is not None
        }
        if not due:
            return 0
        with dedicated_connection():
            paused = backpressure.paused_queues()
        return batch_publisher.publish(
            {pair: priority for pair, priority in due.items() if pair[0] not in paused}
        )

    def upcoming(self, now: datetime) -> list[datetime]:
        """Return when the first tasks become due that were not due at the last poll."""
        return [one.due_at for one in self._heads if one.due_at > now]
