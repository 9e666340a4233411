"""Reads when the first PENDING task of each queue is due, with index probes.

Called first in every round of dispatch.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

from django.db import connections
from django.db.models import Min
from django.utils.dateparse import parse_datetime

from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.db.statements import statement

AT_ONCE = 500
"""The number of queues per statement. MySQL and MariaDB end a recursive query after 1,000 steps,
MariaDB without an error.
"""


def heads() -> dict[str, datetime]:
    """Return when the first PENDING task of each queue is due, for the queues that have one.

    Executes one statement for 500 queues, which probes the index and never scans the tasks.
    """
    sql = statement("heads")
    if sql is None:
        return dict(
            tables.tasks()
            .published_alone()
            .order_by()
            .values_list("queue")
            .annotate(head=Min("due_at"))
        )
    found, past = dict[str, datetime](), ""
    with connections[tables.database()].cursor() as cursor:
        while True:
            cursor.execute(sql, {"past": past, "limit": AT_ONCE})
            rows = cursor.fetchall()
            found |= {queue: _instant(head) for queue, head in rows if head is not None}
            if len(rows) < AT_ONCE:
                return found
            past = rows[-1][0]


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
