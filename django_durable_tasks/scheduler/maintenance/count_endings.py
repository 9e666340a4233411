"""Job: count endings into their workflow runs, and end the runs that are complete."""

from __future__ import annotations

import time
from datetime import datetime

from django_durable_tasks.conf import settings
from django_durable_tasks.engine.cluster.nodes import HeartbeatMonitor
from django_durable_tasks.engine.db.connections import dedicated_connection
from django_durable_tasks.engine.workflows import runs
from django_durable_tasks.scheduler.maintenance.job import SLICE


def count_endings(now: datetime, monitor: HeartbeatMonitor) -> int:
    """Count batches of ending events for one slice."""
    end, counted = time.monotonic() + SLICE, 0
    while time.monotonic() < end:
        with dedicated_connection():
            number = runs.count_endings(4 * settings().BATCH_SIZE)
        counted += number
        if not number:
            break
    return counted
