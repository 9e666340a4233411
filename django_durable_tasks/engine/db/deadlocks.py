"""Repeats a transaction that the database aborted because of a deadlock or serialization failure.

Rows are locked in primary-key order. However, a transaction that follows the edges of a graph finds
the rows that it needs only after it has locked others, so two of them may deadlock. The database
rolls one of them back completely (PostgreSQL documentation 13.3.4, MariaDB: InnoDB deadlocks), so
its effects are not repeated.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from django.db import OperationalError, connections

from django_durable_tasks import conf
from django_durable_tasks.engine.db.error_codes import DEADLOCKS, code_of

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
