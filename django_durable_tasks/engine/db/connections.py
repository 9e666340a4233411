"""Connections of our own, beside the user's.

Celery's Django fixup closes the registered connections around every task, which costs more than the
task itself. So gate, heartbeat, close and scheduler borrow one of ours, which stands in for the
registered one while they work. After a fork the child forgets the parent's connections and never
closes them: the socket is the parent's.
"""

from __future__ import annotations

import copy
import os
import threading
import time
import weakref
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django.core import mail
from django.db import Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import load_backend
from django.utils.module_loading import import_string

from django_durable_tasks import conf
from django_durable_tasks.engine.db.statements import text
from django_durable_tasks.exceptions import DurableTasksError

_LEVELS = "django.db.backends.postgresql.psycopg_any.IsolationLevel"
"""Imported when it is needed: it needs a driver of PostgreSQL."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a connection waits (seconds): for a statement, for a lock, idle inside a
    transaction.
    """

    statement: float = 15.0
    lock: float = 5.0
    idle: float = 10.0


WORK = Patience()
LEADER = Patience(statement=1.0, lock=1.0, idle=2.0)


class _Pool:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.free: dict[tuple[str, Patience], list[BaseDatabaseWrapper]] = defaultdict(list)
        self.idle_since: weakref.WeakKeyDictionary[BaseDatabaseWrapper, float] = (
            weakref.WeakKeyDictionary()
        )
        self.all: set[BaseDatabaseWrapper] = set()


IDLE_FOR = 60.0
"""Close a connection that was not used for so many seconds, while others are in use."""
_pool = _Pool()
_forgotten: list[_Pool] = []


def _forget_after_fork() -> None:
    global _pool
    _forgotten.append(_pool)
    _pool = _Pool()


os.register_at_fork(after_in_child=_forget_after_fork)

_FORK_PATIENCE = 30.0
_forks = threading.Condition(threading.RLock())
_inside: Counter[int] = Counter()
"""Which threads use a connection of ours to SQLite at this moment, and how deep."""


