"""The fast path: rows that are due now are rung at the commit of their transaction, by one hook."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from django.db import connections, transaction

from django_durable_tasks import ports
from django_durable_tasks.engine.db import tables
from django_durable_tasks.ports import TaskMessage


class _Bell:
    """The one on-commit hook of a transaction (and savepoint): the rings of all rows born in it."""

    def __init__(self, savepoints: frozenset[str]) -> None:
        self.savepoints = savepoints
        self.messages: list[TaskMessage] = []
        self.created: set[uuid.UUID] = set()
        self.rung = False

    def __call__(self) -> None:
        # a test may run the hooks of a transaction that goes on; what comes then needs another one
        self.rung = True
        if self.messages:
            ports.publish(self.messages)


def _bell() -> _Bell | None:
    connection = connections[tables.database()]
    savepoints = frozenset(connection.savepoint_ids)
    for _, hook, *_ in reversed(connection.run_on_commit):
        if isinstance(hook, _Bell) and hook.savepoints == savepoints and not hook.rung:
            return hook
    return None


def messages_so_far() -> int:
    """Return how many messages wait for the commit of the transaction that this thread is in."""
    hooks = (hook for _, hook, *_ in connections[tables.database()].run_on_commit)
    return sum(len(hook.messages) for hook in hooks if isinstance(hook, _Bell))


def publish_after_commit(messages: Sequence[TaskMessage]) -> None:
    """Ring these rows once their transaction has committed; at once where there is none."""
    if not connections[tables.database()].in_atomic_block:
        ports.publish(messages)
        return
    _hook().messages.extend(messages)


def _hook() -> _Bell:
    database = tables.database()
    bell = _bell()
    if bell is None:
        bell = _Bell(frozenset(connections[database].savepoint_ids))
        transaction.on_commit(bell, using=database, robust=True)
    return bell


def remember_until_commit(task_id: uuid.UUID) -> None:
    """Remember that this task was created in the caller's transaction, if there is one."""
    if connections[tables.database()].in_atomic_block:
        _hook().created.add(task_id)


def is_uncommitted(task_id: uuid.UUID) -> bool:
    """Return whether this task was created in the transaction that this thread is in."""
    connection = connections[tables.database()]
    hooks = (hook for _, hook, *_ in connection.run_on_commit if isinstance(hook, _Bell))
    return connection.in_atomic_block and any(task_id in hook.created for hook in hooks)
