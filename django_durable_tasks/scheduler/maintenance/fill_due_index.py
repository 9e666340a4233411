"""Job: load tasks that are due within the next five minutes into the due index in Redis."""

from __future__ import annotations

from datetime import datetime

from django_durable_tasks.due_index import loader, redis_client
from django_durable_tasks.engine.cluster.nodes import HeartbeatMonitor
from django_durable_tasks.engine.db.connections import dedicated_connection


def fill_due_index(now: datetime, monitor: HeartbeatMonitor) -> int:
    """Fill the due index; does nothing without REDIS_URL. Returns 0: no task has changed."""
    if redis_client.url() is not None:
        with dedicated_connection():
            loader.fill(now)
    return 0
