"""Reads the rows of a table that were committed since the last read, each exactly once.

Rows are read by primary key, in the order of ids and in bounded batches. Ids that were passed over
are read again: see ``rules/metrics/gaps.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db.models import Q, QuerySet

from django_durable_tasks.engine.metrics.totals import CountPosition
from django_durable_tasks.rules.metrics import gaps
from django_durable_tasks.rules.metrics.gaps import IdGap


def new_rows(
    queryset: QuerySet[Any],
    columns: Sequence[str],
    position: CountPosition,
    now: datetime,
    limit: int,
) -> tuple[list[tuple[Any, ...]], CountPosition]:
    """Return rows that were not read before, with the position after them.

    The first column must be ``id``. At most ``limit`` rows after the position and ``limit`` rows of
    gaps are returned. One statement, or two if there are gaps.
    """
    at = now.timestamp()
    passed_over = gaps.kept((IdGap(*gap) for gap in position.details), at)
    late = _of_gaps(queryset, columns, passed_over)[:limit] if passed_over else []
    following = queryset.filter(pk__gt=position.last_id).order_by("pk")
    rows = list(following.values_list(*columns)[:limit])
    found = list(late)
    left = [
        *gaps.without(passed_over, [row[0] for row in found]),
        *gaps.new_gaps(position.last_id, [row[0] for row in rows], at),
    ]
    last_id = rows[-1][0] if rows else position.last_id
    return [*found, *rows], position.moved(last_id, [list(gap) for gap in gaps.kept(left, at)])


def _of_gaps(
    queryset: QuerySet[Any], columns: Sequence[str], passed_over: Sequence[IdGap]
) -> QuerySet[Any, tuple[Any, ...]]:
    inside = Q()
    for gap in passed_over:
        inside |= Q(pk__gte=gap.first, pk__lte=gap.last)
    return queryset.filter(inside).order_by("pk").values_list(*columns)


def is_counted(position: CountPosition, row_id: int) -> bool:
    """Return whether the row of this id was read, or given up."""
    return row_id <= position.last_id and not any(
        first <= row_id <= last for first, last, _ in position.details
    )
