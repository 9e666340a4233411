"""Prevents one item that fails from stopping the other items of its batch.

A batch of a maintenance job is one transaction, so one item can make the whole batch fail: a
callable of the project raises an exception or calls sys.exit(), a value is corrupted, or another
transaction has locked a row. The items are then handled one by one. An item that fails again is
postponed, so that the next batches leave it out. An outage of the database of the tasks is raised
and postpones nothing.
"""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from django.db import (
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    InternalError,
    OperationalError,
)
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper

from django_durable_tasks import process_state
from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.db.error_codes import (
    DEADLOCKS,
    LOCK_TIMEOUTS,
    STATEMENT_TIMEOUT,
    code_of,
    is_about_a_statement,
)

logger = logging.getLogger("django_durable_tasks.isolation")
K = TypeVar("K", bound=Hashable)
R = TypeVar("R")
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
        end, found, left_out = time.monotonic() + _ALONE_FOR, list[R](), set(self.postponed())
        for key in items:
            if time.monotonic() > end:
                break
            if key in left_out:
                continue
            try:
                found.append(alone(key))
            except (Exception, SystemExit) as error:
                if not may_be_caused_by_an_item(error):
                    raise
                if on_failure is None or isinstance(error, OperationalError):
                    self._postpone(key, error)
                else:
                    on_failure(key, error)
            else:
                self._worked(key)
        return found

    def _postpone(self, key: K, error: BaseException) -> None:
        """Postpone an item by 10 s, or by twice its last delay up to 10 min if it has failed
        before.
        """
        now = time.monotonic()
        with self._lock:
            old = [key for key, item in self._items.items() if item.until < now - _LONGEST_PAUSE]
            before = self._items.pop(key, None)
            for one in old if len(self._items) < _MOST else [*old, next(iter(self._items))]:
                self._items.pop(one, None)
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

    def _worked(self, key: K) -> None:
        if self._items:
            with self._lock:
                self._items.pop(key, None)
