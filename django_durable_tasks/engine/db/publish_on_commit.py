"""Publishes messages when the transaction commits, by one on-commit hook per transaction.

``engine/tasks/insert.py`` and ``engine/dependencies/edit.py`` call it.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from django.db import connections, transaction

from django_durable_tasks import ports
from django_durable_tasks.engine.db import tables
from django_durable_tasks.ports import TaskMessage


class _PublishHook:
    """The on-commit hook of a transaction or savepoint: publishes all messages added in it."""

    def __init__(self, savepoints: frozenset[str]) -> None:
        self.savepoints = savepoints
        self.messages: list[TaskMessage] = []
        self.created: set[uuid.UUID] = set()
        self.called = False

    def __call__(self) -> None:
        # A test may run the hooks although its transaction continues. Later messages need a new
        # hook.
        self.called = True
        if self.messages:
            ports.publish(self.messages)


def _registered_hook() -> _PublishHook | None:
    connection = connections[tables.database()]
    savepoints = frozenset(connection.savepoint_ids)
    for _, hook, *_ in reversed(connection.run_on_commit):
        if isinstance(hook, _PublishHook) and hook.savepoints == savepoints and not hook.called:
            return hook
    return None


def messages_so_far() -> int:
    """Return how many messages will be published when the current transaction commits."""
    hooks = (hook for _, hook, *_ in connections[tables.database()].run_on_commit)
    return sum(len(hook.messages) for hook in hooks if isinstance(hook, _PublishHook))


def publish_after_commit(messages: Sequence[TaskMessage]) -> None:
    """Publish these messages after the COMMIT, or at once if there is no transaction."""
    if not connections[tables.database()].in_atomic_block:
        ports.publish(messages)
        return
    _hook().messages.extend(messages)


def _hook() -> _PublishHook:
    database = tables.database()
    hook = _registered_hook()
    if hook is None:
        hook = _PublishHook(frozenset(connections[database].savepoint_ids))
        transaction.on_commit(hook, using=database, robust=True)
    return hook


def remember_until_commit(task_id: uuid.UUID) -> None:
    """Record that this task was created in the current transaction, if there is one."""
    if connections[tables.database()].in_atomic_block:
        _hook().created.add(task_id)


def is_uncommitted(task_id: uuid.UUID) -> bool:
    """Return whether this task was created in the current transaction of this thread."""
    connection = connections[tables.database()]
    hooks = (hook for _, hook, *_ in connection.run_on_commit if isinstance(hook, _PublishHook))
    return connection.in_atomic_block and any(task_id in hook.created for hook in hooks)
