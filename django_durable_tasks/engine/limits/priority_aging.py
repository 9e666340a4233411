"""Raise the priority of tasks that have waited for PRIORITY_AGING seconds, so that urgent ones do
not starve them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from django_durable_tasks.engine import transitions
from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.limits import waitlist
from django_durable_tasks.engine.limits.next_due import heads

_HIGHEST = 9
_LINES = 500
"""Waitlists per call. The next call continues with the following ones."""
_walk = waitlist.Walk()


def age(now: datetime, wait: float, limit: int) -> int:
    """Raise by one the priority of tasks that have been due or waiting for a limit for ``wait``
    seconds; return how many.

    Called once in that time. Raises at most ``limit`` due tasks of each priority of a queue, the
    oldest first, and at most ``limit`` waiting ones. The next call raises the others.
    ``priority_boost`` counts the steps.
    """
    since, risen = now - timedelta(seconds=wait), 0
    late = [queue for queue, head in heads().items() if head <= since]
    scopes = _walk.next(_LINES)
    # From the highest priority down, so that a task is raised only once per call.
    for priority in range(_HIGHEST - 1, -1, -1):
        level = tables.tasks().pending().filter(priority=priority)
        for queue in late:
            risen += transitions.age(
                level.filter(queue=queue, due_at__lte=since).order_by("due_at"), limit
            )
        if scopes:
            risen += _age_parked(scopes, priority, since, limit)
    return risen


def _age_parked(scopes: Sequence[str], priority: int, since: datetime, limit: int) -> int:
    """Raise the oldest waiting tasks of each scope that were due before ``since``. Reads at most
    ``limit``.
    """
    lined = {
        scope: tables.tasks().parked_for(scope).filter(priority=priority).order_by("id")
        for scope in scopes
    }
    each = -(-limit // len(scopes))
    ids = [
        task_id
        for task_id, run_at in waitlist.first(lined, lambda _: each, ("pk", "run_at"))
        if run_at <= since
    ]
    return transitions.age(tables.tasks().filter(pk__in=ids), len(ids)) if ids else 0
