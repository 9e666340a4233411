"""Access to the tables: the alias of their database, the querysets of all tasks, transactions, and
raw statements.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from django.db import connections, transaction

from django_durable_tasks import conf
from django_durable_tasks.engine.db.connections import cursor
from django_durable_tasks.models import Task
from django_durable_tasks.models.clock import DatabaseNow
from django_durable_tasks.models.task_queries import TaskQuerySet

NOW = DatabaseNow()
_TOGETHER = 100
"""So many questions are united in one statement."""


def database() -> str:
    """Return the alias of the database that holds the tables."""
    return conf.settings().DATABASE


def tasks() -> TaskQuerySet:
    """Return all tasks, as a question to narrow."""
    questions: TaskQuerySet = Task.objects.using(database()).unguarded()
    return questions


class _OwnAtomic(transaction.Atomic):
    """A transaction, or a savepoint, that the engine opened."""


def atomic() -> Any:
    """Return a transaction on the database that holds the tables."""
    return _OwnAtomic(database(), savepoint=True, durable=False)


def callers_transaction() -> bool:
    """Return whether this thread is in a transaction that the caller opened, and which may last as
    long as it likes.

    In it no RUNNING row is locked: its heartbeat and its ending would wait for the caller's commit.
    The transactions of Django's TestCase do not count, as for ``durable=True`` of Django: they are
    never committed.
    """
    connection = connections[database()]
    if not connection.in_atomic_block:
        return not connection.get_autocommit()
    blocks = connection.atomic_blocks
    return not connection.commit_on_exit or any(
        not (isinstance(block, _OwnAtomic) or getattr(block, "_from_testcase", False))
        for block in blocks
    )


def count(sql: str, parameters: dict[str, Any]) -> int:
    """Execute a statement of ours and return how many rows it wrote."""
    with cursor() as hand:
        hand.execute(sql, parameters)
        return int(hand.rowcount)


def read(sql: str, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Execute a statement of ours and return its rows."""
    with cursor() as hand:
        hand.execute(sql, parameters)
        return list(hand.fetchall())


def first_of_each(
    questions: Iterable[tuple[TaskQuerySet, int]], columns: Sequence[str]
) -> list[Any]:
    """Return these columns of the first rows of each question, at most so many of each; a hundred a
    statement.

    SQLite cannot unite what is cut: there each question costs a statement, which is a call and no
    way over a network.
    """
    asked = [question.values_list(*columns)[:number] for question, number in questions]
    if not connections[database()].features.supports_slicing_ordering_in_compound:
        return [row for question in asked for row in question]
    found: list[Any] = []
    for start in range(0, len(asked), _TOGETHER):
        one, *others = asked[start : start + _TOGETHER]
        found += one.union(*others, all=True) if others else one
    return found
