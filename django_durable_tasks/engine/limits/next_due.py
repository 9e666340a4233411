"""Reads when the first PENDING task of each queue is due, with index probes.

Called first in every round of dispatch.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any, NamedTuple

from django.db import connections
from django.db.models import Min
from django.utils.dateparse import parse_datetime

from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.db.statements import statement
from django_durable_tasks.models.instants import InstantField

AT_ONCE = 500
"""The number of queues, or scopes, per statement. MySQL and MariaDB end a recursive query after
1,000 steps, MariaDB without an error.
"""
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


class QueueHead(NamedTuple):
    """A queue, when its first PENDING task is due, and the priorities of tasks that are due by the
    time that the caller gave, as bits.
    """

    queue: str
    at: datetime
    levels: int


def heads() -> dict[str, datetime]:
    """Return when the first PENDING task of each queue is due, for the queues that have one."""
    return {head.queue: head.at for head in _read(_LONG_AGO, everything=True)}


def read_heads(until: datetime) -> list[QueueHead]:
    """Return the queues with PENDING tasks that are due by ``until``.

    Probes the index and never scans the tasks. On PostgreSQL it is one statement with one probe for
    each priority that a queue has tasks of; elsewhere one statement for 500 queues.
    """
    return [head for head in _read(until, everything=False) if head.levels]


def _read(until: datetime, *, everything: bool) -> list[QueueHead]:
    connection, sql = connections[tables.database()], statement("heads")
    if sql is None:
        return _heads_by_orm(until)
    given = {"until": InstantField().get_db_prep_value(until, connection)}
    if connection.vendor == "postgresql":
        rows = tables.read(sql, given | {"everything": everything}, binary=True)
        return [QueueHead._make(row) for row in rows]
    found, past = list[QueueHead](), ""
    while True:
        rows = tables.read(sql, given | {"past": past, "limit": AT_ONCE})
        found += [
            QueueHead(queue, _instant(head), int(levels))
            for queue, head, levels in rows
            if head is not None
        ]
        if len(rows) < AT_ONCE:
            return found
        past = rows[-1][0]


def _heads_by_orm(until: datetime) -> list[QueueHead]:
    pending = tables.tasks().published_alone().filter(priority__in=range(10))
    levels = pending.order_by().values_list("queue", "priority")
    found: dict[str, QueueHead] = {}
    for queue, priority, at in levels.annotate(head=Min("due_at")):
        before = found.get(queue, QueueHead(queue, at, 0))
        due = 1 << priority if at <= until else 0
        found[queue] = QueueHead(queue, min(at, before.at), before.levels | due)
    return list(found.values())


def late(queues: Collection[str], since: datetime) -> frozenset[str]:
    """Return the queues in which a task has been due since before ``since``; ten index probes per
    queue.
    """
    sql = statement("late")
    if sql is None:
        return frozenset(
            queue for queue, head in heads().items() if head < since and queue in queues
        )
    with connections[tables.database()].cursor() as cursor:
        cursor.execute(sql, {"queues": sorted(queues), "since": since})
        return frozenset(queue for (queue,) in cursor.fetchall())


def _instant(value: Any) -> datetime:
    found = parse_datetime(value) if isinstance(value, str) else value
    if not isinstance(found, datetime):
        raise TypeError(f"The database returned {value!r} for an instant.")
    return found if found.tzinfo else found.replace(tzinfo=UTC)
