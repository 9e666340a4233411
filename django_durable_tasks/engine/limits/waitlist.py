"""Reads the waitlists of limits: the scopes with waiting tasks, and the first tasks of each scope.

One statement reads many scopes. Called by ``admission``, ``release``, ``priority_aging`` and the
dispatch loop.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from django.db import connections

from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.db.statements import statement
from django_durable_tasks.engine.limits.next_due import AT_ONCE
from django_durable_tasks.models.task_queries import NEVER, TaskQuerySet
from django_durable_tasks.rules.limits.admission import AdmissionRequest

URGENT = 9
"""Tasks of this priority are released even if the window of their queue is full."""
HEADS = 20
"""The number of tasks of a waitlist that ``heads`` returns."""
_SPARE, _FAR = 10, 1_000
"""``_SPARE`` more tasks of a waitlist are read than requested. If too few of these are eligible,
the first ``_FAR`` are read.
"""


class WaitingTask(NamedTuple):
    """A task that waits for a limit."""

    waiting_for_limit: str
    pk: uuid.UUID
    name: str
    queue: str
    tenant_id: int
    limit_key: str | None
    weight: int
    priority: int
    expires_at: datetime | None


def eligible(
    leasts: Mapping[str, int],
    number: Callable[[str], int],
    takes: Callable[[WaitingTask], bool],
    *,
    released_too: bool,
    seen: Sequence[WaitingTask] = (),
) -> list[WaitingTask]:
    """Return the first eligible tasks of each waitlist, by scope: ``number(scope)`` or a few more.

    ``leasts``: the scopes, and the lowest priority of a task that is read. ``takes`` decides which
    tasks are eligible. If too few of the first tasks are, the first 1,000 are read and no more.
    This takes at most two passes, and the work does not grow with the length of a waitlist.
    ``released_too``: also tasks that were released and are not claimed yet. ``seen``: the tasks
    that the caller has read by ``heads``; then the first pass is left out.
    """
    wanted = {scope: number(scope) for scope in leasts}
    parts = {scope: HEADS if seen else wanted[scope] + _SPARE for scope in leasts}

    def by_scope(numbers: Mapping[str, int]) -> dict[str, list[WaitingTask]]:
        asked = [(scope, number, leasts[scope]) for scope, number in numbers.items()]
        return _by_scope(_read(asked, released_too=released_too))

    found = _by_scope(row for row in seen if row.waiting_for_limit in leasts)
    found = found if seen else by_scope(parts)
    chosen = {scope: list(filter(takes, rows)) for scope, rows in found.items()}
    short = {
        scope: _FAR
        for scope, rows in found.items()
        if len(rows) == parts[scope] and len(chosen[scope]) < wanted[scope]
    }
    for scope, rows in by_scope(short).items():
        chosen[scope] = list(filter(takes, rows))[: wanted[scope] + _SPARE]
    return [row for rows in chosen.values() for row in rows]


def _by_scope(rows: Iterable[WaitingTask]) -> dict[str, list[WaitingTask]]:
    found: dict[str, list[WaitingTask]] = {}
    for row in rows:
        found.setdefault(row.waiting_for_limit, []).append(row)
    return found


def _read(asked: Sequence[tuple[str, int, int]], *, released_too: bool) -> list[WaitingTask]:
    """Return the first tasks of waitlists, each given as scope, number and lowest priority."""
    if not asked:
        return []
    sql = statement("waitlists")
    if sql is not None:
        scopes, numbers, leasts = (list(column) for column in zip(*asked, strict=True))
        given = {"scopes": scopes, "numbers": numbers, "leasts": leasts, "never": NEVER}
        return [
            WaitingTask._make(row) for row in tables.read(sql, given | {"released": released_too})
        ]
    tasks = tables.tasks()
    of_scope = tasks.reserved_for_scope if released_too else tasks.waiting_for_scope
    queries = [
        (of_scope(scope).filter(priority__gte=least) if least else of_scope(scope), number)
        for scope, number, least in asked
    ]
    return [WaitingTask._make(row) for row in tables.first_of_each(queries, WaitingTask._fields)]


def first(
    queries: Mapping[str, TaskQuerySet], number: Callable[[str], int], columns: Sequence[str]
) -> list[Any]:
    """Return these columns of the first ``number(key)`` rows of each query; one statement for many
    queries.
    """
    return tables.first_of_each(((query, number(name)) for name, query in queries.items()), columns)


def waitlist_order(priority: int, key: Any) -> tuple[int, Any]:
    """Return the sort key of a waitlist: the highest priority first, then the oldest task."""
    return (-priority, key)


def admission_request(
    key: Any, scopes: Sequence[str], weight: int, priority: int, others: Sequence[str] = ()
) -> AdmissionRequest:
    """Return the task as the rules of admission expect it."""
    return AdmissionRequest(key, scopes, weight, waitlist_order(priority, key), others)


def heads(scopes: Sequence[str]) -> list[WaitingTask]:
    """Return the first tasks that wait for each of these scopes, or were released and not claimed
    yet; one statement.
    """
    return _read([(scope, HEADS, 0) for scope in scopes], released_too=True)


class ScopeCursor:
    """A cursor over the scopes with waiting tasks.

    If more scopes have waiting tasks than one call returns, consecutive calls return all of them in
    turn.
    """

    def __init__(self) -> None:
        self._past = ""

    def next(self, limit: int) -> list[str]:
        """Return at most ``limit`` scopes with waiting tasks; each call continues after the last
        one returned.
        """
        found = scopes_after(self._past, limit)
        if len(found) < limit and self._past:
            found += [scope for scope in scopes_after("", limit - len(found)) if scope not in found]
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


def scopes_after(past: str, limit: int) -> list[str]:
    """Return at most ``limit`` scopes with waiting tasks, in the order of names, after ``past``."""
    sql = statement("waiting_scopes")
    if sql is not None:
        return _by_pages(sql, past, limit)
    waiting = tables.tasks().filter(waiting_for_limit__gt=past).order_by("waiting_for_limit")
    return [
        scope
        for scope in waiting.values_list("waiting_for_limit", flat=True).distinct()[:limit]
        if scope is not None
    ]
