"""A transaction that the database ended because of a deadlock or a serialization failure is done
again.

Rows are locked in primary-key order, but who follows a graph downwards learns which rows it needs
only while it holds others, and two who do so may wait for each other. The database ends one of them
whole (PostgreSQL documentation 13.3.4, MariaDB: InnoDB deadlocks), so that doing it again is doing
it once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from django.db import OperationalError, connections

from django_durable_tasks import conf

P = ParamSpec("P")
R = TypeVar("R")
_TRIES = 5
SERIALIZATION_FAILURE = "40001"
_DEADLOCKS = frozenset({"40P01", SERIALIZATION_FAILURE, 1213})
LOCKED = frozenset({"55P03", 1205})
"""A row stayed locked for longer than the connection waits (``code_of``)."""


def code_of(error: OperationalError) -> Any:
    """Return what the database calls this error: PostgreSQL's SQLSTATE, MariaDB's number."""
    first = error.args[0] if error.args else None
    return first if isinstance(first, int) else getattr(error.__cause__, "sqlstate", None)


def retry_on_deadlock(act: Callable[P, R]) -> Callable[P, R]:
    """Let a verb, which is one transaction, be done again after a deadlock or a serialization
    failure.

    In a transaction of the caller it fails: only the caller can do that again.
    """

    @functools.wraps(act)
    def again(*args: P.args, **kwargs: P.kwargs) -> R:
        for left in reversed(range(_TRIES)):
            try:
                return act(*args, **kwargs)
            except OperationalError as error:
                connection = connections[conf.settings().DATABASE]
                alone = connection.get_autocommit() and not connection.in_atomic_block
                if not (alone and left and code_of(error) in _DEADLOCKS):
                    raise
        raise AssertionError

    return again
