"""Rows that wait long become more urgent, so that a stream of urgent rows starves nobody; off unless AGEING is set."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from django_durable_tasks.lifecycle import lines, transitions
from django_durable_tasks.lifecycle.heads import heads

_HIGHEST = 9
_LINES = 500
"""So many lines of parked rows age at once; the next ones age the next time."""
_walk = lines.Walk()


def age(now: datetime, wait: float, limit: int) -> int:
    """Raise by one the priority of rows that are due, or parked, since ``wait`` seconds; return how many rose.

    To be called once in that time. At most ``limit`` rows of each priority of a queue rise, the oldest, which are those
    that starve, and as many of those that are parked; the rest rises the next time. How often stands in ``raised``.
    """
    since, risen = now - timedelta(seconds=wait), 0
    late = [queue for queue, head in heads().items() if head <= since]
    scopes = _walk.next(_LINES)
    # From above, so that a row that rises now is not met again on its next step.
    for priority in range(_HIGHEST - 1, -1, -1):
        level = transitions.tasks().pending().filter(priority=priority)
        for queue in late:
            risen += transitions.age(level.filter(queue=queue, alarm_at__lte=since).order_by("alarm_at"), limit)
        if scopes:
            risen += _age_parked(scopes, priority, since, limit)
    return risen


def _age_parked(scopes: Sequence[str], priority: int, since: datetime, limit: int) -> int:
    """Let those parked rows of a priority rise that wait so long, of the first of each line: no scan looks at all."""
    lined = {scope: transitions.tasks().parked_for(scope).filter(priority=priority).order_by("id") for scope in scopes}
    each = -(-limit // len(scopes))
    ids = [task_id for task_id, run_at in lines.first(lined, lambda _: each, ("pk", "run_at")) if run_at <= since]
    return transitions.age(transitions.tasks().filter(pk__in=ids), len(ids)) if ids else 0
