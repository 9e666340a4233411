"""Job: create the partitions of the ledger for the next week, and drop those whose retention is
over. It does nothing unless LEDGER_PARTITION_DAYS is set.
"""

from __future__ import annotations

from datetime import datetime

from django_durable_tasks.engine.cluster.nodes import HeartbeatMonitor
from django_durable_tasks.engine.db.connections import dedicated_connection
from django_durable_tasks.engine.recurring import ledger_partitions


def partition_ledger(now: datetime, monitor: HeartbeatMonitor) -> int:
    """Create and drop partitions; return how many."""
    if not ledger_partitions.wanted_days():
        return 0
    with dedicated_connection():
        return ledger_partitions.maintain(now)
