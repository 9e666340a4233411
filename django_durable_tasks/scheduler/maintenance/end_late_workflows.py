"""Job: cancel workflow runs that have passed their deadline."""

from __future__ import annotations

import time
from datetime import datetime

from django_durable_tasks.conf import settings
from django_durable_tasks.engine.cluster.nodes import HeartbeatMonitor
from django_durable_tasks.engine.db.connections import dedicated_connection
from django_durable_tasks.engine.workflows import deadlines
from django_durable_tasks.scheduler.maintenance.job import SLICE


def end_late_workflows(now: datetime, monitor: HeartbeatMonitor) -> int:
    """Request the cancellation of late runs, then cancel open tasks of runs with such a request."""
    end, batch = time.monotonic() + SLICE, settings().BATCH_SIZE
    with dedicated_connection():
        reached = deadlines.cancel_late(now, batch)
        while time.monotonic() < end and (number := deadlines.cancel_called_off(batch)):
            reached += number
    return reached
