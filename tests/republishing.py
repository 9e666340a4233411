"""Compares the tasks of queues with their messages, as the leader does, by a clock of the test."""

from __future__ import annotations

from django_durable_tasks.cluster.nodes import HeartbeatMonitor
from django_durable_tasks.conf import settings
from django_durable_tasks.scheduler.republishing import Comparison


class Leader:
    """A leader whose monotonic clock only ``compare`` advances."""

    def __init__(self, monitor: HeartbeatMonitor | None = None) -> None:
        self.at = 1_000.0
        self.monitor = monitor or HeartbeatMonitor()
        self.comparison = Comparison(self.monitor, lambda: self.at)

    def look(self) -> int:
        """Compare all queues once; return how many tasks were republished."""
        queues = self.comparison.read()
        self.comparison.read_starts(queues)
        return sum(self.comparison.compare(published) for published in queues)

    def compare(self) -> int:
        """Compare all queues until nothing changes any more, each queue at least twice, and then
        advance the clock by REPUBLISH_AFTER.
        """
        number, more = 0, 2
        while more:
            found = self.look()
            number, more = number + found, 2 if found else more - 1
            self.at += min(1.1 * settings().NODE_HEARTBEAT, settings().REPUBLISH_AFTER / 2)
        self.at += settings().REPUBLISH_AFTER
        return number
