"""Job: publish all QUEUED tasks again after a broker outage, because it may have lost messages."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from django_durable_tasks.celery.publishing import broker_outage, dispatcher
from django_durable_tasks.conf import settings
from django_durable_tasks.engine.cluster.nodes import HeartbeatMonitor
from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.db.connections import dedicated_connection
from django_durable_tasks.engine.tasks import claim
from django_durable_tasks.ports import TaskMessage

_NONE_SEEN = -1


class RepublishAfterOutage:
    """Publish the tasks that were QUEUED when the broker responded again, one batch per run.

    Messages that the broker still has are duplicated. Only one message of an epoch can start the
    task, so duplicates are ignored. Between batches, due tasks are dispatched.
    """

    def __init__(self) -> None:
        self._outages = broker_outage.breaker.outages
        self._batches: Iterator[list[TaskMessage]] = iter(())

    def __call__(self, now: datetime, monitor: HeartbeatMonitor) -> int:
        if not broker_outage.breaker.closed():
            return 0
        if self._outages != broker_outage.breaker.outages:
            self._outages = broker_outage.breaker.outages
            queued = tables.tasks().filter(updated_at__lte=now)
            self._batches = claim.republish_all(queued, settings().BATCH_SIZE)
        try:
            with dedicated_connection():
                messages = next(self._batches, [])
        except Exception:
            self._outages = _NONE_SEEN  # an exception ends the iterator: start again from the first
            raise
        dispatcher.publish(messages)
        return len(messages)
