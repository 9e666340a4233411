"""Job: send one event when an alert begins and one when it ends."""

from __future__ import annotations

from datetime import datetime

from django_durable_tasks.conf import settings
from django_durable_tasks.engine.cluster.nodes import HeartbeatMonitor
from django_durable_tasks.engine.db.connections import dedicated_connection
from django_durable_tasks.engine.notifications import alerts


def watch_alerts(now: datetime, monitor: HeartbeatMonitor) -> int:
    """Check the conditions once; does nothing unless NOTIFICATIONS is on."""
    if settings().NOTIFICATIONS:
        with dedicated_connection():
            alerts.watch(now)
    return 0
