"""Raises the priority of tasks that have waited for PRIORITY_AGING seconds, so that urgent tasks do
not starve them.

Called by the maintenance job ``age_priorities``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from django_durable_tasks import process_state
from django_durable_tasks.engine import transitions
from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.limits import waitlist
from django_durable_tasks.engine.limits.next_due import heads

_HIGHEST = 9
_SCOPES = 500
"""At most this many scopes are processed per call; the next call continues after them."""


class AgingCursor(waitlist.ScopeCursor):
    """The scopes that the next run raises."""


def age(now: datetime, wait: float, limit: int) -> int:
    """Execute all ``steps``; return how many tasks were raised."""
    return sum(steps(now, wait, limit))


def steps(now: datetime, wait: float, limit: int) -> Iterator[int]:
    """Raise by one the priority of tasks that have been due or waiting for a limit for ``wait``
    seconds. Yield how many were raised after each transaction.

    Start it once per ``wait`` seconds. Each step raises at most ``limit`` due tasks of one priority
    of a queue, the oldest first, or at most ``limit`` waiting tasks of one priority. The next pass
    raises the others. ``priority_boost`` counts the raises. The number of steps grows with the
    number of queues with late tasks, so the caller may pause between two steps.
    """
    since = now - timedelta(seconds=wait)
    late = [queue for queue, head in heads().items() if head <= since]
    scopes = process_state.of(AgingCursor).next(_SCOPES)
    # Start with the highest priority, so that a task that was just raised is not raised again.
    for priority in range(_HIGHEST - 1, -1, -1):
        level = tables.tasks().published_alone().filter(priority=priority)
        for queue in late:
            yield transitions.age(
                level.filter(queue=queue, due_at__lte=since).order_by("due_at"), limit
            )
        if scopes:
            yield _age_waiting(scopes, priority, since, limit)


def _age_waiting(scopes: Sequence[str], priority: int, since: datetime, limit: int) -> int:
    """Raise the oldest waiting tasks of each scope that were due before ``since``. Reads at most
    ``limit``.
    """
    of_priority = tables.tasks().filter(priority=priority)
    waiting = {
        scope: of_priority.waiting_for_scope(scope).order_by("ready_at", "id") for scope in scopes
    }
    each = -(-limit // len(scopes))
    ids = [
        task_id
        for task_id, ready_at in waitlist.first(waiting, lambda _: each, ("pk", "ready_at"))
        if ready_at is None or ready_at <= since
    ]
    return transitions.age(tables.tasks().filter(pk__in=ids), len(ids)) if ids else 0
