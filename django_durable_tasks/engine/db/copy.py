"""COPY FROM STDIN with psycopg 3: on PostgreSQL the fastest way to write many rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from typing import Any

from django_durable_tasks.engine.db.connections import cursor
from django_durable_tasks.engine.db.statements import statement

_SPECIAL = re.compile(r"[\\\t\n\r]")
_ESCAPES = str.maketrans({"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"})
NULL = r"\N"


def copy_time() -> datetime | None:
    """Return the time of the database; None if COPY cannot write tasks.

    This is so on other databases, with psycopg 2, and if row-level security applies to the role.
    """
    sql = statement("copy_time")
    if sql is None:
        return None
    with cursor() as sql_cursor:
        if not hasattr(sql_cursor.cursor, "copy"):
            return None
        sql_cursor.execute(sql)
        now, allowed = sql_cursor.fetchone()
    return now if allowed else None


@contextmanager
def copying(sql: str, rows: str) -> Iterator[None]:
    """Execute a COPY with these rows in its text format, while the block runs.

    The block must not use this thread's connection. If it raises an exception, no row is written
    and a transaction is aborted, as by a failed statement. Raises the errors of Django's database
    layer.
    """
    with cursor() as sql_cursor:
        database = sql_cursor.db
        with database.wrap_database_errors, ExitStack() as stack:

            def send(text: str, params: Any, many: bool, context: Any) -> None:
                database.validate_no_broken_transaction()
                stack.enter_context(sql_cursor.cursor.copy(text)).write(rows)

            # Through the wrappers of execute(): what counts or refuses statements sees this one.
            sql_cursor._execute_with_wrappers(sql, None, False, send)
            yield


def copied(value: object) -> str:
    """Return a value in the text format of COPY."""
    if value is None:
        return NULL
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, str):
        return copied_text(value)
    return str(value)


def copied_text(text: str) -> str:
    """Return a text in the text format of COPY."""
    return text.translate(_ESCAPES) if _SPECIAL.search(text) else text
