"""Job: notice that the database's clock was set, and correct what waits for a time that is far away
because the clock was set back.

A clock that is set forward needs no correction: everything is due early, and schedules treat the
fire times that were skipped as missed. When it is set back, these instants lie in the future:

* the watermarks of schedules: they are set to now (``engine/recurring/clock_steps.py``);
* the end of the waits of tasks, such as back-offs: they are moved with the clock
  (``engine/transitions/clock_steps.py``);
* the times at which messages are published again: they are shortened to REPUBLISH_AFTER;
* the pauses of endpoints: the next request probes them.

Nothing else has to be corrected. Runs and nodes are judged without a clock, the leader's lease that
expires too late counts as expired, and buckets of rate limits count from the present.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import datetime

from django_durable_tasks.conf import settings
from django_durable_tasks.engine.cluster import nodes
from django_durable_tasks.engine.cluster.nodes import HeartbeatMonitor
from django_durable_tasks.engine.db.clock import database_now
from django_durable_tasks.engine.db.clock_steps import ClockStep, ClockStepDetector
from django_durable_tasks.engine.db.connections import dedicated_connection
from django_durable_tasks.engine.recurring import clock_steps as schedules
from django_durable_tasks.engine.tasks import clock_steps as tasks

logger = logging.getLogger("django_durable_tasks.scheduler")
EVERY = 1.0
"""Seconds between two readings of the clock."""
_GAP, _CHECK_EVERY = 30.0, 60.0
"""Seconds. The clock may have been set forward and back between two readings. So rows that were
written later than now are searched: after a pause of _GAP, in which another scheduler may have led,
and every _CHECK_EVERY seconds.
"""
_REPEAT_FOR = 120.0
"""Seconds after a step in which corrections are repeated. Processes estimate the database's clock
from a reading that is up to a minute old, and transactions that were open are committed later.
"""


class CorrectClockSteps:
    """Reads the clock at each call, and corrects after it was set back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._detector = clock, ClockStepDetector()
        self._called = self._checked = self._until = float("-inf")

    def __call__(self, _: datetime, monitor: HeartbeatMonitor) -> int:
        at, tolerance = self._clock(), settings().SKEW_MAX
        with dedicated_connection():
            step = self._detector.read() or 0.0
            if at - self._called > _GAP or at - self._checked > _CHECK_EVERY:
                self._checked = at
                if abs(step) <= tolerance:
                    now = database_now()
                    step = -max(nodes.seen_later(now), schedules.processed_later_by(now))
            self._called = at
            if abs(step) > tolerance:
                self._noticed(step, at, monitor)
            if at >= self._until:
                return 0
            now, limit = database_now(), settings().BATCH_SIZE
            corrected = tasks.correct(now, tolerance, limit)
            return corrected + schedules.set_back(now, tolerance, limit)

    def _noticed(self, step: float, at: float, monitor: HeartbeatMonitor) -> None:
        monitor.clock_step = ClockStep(step, time.monotonic())
        if step > 0:
            logger.error(
                "The database's clock was set forward by %.1f s. Tasks and schedules are due"
                " earlier by that time.",
                step,
            )
            return
        self._until = at + _REPEAT_FOR
        logger.error(
            "The database's clock was set back by %.1f s. Watermarks of schedules and waits of"
            " tasks that lie in the future are corrected.",
            -step,
        )
