"""Job: create the tasks that deliver due events of notification settings."""

from __future__ import annotations

import time
from datetime import datetime

from django_durable_tasks.conf import settings
from django_durable_tasks.engine.cluster.nodes import HeartbeatMonitor
from django_durable_tasks.engine.db.connections import dedicated_connection
from django_durable_tasks.engine.notifications import deliveries
from django_durable_tasks.scheduler.maintenance.job import SLICE


def deliver_notifications(now: datetime, monitor: HeartbeatMonitor) -> int:
    """Process batches of due events for one slice; does nothing unless NOTIFICATIONS is on."""
    if not settings().NOTIFICATIONS:
        return 0
    end, changed = time.monotonic() + SLICE, 0
    with dedicated_connection():
        while number := deliveries.create_due(now, settings().BATCH_SIZE):
            changed += number
            if time.monotonic() >= end:
                break
    return changed
