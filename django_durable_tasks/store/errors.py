"""Errors of databases: recognized by code, explained, retried, and kept to one item of a batch."""

from __future__ import annotations

import functools
import logging
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar

from django.apps import apps
from django.db import (
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    InternalError,
    OperationalError,
    connections,
)
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper

from django_durable_tasks import conf, process_state
from django_durable_tasks.store import tables

# Recognizes errors of databases by their codes. Their texts are in the language of the server.


SERIALIZATION_FAILURE = "40001"
ABORTED = "25P02"
"""The code of a statement in a transaction of PostgreSQL that an earlier error has aborted."""
# A code is an SQLSTATE of PostgreSQL, a number of MySQL and MariaDB, or a name of SQLite.
DEADLOCKS = frozenset({"40P01", SERIALIZATION_FAILURE, 1213})
LOCK_TIMEOUTS = frozenset({"55P03", 1205})
STATEMENT_TIMEOUT = "57014"
# The driver of SQLite raises OperationalError for every statement that is wrong.
_WRONG_STATEMENTS = frozenset({"SQLITE_ERROR"})
# The drivers of MySQL raise OperationalError for each error that they do not know, for example an
# unknown column or a missing value. With these codes the server, not the statement, is the cause:
# full disks and tables, refused, ended and idle connections, read-only servers, shutdown.
_UNAVAILABLE = frozenset(
    {
        *(1021, 1030, 1040, 1041, 1042, 1043, 1045, 1047, 1053, 1077, 1078, 1079, 1080, 1081),
        *(1114, 1129, 1130, 1152, 1153, 1154, 1155, 1156, 1157, 1158, 1159, 1160, 1161, 1184),
        *(1203, 1226, 1290, 1317, 1792, 1836, 1927, 3032, 3168, 4031),
    }
)
# Errors of the client library, as a lost connection.
_OF_CLIENT = range(2000, 3000)
UNDEFINED = frozenset({"42P01", "42703", 1146, 1054})
"""Undefined table or column. SQLite has no code of its own for them."""
_TAKEN = frozenset(
    {
        *("23505", 1062, 1586),
        *("SQLITE_CONSTRAINT_UNIQUE", "SQLITE_CONSTRAINT_PRIMARYKEY", "SQLITE_CONSTRAINT_ROWID"),
    }
)


def code_of(error: BaseException) -> str | int | None:
    """Return the code of an error of Django's database layer; None if the database sent none, as
    for a lost connection.
    """
    first = error.args[0] if error.args else None
    if isinstance(first, int):
        return first
    # Of psycopg 3, psycopg 2 and sqlite3.
    names = ("sqlstate", "pgcode", "sqlite_errorname")
    codes = (getattr(error.__cause__, name, None) for name in names)
    return next((code for code in codes if code is not None), None)


def is_about_a_statement(code: str | int | None) -> bool:
    """Return whether an OperationalError with this code is caused by its statement, not by the
    server or the connection.
    """
    if isinstance(code, int):
        return code not in _UNAVAILABLE and code not in _OF_CLIENT
    return code in _WRONG_STATEMENTS


def is_unique_violation(error: IntegrityError) -> bool:
    """Return whether a unique or primary key is taken."""
    return code_of(error) in _TAKEN


# Repeats a transaction that the database aborted because of a deadlock or serialization failure.
#
# Rows are locked in primary-key order. However, a transaction that follows the edges of a graph
# finds the rows that it needs only after it has locked others, so two of them may deadlock. The
# database rolls one of them back completely (PostgreSQL documentation 13.3.4, MariaDB: InnoDB
# deadlocks), so its effects are not repeated.


P = ParamSpec("P")
R = TypeVar("R")
_TRIES = 5


def retry_on_deadlock(act: Callable[P, R]) -> Callable[P, R]:
    """Decorator: repeat a function that is one transaction after a deadlock or serialization
    failure.

    After _TRIES attempts the error is raised. Inside a transaction it is raised at once, because
    only the caller can repeat that transaction.
    """

    @functools.wraps(act)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        for remaining in reversed(range(_TRIES)):
            try:
                return act(*args, **kwargs)
            except OperationalError as error:
                connection = connections[conf.settings().DATABASE]
                outside = connection.get_autocommit() and not connection.in_atomic_block
                if not (outside and remaining and code_of(error) in DEADLOCKS):
                    raise
        raise AssertionError

    return wrapper


# Prevents one item that fails from stopping the other items of its batch.
#
# A batch of a maintenance job is one transaction, so one item can make the whole batch fail: a
# callable of the project raises an exception or calls sys.exit(), a value is corrupted, or another
# transaction has locked a row. The items are then handled one by one. An item that fails again is
# postponed, so that the next batches leave it out. An outage of the database of the tasks is
# raised and postpones nothing.


logger = logging.getLogger("django_durable_tasks.isolation")
K = TypeVar("K", bound=Hashable)
_FIRST_PAUSE, _LONGEST_PAUSE = 10.0, 600.0
_ALONE_FOR = 10.0
_MOST = 1_000
_ABOUT_SOME_ROWS = DEADLOCKS | LOCK_TIMEOUTS | {STATEMENT_TIMEOUT}


def is_of_another_database(error: BaseException) -> bool:
    """Return whether a connection to another database of the project raised the error.

    The traceback contains the connection, because Django raises its errors in a method of it.
    """
    alias = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        owner = frame.f_locals.get("self")
        if isinstance(owner, CursorWrapper):
            owner = owner.db
        if isinstance(owner, BaseDatabaseWrapper):
            alias = owner.alias
    return alias not in (None, tables.database())


