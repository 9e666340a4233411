"""Rows that wait long become more urgent, so that a stream of urgent rows starves nobody; off unless AGEING is set."""

from __future__ import annotations

from datetime import datetime, timedelta

from django_durable_tasks.lifecycle import transitions
from django_durable_tasks.lifecycle.heads import heads

_HIGHEST = 9


def age(now: datetime, wait: float, limit: int) -> int:
    """Raise by one the priority of rows that are due, or parked, since ``wait`` seconds; return how many rose.

    To be called once in that time. At most ``limit`` rows of each priority of a queue rise, the oldest, which are those
    that starve; the rest rises the next time. How often a row rose stands in ``raised``.
    """
    since, risen = now - timedelta(seconds=wait), 0
    late = [queue for queue, head in heads().items() if head <= since]
    # From above, so that a row that rises now is not met again on its next step.
    for priority in range(_HIGHEST - 1, -1, -1):
        level = transitions.tasks().pending().filter(priority=priority)
        for queue in late:
            risen += transitions.age(level.filter(queue=queue, alarm_at__lte=since).order_by("alarm_at"), limit)
        parked = level.filter(held_for__isnull=False, run_at__lte=since).order_by("run_at")
        risen += transitions.age(parked, limit)
    return risen
