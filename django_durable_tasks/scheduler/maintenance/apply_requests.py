"""Job: apply requests to RUNNING tasks that the requesting process did not apply after COMMIT."""

from __future__ import annotations

from datetime import datetime

from django_durable_tasks.conf import settings
from django_durable_tasks.engine.cluster.nodes import HeartbeatMonitor
from django_durable_tasks.engine.db.connections import dedicated_connection
from django_durable_tasks.engine.tasks import requests


def apply_requests(now: datetime, monitor: HeartbeatMonitor) -> int:
    """Apply one batch of left requests."""
    with dedicated_connection():
        return requests.apply_left(settings().BATCH_SIZE)
