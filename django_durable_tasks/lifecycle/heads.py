"""When the first waiting row of each queue is due: what every dispatching round asks first."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django.db import connections
from django.db.models import Min
from django.utils.dateparse import parse_datetime

from django_durable_tasks.lifecycle import transitions
from django_durable_tasks.lifecycle.statements import statement


def heads() -> dict[str, datetime]:
    """Return, for each queue with waiting rows, when its first row is due; costs probes, never a scan of the rows."""
    sql = statement("heads")
    if sql is None:
        return dict(transitions.tasks().pending().order_by().values_list("queue").annotate(head=Min("alarm_at")))
    with connections[transitions.database()].cursor() as cursor:
        cursor.execute(sql)
        return {queue: _instant(head) for queue, head in cursor.fetchall()}


def _instant(value: Any) -> datetime:
    found = parse_datetime(value) if isinstance(value, str) else value
    if not isinstance(found, datetime):
        raise TypeError(f"The database returned {value!r} for an instant.")
    return found if found.tzinfo else found.replace(tzinfo=UTC)
