"""Job: resolve the dependents of ended tasks that the ending worker did not resolve itself."""

from __future__ import annotations

import time
from datetime import datetime

from django_durable_tasks.celery.publishing import dispatcher
from django_durable_tasks.conf import settings
from django_durable_tasks.engine.cluster.nodes import HeartbeatMonitor
from django_durable_tasks.engine.db.connections import dedicated_connection
from django_durable_tasks.engine.dependencies import resolve
from django_durable_tasks.scheduler.maintenance.job import SLICE


def resolve_dependents(now: datetime, monitor: HeartbeatMonitor) -> int:
    """Resolve batches of ending events for one slice; a cascade advances one level per batch."""
    end, resolved = time.monotonic() + SLICE, 0
    while time.monotonic() < end:
        with dedicated_connection():
            batch = resolve.resolve_endings(settings().BATCH_SIZE)
        dispatcher.publish(batch.messages)
        resolved += batch.events
        if not batch.events:
            break
    return resolved
