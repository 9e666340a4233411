"""Dedicated connections of this package to the database, and transactions that a task left open."""

from __future__ import annotations

import copy
import functools
import json
import logging
import os
import threading
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from django.db import Error, connections
from django.db.backends.base.base import NO_DB_ALIAS, BaseDatabaseWrapper
from django.db.transaction import TransactionManagementError
from django.db.utils import load_backend
from django.utils.module_loading import import_string

from django_durable_tasks import conf, process_state
from django_durable_tasks.exceptions import DurableTasksError
from django_durable_tasks.process_state import IdlePool
from django_durable_tasks.store.dialects import text

# Decodes jsonb values in PostgreSQL's binary format in a quarter of psycopg's time.


_JSONB, _JSONB_BINARY = 3802, 1
"""The object id of the type, and psycopg's number of the format."""
_VERSION = 1
_decode = json.JSONDecoder().raw_decode


def read_jsonb_quickly(driver: Any) -> None:
    """Use the quick decoder for the results of this connection of psycopg 3 in the binary format.
    Other drivers, and results in text, are not changed.
    """
    adapters = getattr(driver, "adapters", None)
    if adapters is not None:
        loader = adapters.get_loader(_JSONB, _JSONB_BINARY)
        adapters.register_loader(_JSONB, _quick(loader))


@functools.cache
def _quick(slow: Any) -> Any:
    def load(self: Any, data: Any) -> Any:
        """Decode without the search for the encoding and for white space around the value, which
        PostgreSQL never sends.
        """
        if data[0] != _VERSION:
            return slow.load(self, data)
        return _decode(str(data[1:], "utf-8"))[0]

    return type("QuickJsonbLoader", (slow,), {"load": load})


# Dedicated connections of this package to the database, and the pool of idle ones.
#
# Celery's Django fixup closes the registered connections around every task. Reconnecting would
# cost more than the task itself. So the gate, the heartbeats, the endings and the scheduler use a
# dedicated connection, which replaces the registered one of the thread meanwhile.


_DRIVER = "django.db.backends.postgresql.psycopg_any"
"""Imported on first use, because it needs a driver of PostgreSQL: psycopg 3 or psycopg 2."""


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Time limits of a connection in seconds: for a statement, for a lock, and for an idle
    transaction.
    """

    statement: float = 15.0
    lock: float = 5.0
    idle: float = 10.0

    def parameters(self) -> dict[str, str]:
        """Return the parameters of a statement that sets these limits, in milliseconds."""
        limits = {"lock": self.lock, "statement": self.statement, "idle": self.idle}
        return {name: f"{round(1000 * wait)}ms" for name, wait in limits.items()}


WORK = TimeLimits()
LEADER = TimeLimits(statement=1.0, lock=1.0, idle=2.0)


_APPLICATION_BYTES = 63
"""PostgreSQL cuts longer names."""


def name_connections(process: str) -> None:
    """Name the connections that this process opens from now on for ``pg_stat_activity``, unless its
    environment or DATABASES names them. The driver of PostgreSQL reads this variable.
    """
    name = f"durable {process}".encode()[:_APPLICATION_BYTES].decode(errors="ignore")
    os.environ.setdefault("PGAPPNAME", name)


_FORK_PATIENCE = 30.0
_BINARY = 1
"""The binary format in PostgreSQL's protocol."""
_forks = threading.Condition(threading.RLock())
_inside: Counter[int] = Counter()
"""The threads that use a dedicated connection to SQLite now, and how deeply nested."""


def _before_fork() -> None:
    """Wait until no other thread uses SQLite, and close the idle connections to it.

    SQLite stores in process memory which connection holds which lock. A child that is forked while
    a lock is held inherits this state, and none of its writes would ever succeed (SQLite: How To
    Corrupt, 2.6).
    """
    _forks.acquire()
    me = threading.get_ident()
    _forks.wait_for(
        lambda: not [thread for thread in _inside if thread != me], timeout=_FORK_PATIENCE
    )
    _pool.drop_idle(lambda connection: connection.vendor == "sqlite")


