"""What the store uses of psycopg beyond Django: arrays and COPY."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from struct import Struct
from typing import Any

from django.db import connections
from django.db.models import Model

from django_durable_tasks import conf
from django_durable_tasks.models.fields import instant
from django_durable_tasks.store.connections import cursor
from django_durable_tasks.store.dialects import POSTGRESQL, sql, verb

# Arrays in the text format of PostgreSQL, as parameters of ``unnest()``.
#
# The driver formats each element with a dumper in Python, which takes several times as long.


_NULL = "NULL"


def uuid_array(values: Iterable[uuid.UUID | None]) -> str:
    """Return the text of a ``uuid[]``."""
    return _array([_NULL if value is None else f"{value.int:032x}" for value in values])


def time_array(values: Iterable[datetime | None]) -> str:
    """Return the text of a ``timestamptz[]``."""
    return _array([_NULL if value is None else value.isoformat() for value in values])


def number_array(values: Iterable[int | None]) -> str:
    """Return the text of an array of integers or booleans."""
    return _array([_NULL if value is None else str(value) for value in values])


def text_array(values: Iterable[str | None]) -> str:
    """Return the text of a ``text[]``."""
    return _array([_NULL if value is None else _quoted(value) for value in values])


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _array(elements: list[str]) -> str:
    return f"{{{','.join(elements)}}}"


# COPY FROM STDIN with psycopg 3: on PostgreSQL the fastest way to write many rows.
#
# The rows are in the binary format, which takes the server less time to read than texts and this
# process less time to write: psycopg has no part in it.


_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_HEADER = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
_TRAILER = b"\xff\xff"
NULL = b"\xff\xff\xff\xff"
_length = Struct(">i").pack
_bigint = Struct(">q").pack
_interval = Struct(">qii").pack
"""Microseconds, days and months."""


@verb
def copy_time() -> datetime | None:
    """Return the time of the database; None if COPY cannot write tasks.

    This is so on other databases, with psycopg 2, if row-level security applies to the role, and if
    the connection has another encoding than UTF-8.
    """
    return None


@copy_time.on(POSTGRESQL)
def _copy_time() -> datetime | None:
    with cursor() as sql_cursor:
        if not hasattr(sql_cursor.cursor, "copy"):
            return None
        sql_cursor.execute(sql("copy_time"))
        now, allowed = sql_cursor.fetchone()
    return instant(now, sql_cursor.db) if allowed else None


@contextmanager
def copying(statement: str) -> Iterator[Callable[[bytes], None]]:
    """Execute a COPY while the block runs; yield a function that sends rows. Each row begins with
    the number of its columns.

    The server writes rows while the block prepares others. The block must not use this thread's
    connection. If it raises an exception, no row is written and a transaction is aborted, as by a
    failed statement. Raises the errors of Django's database layer.
    """
    with cursor() as sql_cursor:
        database = sql_cursor.db
        with database.wrap_database_errors, ExitStack() as stack:

            def begin(text: str, params: Any, many: bool, context: Any) -> Any:
                database.validate_no_broken_transaction()
                return stack.enter_context(sql_cursor.cursor.copy(text))

            # Through the wrappers of execute(): what counts or refuses statements sees this one.
            copy = sql_cursor._execute_with_wrappers(statement, None, False, begin)
            copy.write(_HEADER)
            yield copy.write
            copy.write(_TRAILER)


def microseconds(value: datetime) -> int:
    """Return a time as PostgreSQL stores it: the microseconds since the year 2000."""
    return (value - _EPOCH) // _MICROSECOND


_FORMATS: Mapping[str, Callable[[Any], bytes]] = {
    "bigint": _bigint,
    "boolean": Struct(">?").pack,
    "integer": Struct(">i").pack,
    "interval": lambda value: _interval(timedelta(seconds=value) // _MICROSECOND, 0, 0),
    "jsonb": lambda value: b"\x01" + value.encode(),
    "smallint": Struct(">h").pack,
    "text": str.encode,
    "timestamptz": lambda value: _bigint(microseconds(value)),
    "uuid": attrgetter("bytes"),
}


def column_type(model: type[Model], column: str) -> str:
    """Return the type of a column, as a key of _FORMATS: every text is ``text``."""
    field = next(field for field in model._meta.concrete_fields if field.attname == column)
    kind = field.db_type(connections[conf.settings().DATABASE]) or ""
    return {"timestamp with time zone": "timestamptz"}.get(
        kind, "text" if kind.startswith("varchar") else kind
    )


def copied(value: Any, kind: str) -> bytes:
    """Return a value of a column of this type. An interval is given as its seconds."""
    if value is None:
        return NULL
    content = _FORMATS[kind](value)
    return _length(len(content)) + content
