"""Fills the due index in Redis from the database: the leader's part, in bounded steps that each leave a true mark."""

from __future__ import annotations

import time
from datetime import datetime, timedelta

from django_durable_tasks import conf
from django_durable_tasks.lifecycle import claims
from django_durable_tasks.lifecycle.heads import heads
from django_durable_tasks.nearby import redis_door
from django_durable_tasks.nearby.due_index import Due
from django_durable_tasks.nearby.redis_index import RedisDueIndex

_PAGE = 2_000
_WINDOW = timedelta(seconds=15)
_MOST = 100_000
_PAGES = 20
_AT_ONCE = 1.0


def fill(now: datetime) -> int:
    """Read rows that will be due within DUE_HORIZON of ``now`` into the set; return how many were read.

    Goes on where the mark stands, for a second at most, and stops at 100,000 entries. Of rows that share an instant at
    the end of a page some may be left out: the poll finds them. Raises Error for a database that is away.
    """
    door = redis_door.door()
    if door is None or not door.open():
        return 0
    index, end, read = RedisDueIndex(door, probe=False), time.monotonic() + _AT_ONCE, 0
    index.next_at()
    if not door.open():
        return 0
    filled = index.filled_until
    reached = now if filled is None or filled < now else filled
    horizon = now + timedelta(seconds=conf.settings().DUE_HORIZON)
    queues = [queue for queue, head in heads().items() if head <= horizon]
    while reached < horizon and time.monotonic() < end and len(index) < _MOST:
        until = min(reached + _WINDOW, horizon)
        for queue in queues:
            read += _fill_queue(index, queue, reached, until)
        reached = until
        if not index.filled(reached):
            break
    return read


def _fill_queue(index: RedisDueIndex, queue: str, after: datetime, until: datetime) -> int:
    read = 0
    for _ in range(_PAGES):
        rows = [Due(*row) for row in claims.coming(queue, after, until, _PAGE)]
        index.add(rows)
        read += len(rows)
        if len(rows) < _PAGE:
            break
        after = rows[-1].at
    return read