def _after_fork_in_child() -> None:
    global _forks
    _forks = threading.Condition(threading.RLock())
    me = threading.get_ident()
    for thread in [thread for thread in _inside if thread != me]:
        del _inside[thread]


def _after_fork_in_parent() -> None:
    _forks.release()  # by name: in a child of a child it is another one


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
)


@contextmanager
def _no_fork_meanwhile(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """Delay forks of this process while the block uses SQLite."""
    if connection.vendor != "sqlite":
        yield
        return
    me = threading.get_ident()
    with _forks:
        _inside[me] += 1
    try:
        yield
    finally:
        with _forks:
            _inside[me] -= 1
            if not _inside[me]:
                del _inside[me]
            _forks.notify_all()


def prepares(settings: dict[str, Any]) -> bool:
    """Return whether statements are prepared on a connection with these settings."""
    # The same pools of connections that break server-side cursors break prepared statements.
    return not settings.get("DISABLE_SERVER_SIDE_CURSORS")


def open_dedicated(alias: str, patience: TimeLimits) -> BaseDatabaseWrapper:
    """Open a connection of its own to this database, with these limits; the caller closes it."""
    settings = copy.deepcopy(connections.settings[alias])
    vendor = connections[alias].vendor
    settings |= {
        "CONN_MAX_AGE": None,
        "CONN_HEALTH_CHECKS": False,
        "ATOMIC_REQUESTS": False,
        "AUTOCOMMIT": True,
    }
    options: dict[str, Any] = dict(settings.get("OPTIONS") or {})
    limits = list[str]()
    options.pop("pool", None)
    lock, statement, idle = (
        round(1000 * wait) for wait in (patience.lock, patience.statement, patience.idle)
    )
    if vendor == "postgresql":
        if import_string(f"{_DRIVER}.is_psycopg3"):
            threshold = 1 if prepares(settings) else None
            options |= {"server_side_binding": True, "prepare_threshold": threshold}
        # The statements of this package lock rows and check the locked version. A stricter level
        # would raise an error instead.
        options["isolation_level"] = import_string(f"{_DRIVER}.IsolationLevel").READ_COMMITTED
        # Without keepalives, a request to a server that vanished after receiving it waits for two
        # hours.
        alive = {"keepalives_idle": 5, "keepalives_interval": 3, "keepalives_count": 3}
        options = {"connect_timeout": 3, "tcp_user_timeout": 10_000} | alive | options
        limits = [
            f"SET statement_timeout = {statement}",
            f"SET lock_timeout = {lock}",
            f"SET idle_in_transaction_session_timeout = {idle}",
            "SET default_transaction_isolation = 'read committed'",
        ]
    elif vendor == "mysql":
        wait = max(1, round(patience.statement))
        options = {"connect_timeout": 3} | options | {"read_timeout": wait, "write_timeout": wait}
        options["isolation_level"] = "read committed"
        # MariaDB executes the comment. MySQL has no time limit for an idle transaction.
        asleep = f"/*M!100300 , idle_transaction_timeout = {max(1, idle // 1000)} */"
        limits = [f"SET innodb_lock_wait_timeout = {max(1, lock // 1000)} {asleep}"]
    if settings.get("DISABLE_SERVER_SIDE_CURSORS"):
        # Behind a pooler (Django's documented setting for one) a SET would remain in a session that
        # others use.
        limits = []
    settings["OPTIONS"] = options
    connection: BaseDatabaseWrapper = load_backend(settings["ENGINE"]).DatabaseWrapper(
        settings, alias
    )
    connection.inc_thread_sharing()
    try:
        # A receiver of connection_created, or a session setting of the server, may raise.
        connection.ensure_connection()
        read_jsonb_quickly(connection.connection)
        with connection.cursor() as cursor:
            for limit in limits:
                cursor.execute(limit)
    except BaseException:
        _close(connection)
        raise
    if limits:
        _bounded.add(connection)
    return connection


_bounded: weakref.WeakSet[BaseDatabaseWrapper] = weakref.WeakSet()
"""Connections whose session has time limits."""


def bound_transaction(patience: TimeLimits = WORK) -> None:
    """Set the time limits of this transaction if its session does not have them. PostgreSQL only.

    Behind a pooler this also bounds how long a stopped process can hold its locks.
    """
    connection = connections[conf.settings().DATABASE]
    sql = text("bound", connection.vendor)
    if sql is None or connection in _bounded or not connection.in_atomic_block:
        return
    with cursor() as opened:
        opened.execute(sql, patience.parameters())


def _close(connection: BaseDatabaseWrapper) -> None:
    try:
        connection.close()
    except Error:
        connection.connection = None


_pool: IdlePool[tuple[str, TimeLimits], BaseDatabaseWrapper] = IdlePool(_close)


def _in_memory(alias: str) -> bool:
    return bool(getattr(connections[alias], "is_in_memory_db", bool)())


_of_caller = ContextVar("durable_tasks_connection_of_caller", default=False)


@contextmanager
def connection_of_caller() -> Iterator[None]:
    """Let ``dedicated_connection`` do nothing while the block runs, so that everything happens in
    the transaction of the caller, which may be a test.
    """
    token = _of_caller.set(True)
    try:
        yield
    finally:
        _of_caller.reset(token)


@contextmanager
def savepoint_of_test() -> Iterator[None]:
    """Let the block fail without making the open transactions of a test unusable.

    Outside of a transaction each write of a function is committed, whatever follows. So what was
    written is kept, unless an error of the database has made the transaction unusable. If the block
    caught this error, TransactionManagementError is raised: its writes would be lost silently.
    """
    opened: list[Any] = list(filter(_is_of_test, connections.all(initialized_only=True)))
    savepoints = [(db, db.savepoint(), len(db.atomic_blocks)) for db in opened]
    has_returned, broken = False, list[str]()
    try:
        yield
        has_returned = True
    finally:
        for connection, savepoint, blocks in savepoints:
            # The savepoint of a block that was not left ends before this one (roll_back_left).
            if not _is_of_test(connection) or len(connection.atomic_blocks) != blocks:
                continue
            if connection.needs_rollback or (
                connection.vendor == "postgresql"
                and connection.connection.info.transaction_status == _IN_ERROR
            ):
                broken.append(connection.alias)
                connection.needs_rollback = False
                connection.savepoint_rollback(savepoint)
            else:
                connection.savepoint_commit(savepoint)
    if has_returned and broken:
        raise TransactionManagementError(
            f"The function caught an error of the database {broken[0]!r}, which made the"
            " transaction of the test unusable. Its writes were rolled back. Call what may fail in"
            " transaction.atomic(), or test the function in a TransactionTestCase."
        )


def _is_of_test(connection: Any) -> bool:
    blocks = connection.atomic_blocks
    return bool(blocks) and blocks[0]._from_testcase and connection.connection is not None


class _Places:
    """How many threads of this process may use dedicated connections at once. Without limit unless
    ``limit`` is called.
    """

    def __init__(self) -> None:
        self._free: threading.Semaphore | None = None
        self._of_thread = threading.local()

    def limit(self, number: int) -> None:
        self._free = threading.Semaphore(number)

    @contextmanager
    def place(self) -> Iterator[None]:
        """Wait for a place, and use it in the block. A nested block uses that of the outer one."""
        free = self._free
        if free is None or getattr(self._of_thread, "has_one", False):
            yield
            return
        # Not indefinitely, because those that have a place may wait for this thread.
        has_one = free.acquire(timeout=_PLACE_PATIENCE)
        self._of_thread.has_one = True
        try:
            yield
        finally:
            self._of_thread.has_one = False
            if has_one:
                free.release()


PLACES = 16
"""Threads of a worker with a pool of threads that use dedicated connections at once. More would
not be faster, because they share an interpreter.
"""
_PLACE_PATIENCE = 5.0
"""Seconds until a thread uses a connection beyond the limit."""
_places = _Places()


def limit_threads() -> None:
    """Let at most PLACES threads of this process use dedicated connections at once. Called in a
    worker whose pool may have more threads than the database allows connections.
    """
    _places.limit(PLACES)


@contextmanager
def dedicated_connection(patience: TimeLimits = WORK, *, at_once: bool = False) -> Iterator[None]:
    """Replace the registered connection of this thread by a dedicated one while the block runs.

    A connection on which an exception was raised is closed, except for the errors of this package.
    An in-memory SQLite database has only one connection, which stays. ``at_once``: do not wait if
    many threads of a worker use one.
    """
    alias = conf.settings().DATABASE
    if _of_caller.get() or _in_memory(alias):
        yield
        return
    before = connections[alias]
    key = alias, patience
    with nullcontext() if at_once else _places.place(), _no_fork_meanwhile(before):
        connections[alias] = connection = _pool.borrow(key, lambda: open_dedicated(alias, patience))
        usable = False
        try:
            yield
            usable = True
        except DurableTasksError:
            usable = True
            raise
        finally:
            # Any other exception may have interrupted the driver during a statement.
            connections[alias] = before
            if usable:
                _pool.give_back(key, connection)
            else:
                _pool.drop(connection)


def cursor(*, binary: bool = False) -> Any:
    """Return a cursor of this thread's connection. On PostgreSQL it prepares its statements on the
    server.

    ``binary``: such a cursor also requests results in PostgreSQL's binary format, in which psycopg
    reads times and ids in a fraction of the time. JSON is then decoded by psycopg.
    """
    connection: Any = connections[conf.settings().DATABASE]
    if (
        connection.vendor != "postgresql"
        or not prepares(connection.settings_dict)
        or connection.queries_logged
    ):
        return connection.cursor()  # Django logs the text only of statements that it binds itself
    connection.close_if_health_check_failed()
    connection.ensure_connection()
    driver = connection.connection
    if not hasattr(driver, "prepare_threshold"):
        return connection.cursor()  # psycopg 2
    if driver.prepare_threshold is None:
        driver.prepare_threshold = 1
    # Like Django's own cursor(), but with a cursor that binds parameters on the server.
    prepared = connection.Database.Cursor(driver)
    if binary:
        prepared.format = _BINARY
    return connection._prepare_cursor(prepared)


def in_transaction() -> bool:
    """Return whether this thread's connection is in a transaction, and so may occupy a slot of a
    pooler.
    """
    connection = connections[conf.settings().DATABASE]
    if connection.in_atomic_block or connection.connection is None:
        return bool(connection.in_atomic_block)
    return not connection.get_autocommit()


def has_one_connection() -> bool:
    """Return whether the tables are in an in-memory SQLite database, which a second connection
    cannot read.
    """
    return _in_memory(conf.settings().DATABASE)


def on_sqlite() -> bool:
    """Return whether the tables are in SQLite, which has one writer at a time."""
    return connections[conf.settings().DATABASE].vendor == "sqlite"


def close_all() -> None:
    """Close all idle dedicated connections; called when a process ends and between tests."""
    _pool.drop_idle()


def release_databases(connection: BaseDatabaseWrapper, **_: Any) -> None:
    """Receiver of Django's ``connection_created``: close the connections of this process before a
    database is dropped.

    Django creates, copies and drops databases, such as those of a test run, through a connection
    without a database. PostgreSQL refuses to drop a database to which a connection is open.
    """
    if connection.alias == NO_DB_ALIAS:
        process_state.renew()
        close_all()


def count() -> int:
    """Return how many dedicated connections are open in this process."""
    return _pool.count()


# Rolls back transactions that a task function left open on the project's connections.
#
# Django marks a connection that is closed in such a transaction as unusable. Each later task of
# the process would fail.


logger = logging.getLogger("django_durable_tasks.runs")
# PQTRANS_INTRANS and PQTRANS_INERROR of libpq.
_IN_ERROR = 3
_OPEN_STATES = (2, _IN_ERROR)
# The bit SERVER_STATUS_IN_TRANS in the status that MySQL sends with each answer. PyMySQL shows it;
# mysqlclient does not, so that a raw BEGIN remains unnoticed there.
_IN_TRANSACTION = 1


def open_blocks() -> dict[str, int]:
    """Return how many ``atomic`` blocks are open on each connection of this thread, by alias."""
    every = connections.all(initialized_only=True)
    return {connection.alias: len(connection.atomic_blocks) for connection in every}


def prepare_for_function() -> dict[str, int]:
    """Roll back what an earlier task left open on the connections of this thread; return the
    numbers of open blocks as ``open_blocks`` does.

    Only the blocks of a TestCase belong to a caller.
    """
    every: Sequence[Any] = connections.all(initialized_only=True)
    before = {
        connection.alias: sum(bool(block._from_testcase) for block in connection.atomic_blocks)
        for connection in every
    }
    roll_back_left("An earlier task of this process", before)
    return before


def close_unused() -> None:
    """Close the connections of this thread that CONN_MAX_AGE does not keep, and that are not in a
    transaction. Called while a function does not use them.
    """
    for connection in connections.all(initialized_only=True):
        if _is_as_before(connection, 0):
            with suppress(Error):
                connection.close_if_unusable_or_obsolete()


def roll_back_left(name: str, before: Mapping[str, int]) -> list[str]:
    """Roll back what the function of the task ``name`` left open on the connections of this thread;
    return the aliases.

    ``before``: how many ``atomic`` blocks were open before the function.
    """
    aliases = []
    for connection in connections.all(initialized_only=True):
        blocks = before.get(connection.alias, 0)
        if _is_as_before(connection, blocks):
            continue
        aliases.append(connection.alias)
        if blocks:
            # As an exception would leave them.
            error = TransactionManagementError("The block was not left.")
            while len(connection.atomic_blocks) > blocks:
                with suppress(Error):
                    connection.atomic_blocks[-1].__exit__(type(error), error, None)
        else:
            _reset(connection)
    if aliases:
        logger.error(
            "%s left a transaction open, or autocommit disabled, on the connections %s. It was"
            " rolled back.",
            name,
            ", ".join(map(repr, aliases)),
            extra={"task_name": name},
        )
    return aliases


def aliases_not_as(before: Mapping[str, int]) -> list[str]:
    """Return the connections of this thread that are in another transaction or block than
    ``before``, which ``open_blocks`` or ``prepare_for_function`` returned.
    """
    every = connections.all(initialized_only=True)
    return [
        connection.alias
        for connection in every
        if not _is_as_before(connection, before.get(connection.alias, 0))
    ]


def left_open(name: str) -> TransactionManagementError:
    """Return the error of an atomic task whose function left a block of its transaction open."""
    return TransactionManagementError(
        f"The function of the atomic task {name} entered transaction.atomic() without leaving it,"
        " or left a block that it had not entered. Its writes were rolled back."
    )


def _is_as_before(connection: Any, blocks: int) -> bool:
    if blocks:
        return bool(connection.in_atomic_block) and len(connection.atomic_blocks) == blocks
    if connection.in_atomic_block:
        return False
    raw = connection.connection
    if raw is None:
        return True
    if connection.autocommit != connection.settings_dict["AUTOCOMMIT"]:
        return False
    if connection.vendor == "postgresql":
        return raw.info.transaction_status not in _OPEN_STATES
    if connection.vendor == "mysql":
        return not (getattr(raw, "server_status", 0) or 0) & _IN_TRANSACTION
    return not getattr(raw, "in_transaction", False)  # SQLite


def _reset(connection: Any) -> None:
    """Close the connection, whatever its state is; the database rolls back."""
    if connection.connection is not None:
        with suppress(Error), connection.wrap_database_errors:
            connection.connection.rollback()
    connection.in_atomic_block = connection.needs_rollback = False
    connection.closed_in_transaction = False
    connection.savepoint_ids, connection.atomic_blocks = [], []
    with suppress(Error):
        connection.close()
    if connection.connection is not None:  # SQLite in memory stays open
        with suppress(Error):
            connection.set_autocommit(connection.settings_dict["AUTOCOMMIT"])
