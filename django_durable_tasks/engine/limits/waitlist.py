"""The lines of parked rows: for which scopes rows wait, and the first of each line, by a statement
for many lines.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from django.db import connections

from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.db.statements import statement
from django_durable_tasks.engine.limits.next_due import AT_ONCE
from django_durable_tasks.models.task_queries import TaskQuerySet
from django_durable_tasks.rules.limits.admission import Asking

URGENT = 9
"""Rows of this priority go though the window of their queue is full."""
_SPARE, _FAR = 10, 1_000
"""So many more rows of a line are looked at than are wanted; and so many where the first of them
cannot go.
"""


class Waiting(NamedTuple):
    """A row of a line."""

    waiting_for_limit: str
    pk: uuid.UUID
    name: str
    queue: str
    tenant_id: int
    limit_key: str | None
    weight: int
    priority: int
    expires_at: datetime | None


def able(
    lines: Mapping[str, TaskQuerySet],
    number: Callable[[str], int],
    takes: Callable[[Waiting], bool],
) -> list[Waiting]:
    """Return the first rows of each line, by its scope, that may go: so many of each and some to
    spare.

    Of a line whose first rows may not go the first thousand are looked at, and no more: that is two
    statements for many lines, and work that does not grow with what waits.
    """

    def those(rows: Sequence[Any]) -> dict[str, list[Waiting]]:
        found: dict[str, list[Waiting]] = {}
        for row in map(Waiting._make, rows):
            found.setdefault(row.waiting_for_limit, []).append(row)
        return found

    wanted = {scope: number(scope) for scope in lines}
    found = those(first(lines, lambda scope: wanted[scope] + _SPARE, Waiting._fields))
    chosen = {scope: list(filter(takes, rows)) for scope, rows in found.items()}
    short = {
        scope: lines[scope]
        for scope, rows in found.items()
        if len(rows) == wanted[scope] + _SPARE and len(chosen[scope]) < wanted[scope]
    }
    for scope, rows in those(first(short, lambda _: _FAR, Waiting._fields)).items():
        chosen[scope] = list(filter(takes, rows))[: wanted[scope] + _SPARE]
    return [row for rows in chosen.values() for row in rows]


def first(
    lines: Mapping[str, TaskQuerySet], number: Callable[[str], int], columns: Sequence[str]
) -> list[Any]:
    """Return these columns of the first rows of each question, so many of each; a statement for
    many questions.
    """
    return tables.first_of_each(
        ((question, number(name)) for name, question in lines.items()), columns
    )


def turn(priority: int, key: Any) -> tuple[int, Any]:
    """Return when a row's turn comes in a line: the most urgent first, and then the oldest."""
    return (-priority, key)


def asking(
    key: Any, scopes: Sequence[str], weight: int, priority: int, others: Sequence[str] = ()
) -> Asking:
    """Return a row as the rules see it."""
    return Asking(key, scopes, weight, turn(priority, key), others)


class Walk:
    """A process's way through the scopes with parked rows, so that with very many of them each has
    its turn.
    """

    def __init__(self) -> None:
        self._past = ""

    def next(self, limit: int) -> list[str]:
        """Return scopes with parked rows, at most so many; each call goes on where the last one
        ended.
        """
        found = parked_past(self._past, limit)
        if len(found) < limit and self._past:
            found += [scope for scope in parked_past("", limit - len(found)) if scope not in found]
        self._past = found[-1] if len(found) == limit else ""
        return found


def _by_pages(sql: str, past: str, limit: int) -> list[str]:
    found, page = list[str](), min(limit, AT_ONCE)
    with connections[tables.database()].cursor() as cursor:
        while page:
            cursor.execute(sql, {"past": past, "limit": page})
            scopes = [scope for (scope,) in cursor.fetchall()]
            found += scopes
            past = scopes[-1] if scopes else past
            page = min(limit - len(found), AT_ONCE) if len(scopes) == page else 0
    return found


def parked_past(past: str, limit: int) -> list[str]:
    """Return the next scopes in the order of their names for which rows wait, at most so many."""
    sql = statement("parked")
    if sql is not None:
        return _by_pages(sql, past, limit)
    waiting = tables.tasks().filter(waiting_for_limit__gt=past).order_by("waiting_for_limit")
    return [
        scope
        for scope in waiting.values_list("waiting_for_limit", flat=True).distinct()[:limit]
        if scope is not None
    ]