def is_outage(error: BaseException) -> bool:
    """Return whether the cause is the database of the tasks, not a wrong statement or a locked
    row.
    """
    if is_of_another_database(error):
        return False
    if not isinstance(error, OperationalError):
        return isinstance(error, InterfaceError)
    code = code_of(error)
    return code not in _ABOUT_SOME_ROWS and not is_about_a_statement(code)


def may_be_caused_by_an_item(error: BaseException) -> bool:
    """Return whether one item of a batch can have caused the error.

    This is False for a lost connection or a missing column.
    """
    if not isinstance(error, Error) or is_of_another_database(error):
        return True
    about_rows = isinstance(error, OperationalError) and code_of(error) in _ABOUT_SOME_ROWS
    return about_rows or isinstance(error, DataError | IntegrityError | InternalError)


@dataclass(slots=True)
class _Postponed:
    until: float
    pause: float


class PostponedItems:
    """The postponed items of every kind of batch in this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.of: defaultdict[Isolation[Any], dict[Any, _Postponed]] = defaultdict(dict)


class Isolation(Generic[K]):
    """The batches of one maintenance job in this process, and the items that it has postponed."""

    def __init__(self, kind: str) -> None:
        """``kind`` is the name of an item in log messages."""
        self._kind = kind

    @property
    def _items(self) -> dict[K, _Postponed]:
        return process_state.of(PostponedItems).of[self]

    @property
    def _lock(self) -> threading.Lock:
        return process_state.of(PostponedItems).lock

    def postponed(self) -> list[K]:
        """Return the items to leave out of the next batch, at most 1,000."""
        now = time.monotonic()
        with self._lock:
            return [key for key, item in self._items.items() if item.until > now]

    def batch(
        self,
        batch: Callable[[], R],
        items: Callable[[], Sequence[K]],
        alone: Callable[[K], R],
        on_failure: Callable[[K, BaseException], object] | None = None,
    ) -> list[R]:
        """Handle a batch in one transaction; if one of its items may make it fail, handle
        ``items()`` one by one.

        Return the results of the calls. Items that are not reached within 10 s are left to the next
        batch. ``on_failure`` is called instead of postponing an item, unless the error may be
        temporary (a lock). Raises errors that cannot be caused by an item.
        """
        try:
            return [batch()]
        except (Exception, SystemExit) as error:
            if not may_be_caused_by_an_item(error):
                raise
            logger.warning(
                "A batch of %s failed; its items are retried one by one: %r", self._kind, error
            )
        return self.each(items(), alone, on_failure)

    def each(
        self,
        items: Iterable[K],
        alone: Callable[[K], R],
        on_failure: Callable[[K, BaseException], object] | None = None,
    ) -> list[R]:
        """Handle items in a transaction each, except the postponed ones; postpone the ones that
        fail.

        Items that are not reached within 10 s are left to the next call.
        """
        end, results, left_out = time.monotonic() + _ALONE_FOR, list[R](), set(self.postponed())
        for key in items:
            if time.monotonic() > end:
                break
            if key in left_out:
                continue
            try:
                results.append(alone(key))
            except (Exception, SystemExit) as error:
                if not may_be_caused_by_an_item(error):
                    raise
                if on_failure is None or isinstance(error, OperationalError):
                    self._postpone(key, error)
                else:
                    on_failure(key, error)
            else:
                if self._items:
                    with self._lock:
                        self._items.pop(key, None)
        return results

    def _postpone(self, key: K, error: BaseException) -> None:
        """Postpone an item by 10 s, or by twice its last delay up to 10 min if it has failed
        before.
        """
        now = time.monotonic()
        with self._lock:
            old = [key for key, item in self._items.items() if item.until < now - _LONGEST_PAUSE]
            before = self._items.pop(key, None)
            for dropped in old if len(self._items) < _MOST else [*old, next(iter(self._items))]:
                self._items.pop(dropped, None)
            pause = _FIRST_PAUSE if before is None else min(2 * before.pause, _LONGEST_PAUSE)
            self._items[key] = _Postponed(now + pause, pause)
        logger.error(
            "%s %s failed and is postponed for %g s; the others continue: %s: %s",
            self._kind,
            key,
            pause,
            type(error).__name__,
            error,
            exc_info=error if before is None else None,
        )


# Explains why the database cannot be used: it is unavailable, or its tables do not fit this
# release.
#
# The management commands call it.


_PREFIX = "durable_tasks_"
# SQLite has one code for all wrong statements, and one language.
_MISSING_IN_SQLITE = ("no such table", "no such column", "has no column named")


def is_unmigrated(error: BaseException) -> bool:
    """Return whether a table or column of this package is missing: ``migrate`` has not run."""
    text = str(error)
    return _PREFIX in text and (code_of(error) in UNDEFINED or text.startswith(_MISSING_IN_SQLITE))


def reason_of(error: BaseException) -> str:
    """Return why the database could not be used, with the remedy if there is one.

    The text contains no data of rows.
    """
    if is_unmigrated(error):
        alias, where = conf.settings().DATABASE, ""
        if alias != "default":
            # The app whose table the error names: this package or an optional app.
            named = [model for model in apps.get_models() if model._meta.db_table in str(error)]
            longest = max(named, key=lambda model: len(model._meta.db_table), default=None)
            app = "django_durable_tasks" if longest is None else longest._meta.app_label
            where = f" {app} --database {alias}"
        return (
            f"the tables of django_durable_tasks in database {alias!r} are missing or older than"
            f" this release ({str(error).splitlines()[0]}); run `manage.py migrate{where}`"
        )
    kind = type(error).__name__
    if is_outage(error):
        return f"the database is unavailable ({kind})"
    if isinstance(error, DataError | IntegrityError):
        return f"the database refused a value ({kind})"
    return f"the database refused a statement ({kind}: {str(error).partition(chr(10))[0]})"
