"""Publishes batch messages for due tasks that workers start in batches.

A worker that starts fewer tasks than it may ends its message, because none is left. Tasks that
become due after that need the next message. So the dispatch loop looks for them between its polls:
when the first task of a name becomes due, and LOOK_PAUSE after it published a message.
"""

from __future__ import annotations

import math
import time
from datetime import datetime

from django_durable_tasks.celery.publishing import batch_publisher
from django_durable_tasks.engine.db.connections import dedicated_connection
from django_durable_tasks.engine.limits import backpressure, config
from django_durable_tasks.engine.tasks import batch_messages
from django_durable_tasks.engine.tasks.batch_messages import BatchHead

LOOK_PAUSE, _LONGEST_PAUSE = 0.02, 0.1
"""Seconds after which due tasks are looked for again: twice as long after each look that published
nothing, because a message is outstanding. After the longest pause the polls of the loop suffice.
"""


class BatchDispatch:
    """The queues and task names with tasks that wait for a batch, as of the last look.

    ``look_at``: the instant of the monotonic clock at which to look again.
    """

    def __init__(self) -> None:
        self._heads: list[BatchHead] = []
        self._pause, self.look_at = LOOK_PAUSE, math.inf

    def read(self, now: datetime) -> None:
        """Read them, on the connection of the caller."""
        self._heads = batch_messages.heads(now)

    def publish(self) -> int:
        """Publish a message for those that are due and have none outstanding; return how many.

        A worker that starts as many tasks as it may publishes the next message itself.
        """
        due = {
            (one.queue, one.name): one.priority for one in self._heads if one.priority is not None
        }
        self.look_at = math.inf
        sent = self._publish(due) if due else 0
        self._pause = LOOK_PAUSE if sent or not due else 2 * self._pause
        if due and self._pause <= _LONGEST_PAUSE:
            self.look_at = time.monotonic() + self._pause
        return sent

    def _publish(self, due: dict[tuple[str, str], int]) -> int:
        with dedicated_connection():
            paused, limit_config = backpressure.paused_queues(), config.limits_in_force()
        return batch_publisher.publish(
            {
                (queue, name): priority
                for (queue, name), priority in due.items()
                if queue not in paused and not limit_config.lacks_worker(name, queue)
            }
        )

    def must_look(self, now: datetime) -> bool:
        """Return whether to look now: a task has become due since the last look, or ``look_at`` has
        passed.
        """
        return time.monotonic() >= self.look_at or any(
            one.priority is None and one.due_at <= now for one in self._heads
        )

    def look(self, now: datetime) -> int:
        """Read and publish. After an error the next poll of the loop does."""
        self._heads, self.look_at = [], math.inf
        with dedicated_connection():
            self.read(now)
        return self.publish()

    def upcoming(self, now: datetime) -> list[datetime]:
        """Return when the first tasks become due that were not due at the last look."""
        return [one.due_at for one in self._heads if one.due_at > now]
