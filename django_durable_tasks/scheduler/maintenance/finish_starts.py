"""Job: finish starts of large workflows whose starting process died."""

from __future__ import annotations

import time
from datetime import datetime

from django_durable_tasks.conf import settings
from django_durable_tasks.engine.cluster.nodes import HeartbeatMonitor
from django_durable_tasks.engine.db.connections import dedicated_connection
from django_durable_tasks.engine.workflows import start
from django_durable_tasks.scheduler.maintenance.job import SLICE


def finish_starts(now: datetime, monitor: HeartbeatMonitor) -> int:
    """Release the tasks of completely written starts, and delete incomplete, abandoned ones."""
    end, number = time.monotonic() + SLICE, 0
    with dedicated_connection():
        while time.monotonic() < end and (done := start.finish_starts(now, settings().BATCH_SIZE)):
            number += done
    return number
