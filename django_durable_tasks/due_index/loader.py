"""Loads the due index in Redis from the database, on the leader, in bounded steps.

After each step a mark in Redis contains the instant up to which the index is complete.
"""

from __future__ import annotations

import time
from datetime import datetime, timedelta

from django_durable_tasks.due_index import redis_client
from django_durable_tasks.due_index.redis import HORIZON, RedisDueIndex, from_ms, instant_ms
from django_durable_tasks.due_index.types import DueEntry
from django_durable_tasks.engine.limits.next_due import heads
from django_durable_tasks.engine.tasks import claim

_PAGE = 2_000
_WINDOW = timedelta(seconds=15)
_MOST = 100_000
_AT_ONCE = 1.0
_PLAUSIBLE = timedelta(hours=1)
"""A mark further ahead of the horizon was not written by a leader of this installation, so it is
not trusted.
"""


def fill(now: datetime) -> int:
    """Add the tasks that are due within HORIZON of ``now`` to the set; return their
    number.

    Continues at the mark, for about a second, and stops at about 100,000 entries. Then the mark is
    set to the instant up to which the set is complete. Raises Error if the database is unavailable.
    """
    shared = redis_client.connection()
    if shared is None or not shared.open():
        return 0
    index, end, read = RedisDueIndex(shared, probe=False), time.monotonic() + _AT_ONCE, 0
    index.next_at()
    if not shared.open():
        return 0
    filled = index.filled_until
    if filled is not None and filled > now + HORIZON + _PLAUSIBLE:
        index.forget_mark()
        filled = None
    reached = _whole(now) if filled is None or filled < now else filled
    horizon = from_ms(instant_ms(now + HORIZON))
    queues = [queue for queue, head in heads().items() if head <= horizon]
    while reached < horizon and time.monotonic() < end and len(index) < _MOST:
        until = min(reached + _WINDOW, horizon)
        steps = [_fill_queue(index, queue, reached, until) for queue in queues]
        read += sum(number for number, _ in steps)
        reached = min((stopped for _, stopped in steps), default=until)
        if not index.filled(reached):
            break
    return read


def _fill_queue(
    index: RedisDueIndex, queue: str, after: datetime, until: datetime
) -> tuple[int, datetime]:
    """Return how many tasks were read, and the instant before which all tasks were read."""
    read, past = 0, None
    while True:
        rows = [DueEntry(*row) for row in claim.coming(queue, after, until, _PAGE, past=past)]
        index.add(rows)
        read += len(rows)
        if len(rows) < _PAGE:
            return read, until
        after, past = rows[-1].at, rows[-1].task_id
        if not 0 < len(index) < _MOST:  # the set is full, or Redis does not respond
            return read, _whole(after)


def _whole(at: datetime) -> datetime:
    """Truncate an instant to milliseconds, the precision of the mark."""
    return at.replace(microsecond=at.microsecond // 1000 * 1000)
