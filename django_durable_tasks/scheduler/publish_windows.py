"""The windows of a scheduler: how many tasks of each queue may be published, by its last poll.

The dispatch thread reads the queues and publishes claimed tasks. The thread that fires schedules
publishes within the same windows.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta

from django_durable_tasks.celery.publishing import broker_outage
from django_durable_tasks.engine.limits import backpressure
from django_durable_tasks.engine.limits.backpressure import QueueSnapshot
from django_durable_tasks.engine.limits.waitlist import URGENT
from django_durable_tasks.rules.tasks.demands import QueueDemand

_FEW_QUEUED, _PAUSE_PER_QUEUED, _LONGEST_PAUSE = 5_000, 3e-6, 1.0
"""Published tasks that are counted at every poll. If there are more, the next count follows after
this number of seconds per task, about ten times the duration of the count.
"""
_USABLE = 2.0
"""Seconds after a poll for which its windows may be used without another poll."""
_BEHIND = timedelta(seconds=1)
"""If tasks of a queue have been due for longer, new ones do not overtake them."""


class PublishWindows:
    """How many more tasks of each queue a scheduler may publish."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent, self._sent_uncounted = Counter[str](), Counter[str]()
        self._without_task: dict[str, int] = {}
        self._snapshot = QueueSnapshot()
        self._read_at = self._count_at = float("-inf")
        self._behind: frozenset[str] = frozenset()

    def refresh(self, heads: Mapping[str, datetime], now: datetime, *, coming: bool) -> None:
        """Read the queues if tasks are due soon (``coming``) or were published since the last time.
        ``heads``: the first due time of each queue.
        """
        began = time.monotonic()
        if coming or self._sent:
            if began >= self._count_at:
                self._snapshot = backpressure.snapshot()
                with self._lock:
                    self._sent = Counter()
                self._count_at = time.monotonic() + _pause_after(self._snapshot)
            else:
                self._snapshot = self._snapshot.with_paused(backpressure.paused_queues())
        self._behind = frozenset([queue for queue, at in heads.items() if at < now - _BEHIND])
        self._read_at = began

    def record_sent(self, queue: str, number: int) -> None:
        """Record that ``number`` tasks of this queue were published; safe from other threads."""
        with self._lock:
            self._sent[queue] += number
            self._sent_uncounted[queue] += number

    def to_count(self) -> list[str]:
        """Return the queues whose messages in the broker should be counted: those with messages
        without a task at the last count, and those to which a window of messages was published
        since then, except queues with messages that belong to no task. Safe from other threads.
        """
        with self._lock:
            # Messages of others would count as well.
            for queue in self._snapshot.fleet.mixed & self._without_task.keys():
                del self._without_task[queue]
            sent = self._sent_uncounted.copy()
        full = {queue for queue, number in sent.items() if number >= self._snapshot.window(queue)}
        return sorted((full | self._without_task.keys()) - self._snapshot.fleet.mixed)

    def record_without_task(self, queue: str, number: int) -> None:
        """Record how many messages of a queue belong to no QUEUED task; safe from other threads.

        They use its window, because the next tasks wait behind them.
        """
        with self._lock:
            self._sent_uncounted.pop(queue, None)
            if number:
                self._without_task[queue] = number
            else:
                self._without_task.pop(queue, None)

    def capacity(self, queue: str) -> int:
        """Return how many more tasks of this queue may be published now."""
        capacity = self._snapshot.capacity(queue) - self._used(queue)
        return max(0, min(capacity, broker_outage.capacity_of(queue)))

    def _used(self, queue: str) -> int:
        """Return how much of a window is used beside the QUEUED tasks of the last poll."""
        return self._sent.get(queue, 0) + self._without_task.get(queue, 0)

    def demands(self, due: Mapping[str, int]) -> list[QueueDemand]:
        """Return how many tasks of these queues may be claimed, for the queues that have capacity.
        ``due``: for each queue the priorities for which tasks are due (``QueueDemand.levels``).
        """
        found = [self._demand(queue, levels) for queue, levels in due.items()]
        return [one for one in found if one.limit]

    def _demand(self, queue: str, levels: int) -> QueueDemand:
        """Return the demand of a queue. If its window is full, only urgent tasks are demanded,
        within a small reserve.
        """
        capacity = self.capacity(queue)
        if capacity:
            return QueueDemand(queue, capacity, levels=levels)
        urgent = self._snapshot.urgent_capacity(queue) - self._used(queue)
        return QueueDemand(queue, max(0, urgent), URGENT, levels)

    def capacity_at_commit(self, queue: str) -> int:
        """Return how many new tasks of this queue may be published without a claim; safe from
        other threads.

        0 if the last poll is too old, or if tasks of the queue have been due for a while: a claim
        publishes those first.
        """
        if time.monotonic() - self._read_at > _USABLE or queue in self._behind:
            return 0
        return self.capacity(queue) if broker_outage.breaker.closed() else 0


def _pause_after(snapshot: QueueSnapshot) -> float:
    """Return the seconds until the published tasks are counted again."""
    queued = snapshot.queued.total()
    return min(_PAUSE_PER_QUEUED * queued, _LONGEST_PAUSE) if queued > _FEW_QUEUED else 0.0
