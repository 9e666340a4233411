"""Job: publish all QUEUED tasks again after a broker outage, because it may have lost messages."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime

from django_durable_tasks.celery.publishing import broker_outage, dispatcher
from django_durable_tasks.conf import settings
from django_durable_tasks.engine.cluster.nodes import HeartbeatMonitor
from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.db.connections import dedicated_connection
from django_durable_tasks.engine.tasks import batch_messages, claim
from django_durable_tasks.ports import TaskMessage

_NONE_SEEN = -1
_RECENT = 60.0
"""Seconds. Outages that were reported longer ago were handled by the previous leader."""
_REPORTS_INTERVAL = 15.0
"""Seconds. The nodes report one outage with their next heartbeats, not at the same time."""


class RepublishAfterOutage:
    """Publish the tasks that were QUEUED when the broker responded again, one batch per run.

    An outage is noticed by this process if it failed to publish, and otherwise by the workers and
    the other schedulers, which report it with their heartbeats.

    Messages that the broker still has are duplicated. Only one message of an epoch can start the
    task, so duplicates are ignored. Between batches, due tasks are dispatched.
    """

    def __init__(self) -> None:
        self._outages = broker_outage.breaker.outages
        self._reported, self._reports_from = float("-inf"), 0.0
        self._batches: Iterator[list[TaskMessage]] = iter(())

    def __call__(self, now: datetime, monitor: HeartbeatMonitor) -> int:
        if not broker_outage.breaker.closed():
            return 0
        if self._outage_ended(monitor):
            queued = tables.tasks().filter(updated_at__lte=now)
            self._batches = claim.republish_all(queued, settings().BATCH_SIZE)
            with dedicated_connection():
                batch_messages.publish_again()
        try:
            with dedicated_connection():
                messages = next(self._batches, [])
        except Exception:
            self._outages = _NONE_SEEN  # an exception ends the iterator: start again from the first
            raise
        dispatcher.publish(messages)
        return len(messages)

    def _outage_ended(self, monitor: HeartbeatMonitor) -> bool:
        own, reported, at = (
            broker_outage.breaker.outages,
            monitor.broker_outage_at,
            time.monotonic(),
        )
        is_new = reported > self._reported and at - reported < _RECENT
        if own == self._outages and not (is_new and at >= self._reports_from):
            return False
        self._outages, self._reported, self._reports_from = own, reported, at + _REPORTS_INTERVAL
        return True
