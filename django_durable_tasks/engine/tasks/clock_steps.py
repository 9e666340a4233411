"""Corrects deadlines of tasks, messages and endpoints after the database's clock was set back."""

from __future__ import annotations

from datetime import datetime

from django_durable_tasks import conf
from django_durable_tasks.engine import transitions
from django_durable_tasks.engine.tasks import batch_messages, endpoints


def correct(now: datetime, tolerance: float, limit: int) -> int:
    """Correct what was written more than ``tolerance`` seconds later than ``now``; return how many
    rows changed, at most ``limit`` of a kind. Must be repeated until it returns 0.
    """
    longest = conf.settings().REPUBLISH_AFTER
    return (
        transitions.move_waits(now, tolerance, limit)
        + transitions.shorten_republish_waits(longest, limit)
        + batch_messages.shorten_waits(longest)
        + endpoints.end_pauses_after(tolerance)
    )
