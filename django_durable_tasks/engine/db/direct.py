"""Executes prepared statements on a dedicated connection to PostgreSQL without cursors.

A cursor of Django and psycopg uses more processor time for a statement of one row than PostgreSQL
does. A child of a prefork pool executes two such statements per task, so it calls libpq through
``psycopg.pq``, with psycopg's adaptation of parameters and results.

libpq waits for the server without returning to Python. This would block all greenlets of a process
and delays signal handlers, so only processes that call ``use`` execute statements in this way: they
run one task at a time, and their parent kills them if a time limit is exceeded.
"""

from __future__ import annotations

import os
import re
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.module_loading import import_string

from django_durable_tasks import conf
from django_durable_tasks.engine.db.connections import is_dedicated, prepares

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


def use() -> None:
    """Execute the statements of this process directly if its connections support it."""
    _process.requested = True


def _forget() -> None:
    global _process
    _process = _Process()


os.register_at_fork(after_in_child=_forget)


def execute(sql: str, parameters: Mapping[str, Any]) -> Result | None:
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
