"""Job: recompute next fire times that another version of the time zone database computed."""

from __future__ import annotations

import time
from datetime import datetime

from django_durable_tasks.conf import settings
from django_durable_tasks.engine.cluster.nodes import HeartbeatMonitor
from django_durable_tasks.engine.db.connections import dedicated_connection
from django_durable_tasks.engine.recurring import tzdata

_RETRY_AFTER = 10.0
"""Seconds after which rows that were locked or failed are tried again."""


class RecomputeFireTimes:
    """Recompute until no row is left, once per process: its own zone tables never change."""

    def __init__(self) -> None:
        self._done, self._again_at = False, 0.0

    def __call__(self, now: datetime, monitor: HeartbeatMonitor) -> int:
        if self._done or time.monotonic() < self._again_at:
            return 0
        with dedicated_connection():
            number = tzdata.recompute(settings().BATCH_SIZE)
            self._done = not number and not tzdata.computed_elsewhere().exists()
        if not number:
            self._again_at = time.monotonic() + _RETRY_AFTER
        return number
