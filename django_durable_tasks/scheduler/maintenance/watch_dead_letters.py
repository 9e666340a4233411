"""Job: warn when more than DEAD_LETTERS_MAX dead letters are open."""

from __future__ import annotations

import logging
from datetime import datetime

from django_durable_tasks.conf import settings
from django_durable_tasks.engine.cluster.nodes import HeartbeatMonitor
from django_durable_tasks.engine.db.connections import dedicated_connection
from django_durable_tasks.engine.tasks import dead_letters

logger = logging.getLogger("django_durable_tasks.scheduler")


class WatchDeadLetters:
    """Warn each time the number of open dead letters grows while it is above DEAD_LETTERS_MAX."""

    def __init__(self) -> None:
        self._warned_at = 0

    def __call__(self, now: datetime, monitor: HeartbeatMonitor) -> int:
        with dedicated_connection():
            number = dead_letters.open_count()
        if number > max(settings().DEAD_LETTERS_MAX, self._warned_at):
            logger.warning(
                "%d dead letters are open. Run `manage.py durable list dead-letters` to list them.",
                number,
            )
            dead_letters.send_growth_signal(number)
        self._warned_at = number
        return 0
