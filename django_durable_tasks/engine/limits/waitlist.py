"""Waitlists: the tasks that wait for a limit, by scope. Reads the first tasks of many waitlists in
one statement.
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
"""Tasks of this priority are published although the window of their queue is full."""
_SPARE, _FAR = 10, 1_000
"""How many tasks of a waitlist are read in addition to the wanted ones, and how many if the first
ones cannot run.
"""


class Waiting(NamedTuple):
    """A task on a waitlist."""

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
    """Return the first tasks of each waitlist that can run: ``number(scope)`` of each and some to
    spare.

    If the first tasks of a waitlist cannot run, its first 1,000 are read and no more. So two
    statements serve many waitlists, and the work does not grow with the number of waiting tasks.
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
    """Return these columns of the first ``number(name)`` rows of each query, in one statement for
    many queries.
    """
    return tables.first_of_each(
        ((question, number(name)) for name, question in lines.items()), columns
    )


def turn(priority: int, key: Any) -> tuple[int, Any]:
    """Return the sort key of a task on its waitlist: the most urgent first, then the oldest."""
    return (-priority, key)


def asking(
    key: Any, scopes: Sequence[str], weight: int, priority: int, others: Sequence[str] = ()
) -> Asking:
    """Return a task as a value for the rules."""
    return Asking(key, scopes, weight, turn(priority, key), others)


class Walk:
    """A cursor over the scopes with waiting tasks, so that each is served although there are very
    many.
    """

    def __init__(self) -> None:
        self._past = ""

    def next(self, limit: int) -> list[str]:
        """Return at most ``limit`` scopes with waiting tasks, after those of the last call."""
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
    """Return at most ``limit`` scopes with waiting tasks, in the order of their names, after
    ``past``.
    """
    sql = statement("parked")
    if sql is not None:
        return _by_pages(sql, past, limit)
    waiting = tables.tasks().filter(waiting_for_limit__gt=past).order_by("waiting_for_limit")
    return [
        scope
        for scope in waiting.values_list("waiting_for_limit", flat=True).distinct()[:limit]
        if scope is not None
    ]
