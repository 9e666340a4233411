"""Inserts edges and gates. On PostgreSQL many are written by COPY."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Any

from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.db.connections import cursor
from django_durable_tasks.engine.db.copy import NULL, copied, copy_time, copying
from django_durable_tasks.engine.db.statements import recordset, statement
from django_durable_tasks.engine.dependencies.edges import edges
from django_durable_tasks.models import TaskDependency
from django_durable_tasks.rules.dependencies import NewEdge

COLUMNS = {
    "task_id": "uuid",
    "depends_on_id": "uuid",
    "dependency_type": "text",
    "gate": "text",
    "on_upstream_failure": "text",
    "placed_by": "text",
    "comment": "text",
}
"""The columns of ``copy_edges`` and their types, in its order: the first fields of NewEdge."""
_SHARED = tuple(COLUMNS.values())[2:]
_BULK, _SENT = 5_000, 500
"""The numbers of edges of a statement, and of a part of a COPY that is sent at once."""
_COPIED = 200
"""From this number of edges on, COPY and the query before it take less time than one INSERT."""
_start = Struct(">hi16si16s").pack
_start_of_gate = Struct(">hi16s").pack


def insert(new_edges: Sequence[NewEdge]) -> None:
    """Insert edges and gates, up to 5,000 per statement.

    On PostgreSQL by COPY, fewer than 200 by one INSERT, and if one of them is met by INSERTs of
    the ORM, as on other databases.
    """
    sql = statement("insert_edges")
    if sql is None or any(edge.outcome is not None for edge in new_edges):
        edges().bulk_create(list(map(_row, new_edges)), batch_size=_BULK)
        return
    by_copy = len(new_edges) >= _COPIED and copy_time() is not None
    for first in range(0, len(new_edges), _BULK):
        part = new_edges[first : first + _BULK]
        if by_copy:
            _copy(part)
        else:
            with cursor() as sql_cursor:
                sql_cursor.execute(sql, {"rows": recordset(_record(edge) for edge in part)})


def _row(edge: NewEdge) -> TaskDependency:
    met = edge.outcome is not None
    resolved_at = tables.NOW if met else None
    return TaskDependency(**edge._asdict(), resolved_at=resolved_at, met=True if met else None)


def _record(edge: NewEdge) -> dict[str, object]:
    return {name: value for name, value in edge._asdict().items() if name in COLUMNS}


def _copy(new_edges: Sequence[NewEdge]) -> None:
    sql = statement("copy_edges")
    if sql is None:
        raise ValueError("This database has no COPY.")
    with copying(sql) as send:
        for rows in _parts(new_edges):
            send(rows)


def _parts(new_edges: Sequence[NewEdge]) -> Iterator[bytes]:
    """Yield the rows in the binary format of COPY. The columns after the ids differ little between
    the edges of a workflow.
    """
    shared, width = dict[tuple[Any, ...], bytes](), len(COLUMNS)
    for first in range(0, len(new_edges), _SENT):
        rows = list[bytes]()
        for edge in new_edges[first : first + _SENT]:
            values = edge[2 : len(COLUMNS)]
            end = shared.get(values)
            if end is None:
                end = shared[values] = b"".join(map(copied, values, _SHARED))
            task, upstream = edge.task_id.bytes, edge.depends_on_id
            if upstream is None:
                rows += (_start_of_gate(width, 16, task), NULL, end)
            else:
                rows += (_start(width, 16, task, 16, upstream.bytes), end)
        yield b"".join(rows)
