"""Job: make the oldest waiting task of each free overlap key due."""

from __future__ import annotations

from datetime import datetime

from django_durable_tasks.conf import settings
from django_durable_tasks.engine.cluster.nodes import HeartbeatMonitor
from django_durable_tasks.engine.db.connections import dedicated_connection
from django_durable_tasks.engine.limits import overlap


def release_overlaps(now: datetime, monitor: HeartbeatMonitor) -> int:
    """Release one batch of overlap keys."""
    with dedicated_connection():
        return overlap.release(settings().BATCH_SIZE)
