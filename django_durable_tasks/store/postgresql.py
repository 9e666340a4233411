"""What the store uses of psycopg beyond Django: arrays, COPY, and statements without cursors."""

from __future__ import annotations

import os
import re
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from struct import Struct
from typing import Any, NamedTuple

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Model
from django.utils.module_loading import import_string

from django_durable_tasks import conf
from django_durable_tasks.models.fields import instant
from django_durable_tasks.store.connections import cursor, is_dedicated, prepares
from django_durable_tasks.store.dialects import POSTGRESQL, verb
from django_durable_tasks.store.statements import sql

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


def _timestamp(value: datetime) -> bytes:
    return _bigint(microseconds(value))


def _seconds(value: float) -> bytes:
    return _interval(timedelta(seconds=value) // _MICROSECOND, 0, 0)


def _json(value: str) -> bytes:
    return b"\x01" + value.encode()


_FORMATS: Mapping[str, Callable[[Any], bytes]] = {
    "bigint": _bigint,
    "boolean": Struct(">?").pack,
    "integer": Struct(">i").pack,
    "interval": _seconds,
    "jsonb": _json,
    "smallint": Struct(">h").pack,
    "text": str.encode,
    "timestamptz": _timestamp,
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


# Executes prepared statements on a dedicated connection to PostgreSQL without cursors.
#
# A cursor of Django and psycopg uses more processor time for a statement of one row than
# PostgreSQL does. A child of a prefork pool executes two such statements per task, so it calls
# libpq through ``psycopg.pq``, with psycopg's adaptation of parameters and results.
#
# libpq waits for the server without returning to Python. This would block all greenlets of a
# process and delays signal handlers, so only processes that call ``use`` execute statements in
# this way: they run one task at a time, and their parent kills them if a time limit is exceeded.


_PARAMETER = re.compile(r"%(?:\((\w+)\)s|%)")
_BINARY = 1


class Result(NamedTuple):
    """The rows that a statement returned, and the number of rows that it returned or changed.

    JSON is decoded.
    """

    rows: list[tuple[Any, ...]]
    number: int


class _Session:
    """The prepared statements of one session of PostgreSQL."""

    def __init__(self, driver: Any) -> None:
        self.driver, self._pgconn = driver, driver.pgconn
        self._adapter = import_string("psycopg.adapt.Transformer")(driver)
        self._text = import_string("psycopg.adapt.PyFormat").TEXT
        self._disconnected = import_string("psycopg.OperationalError")
        self._error_of = import_string("psycopg.errors.error_from_result")
        status = import_string("psycopg.pq.ExecStatus")
        self._good = {int(status.TUPLES_OK), int(status.COMMAND_OK)}
        self._prepared: dict[str, tuple[bytes, list[str]]] = {}

    def execute(self, sql: str, parameters: Mapping[str, Any]) -> Result:
        """Execute one statement in a transaction of its own."""
        name, values = self._bound(sql, parameters)
        return self._result(self._pgconn.exec_prepared(name, values, result_format=_BINARY))

    def _bound(self, sql: str, parameters: Mapping[str, Any]) -> tuple[bytes, Sequence[Any]]:
        """Return the prepared statement and its values, in the text format. So the statement
        decides the types, and not the values.
        """
        name, names = self._prepared.get(sql) or self._prepare(sql)
        values = [parameters[name] for name in names]
        return name, self._adapter.dump_sequence(values, [self._text] * len(values))

    def _prepare(self, sql: str) -> tuple[bytes, list[str]]:
        names: list[str] = []

        def numbered(found: re.Match[str]) -> str:
            if found[1] is None:
                return "%"
            if found[1] not in names:
                names.append(found[1])
            return f"${names.index(found[1]) + 1}"

        name = f"durable_{len(self._prepared)}".encode()
        self._result(self._pgconn.prepare(name, _PARAMETER.sub(numbered, sql).encode()))
        self._prepared[sql] = name, names
        return name, names

    def _result(self, result: Any) -> Result:
        """Return what a statement returned, or raise its error."""
        if result is None:
            raise self._disconnected("The connection was lost before the statement ended.")
        if result.status not in self._good:
            error = self._error_of(result, encoding="utf-8")
            # The server sends a code with each error, libpq none if it lost the connection.
            raise error if error.sqlstate is not None else self._disconnected(str(error))
        rows: list[tuple[Any, ...]] = []
        if result.ntuples:
            self._adapter.set_pgresult(result)
            rows = self._adapter.load_rows(0, result.ntuples, tuple)
        return Result(rows, result.command_tuples or 0)


class _Process:
    """Whether this process executes statements directly, and its sessions."""

    def __init__(self) -> None:
        self.requested = False
        self.sessions = weakref.WeakKeyDictionary[BaseDatabaseWrapper, _Session]()


_process = _Process()


def use_directly() -> None:
    """Execute the statements of this process directly if its connections support it."""
    _process.requested = True


def _forget() -> None:
    global _process
    _process = _Process()


os.register_at_fork(after_in_child=_forget)


def execute_directly(sql: str, parameters: Mapping[str, Any]) -> Result | None:
    """Execute a statement; return None if the caller has to use a cursor."""
    session = _session() if _process.requested else None
    if session is None:
        return None
    with connections[conf.settings().DATABASE].wrap_database_errors:
        return session.execute(sql, parameters)


def _session() -> _Session | None:
    """Return the session of this thread's connection, if it is a dedicated one to PostgreSQL, in
    autocommit, and prepares statements.
    """
    connection = connections[conf.settings().DATABASE]
    driver = connection.connection
    known = _process.sessions.get(connection)
    if known is None or known.driver is not driver:
        if not _suits(connection):
            return None
        known = _process.sessions[connection] = _Session(driver)
    if connection.in_atomic_block or not connection.get_autocommit() or connection.queries_logged:
        return None
    return known


def _suits(connection: Any) -> bool:
    return (
        connection.vendor == "postgresql"
        and is_dedicated(connection)
        and hasattr(connection.connection, "pgconn")  # psycopg 3
        and prepares(connection.settings_dict)
    )
