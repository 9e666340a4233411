"""Job: publish tasks again that were published and not started within REPUBLISH_AFTER."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from django_durable_tasks.celery.publishing import broker_outage, dispatcher
from django_durable_tasks.engine.cluster.nodes import HeartbeatMonitor
from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.db.connections import dedicated_connection
from django_durable_tasks.engine.tasks import claim
from django_durable_tasks.ports import TaskMessage


def republish(now: datetime, monitor: HeartbeatMonitor) -> int:
    """Republish overdue tasks; none while the broker is unavailable, none of rejected queues."""
    limit = broker_outage.capacity()
    if not limit:
        return 0
    with dedicated_connection():
        messages = republish_overdue(now, limit, broker_outage.backoff.waiting())
    dispatcher.publish(messages)
    return len(messages)


def republish_overdue(
    now: datetime, limit: int, except_queues: Collection[str] = ()
) -> list[TaskMessage]:
    """Return messages for QUEUED tasks that should have started before ``now``."""
    overdue = tables.tasks().republish_due(now)
    if except_queues:
        overdue = overdue.exclude(queue__in=except_queues)
    return claim.republish(overdue, now, limit)