def _before_fork() -> None:
    """Wait until no other thread is in SQLite, and close what is open to it.

    SQLite keeps in the memory of a process which of its connections hold which locks. A child that
    is born while one does inherits that belief for good: no write of it would ever succeed (SQLite:
    How To Corrupt, 2.6).
    """
    _forks.acquire()
    me = threading.get_ident()
    _forks.wait_for(
        lambda: not [thread for thread in _inside if thread != me], timeout=_FORK_PATIENCE
    )
    with _pool.lock:
        idle = [
            connection
            for queue in _pool.free.values()
            for connection in queue
            if connection.vendor == "sqlite"
        ]
        for queue in _pool.free.values():
            queue[:] = [connection for connection in queue if connection not in idle]
    for connection in idle:
        _drop(connection)


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
def _kept_from_forks(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """Hold up forks of this process while the block is in SQLite."""
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


def _prepares(settings: dict[str, Any]) -> bool:
    wish = conf.settings().PREPARED_STATEMENTS
    return not settings.get("DISABLE_SERVER_SIDE_CURSORS") if wish is None else wish


def _options_for(
    vendor: str, patience: Patience, options: dict[str, Any], prepared: bool
) -> dict[str, Any]:
    options.pop("pool", None)
    if vendor == "postgresql":
        options |= {"server_side_binding": True, "prepare_threshold": 1 if prepared else None}
        # Our statements lock rows and judge what the lock shows; a stricter level would raise an
        # error instead.
        options["isolation_level"] = import_string(_LEVELS).READ_COMMITTED
        # Keepalives too: a server that vanished after it took the statement would be waited for for
        # two hours.
        alive = {"keepalives_idle": 5, "keepalives_interval": 3, "keepalives_count": 3}
        options = {"connect_timeout": 3, "tcp_user_timeout": 10_000} | alive | options
    elif vendor == "mysql":
        wait = max(1, round(patience.statement))
        options = {"connect_timeout": 3} | options | {"read_timeout": wait, "write_timeout": wait}
        options["isolation_level"] = "read committed"
    return options


def _limits_for(vendor: str, patience: Patience) -> list[str]:
    lock, statement, idle = (
        round(1000 * wait) for wait in (patience.lock, patience.statement, patience.idle)
    )
    if vendor == "postgresql":
        return [
            f"SET statement_timeout = {statement}",
            f"SET lock_timeout = {lock}",
            f"SET idle_in_transaction_session_timeout = {idle}",
            "SET default_transaction_isolation = 'read committed'",
        ]
    if vendor == "mysql":
        # The comment is a statement to MariaDB only: MySQL has no limit for a transaction that
        # sleeps.
        asleep = f"/*M!100300 , idle_transaction_timeout = {max(1, idle // 1000)} */"
        return [f"SET innodb_lock_wait_timeout = {max(1, lock // 1000)} {asleep}"]
    return []


def _create(alias: str, patience: Patience) -> BaseDatabaseWrapper:
    settings = copy.deepcopy(connections.settings[alias])
    vendor = connections[alias].vendor
    settings |= {
        "CONN_MAX_AGE": None,
        "CONN_HEALTH_CHECKS": False,
        "ATOMIC_REQUESTS": False,
        "AUTOCOMMIT": True,
    }
    settings["OPTIONS"] = _options_for(
        vendor, patience, dict(settings.get("OPTIONS") or {}), _prepares(settings)
    )
    connection: BaseDatabaseWrapper = load_backend(settings["ENGINE"]).DatabaseWrapper(
        settings, alias
    )
    connection.inc_thread_sharing()
    connection.ensure_connection()
    # Behind a pooler, by Django's own mark, a SET would stay on a session that others will use.
    limits = [] if settings.get("DISABLE_SERVER_SIDE_CURSORS") else _limits_for(vendor, patience)
    try:
        with connection.cursor() as cursor:
            for limit in limits:
                cursor.execute(limit)
    except BaseException:
        _drop(connection)
        raise
    if limits:
        _bounded.add(connection)
    return connection


_bounded: weakref.WeakSet[BaseDatabaseWrapper] = weakref.WeakSet()
"""Connections whose session has limits."""


def bound_transaction(patience: Patience = WORK) -> None:
    """Give the transaction of this thread's connection the limits that its session does not have;
    PostgreSQL only.

    So behind a pooler, too, nobody who froze in a transaction holds its locks for longer than that.
    """
    connection = connections[conf.settings().DATABASE]
    sql = text("bound", connection.vendor)
    if sql is None or connection in _bounded or not connection.in_atomic_block:
        return
    limits = {"lock": patience.lock, "statement": patience.statement, "idle": patience.idle}
    with connection.cursor() as hand:
        hand.execute(sql, {name: f"{round(1000 * wait)}ms" for name, wait in limits.items()})


def _borrow(alias: str, patience: Patience) -> BaseDatabaseWrapper:
    with _pool.lock:
        free = _pool.free[alias, patience]
        if free:
            return free.pop()
    connection = _create(alias, patience)
    with _pool.lock:
        _pool.all.add(connection)
    return connection


def _drop(connection: BaseDatabaseWrapper) -> None:
    with _pool.lock:
        _pool.all.discard(connection)
    try:
        connection.close()
    except Error:
        connection.connection = None


def _in_memory(alias: str) -> bool:
    return bool(getattr(connections[alias], "is_in_memory_db", bool)())


@contextmanager
def dedicated_connection(patience: Patience = WORK) -> Iterator[None]:
    """Let a connection of ours stand in for the registered one of this thread while the block runs.

    A connection on which the database failed is dropped. An in-memory SQLite database has only one
    connection: there the registered one stays.
    """
    alias = conf.settings().DATABASE
    if _in_memory(alias):
        yield
        return
    before = connections[alias]
    with _kept_from_forks(before):
        yield from _lend(alias, patience, before)


def _lend(alias: str, patience: Patience, before: BaseDatabaseWrapper) -> Iterator[None]:
    connection = _borrow(alias, patience)
    connections[alias] = connection
    sound = False
    try:
        yield
        sound = True
    except DurableTasksError:
        sound = True
        raise
    finally:
        # After any other exception the driver may have been hit in the middle of a statement: not
        # to be trusted.
        connections[alias] = before
        if sound:
            _give_back(alias, patience, connection)
        else:
            _drop(connection)


def _give_back(alias: str, patience: Patience, connection: BaseDatabaseWrapper) -> None:
    """Keep a connection for the next borrower, and close the one that nobody has wanted for
    longest, if for long.

    The last one given back is lent first, so that after a peak those at the front of the list fall
    idle.
    """
    now, idle = time.monotonic(), None
    with _pool.lock:
        free = _pool.free[alias, patience]
        free.append(connection)
        _pool.idle_since[connection] = now
        if len(free) > 1 and now - _pool.idle_since.get(free[0], now) > IDLE_FOR:
            idle = free.pop(0)
    if idle is not None:
        _drop(idle)


def cursor() -> Any:
    """Return a cursor of this thread's connection, on PostgreSQL one that prepares its statements
    on the server.
    """
    connection: Any = connections[conf.settings().DATABASE]
    if (
        connection.vendor != "postgresql"
        or not _prepares(connection.settings_dict)
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
    # What Django's own cursor() does, around a cursor that binds on the server.
    return connection._prepare_cursor(connection.Database.Cursor(driver))


def in_transaction() -> bool:
    """Return whether this thread's connection to the tables is in a transaction, and so may hold a
    pooler's slot.
    """
    connection = connections[conf.settings().DATABASE]
    if connection.in_atomic_block or connection.connection is None:
        return bool(connection.in_atomic_block)
    return not connection.get_autocommit()


def in_test_run() -> bool:
    """Return whether Django's test runner has set this process up.

    It drops its database at the end, which PostgreSQL refuses while one of our connections is open.
    """
    return hasattr(mail, "outbox")


def has_one_connection() -> bool:
    """Return whether the tables live in an in-memory SQLite database, which no second connection
    can see.
    """
    return _in_memory(conf.settings().DATABASE)


def on_sqlite() -> bool:
    """Return whether the tables live in SQLite, which has one writer at a time and needs more
    patience.
    """
    return connections[conf.settings().DATABASE].vendor == "sqlite"


def close_all() -> None:
    """Close every idle connection of ours; called when a process ends and between tests."""
    with _pool.lock:
        free = [connection for queue in _pool.free.values() for connection in queue]
        _pool.free.clear()
    for connection in free:
        _drop(connection)


def count() -> int:
    """Return how many connections of ours are open in this process."""
    with _pool.lock:
        return len(_pool.all)
