"""Publishes messages when the transaction commits, by one on-commit hook per transaction.

``engine/tasks/insert.py`` and ``engine/dependencies/edit.py`` call it.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from django_durable_tasks import ports
from django_durable_tasks.engine.db.commit_hooks import (
    CommitHook,
    hook_of_transaction,
    hooks,
    in_atomic_block,
)
from django_durable_tasks.ports import TaskMessage

# Tasks of one transaction that are published at its COMMIT. The caller waits until they are sent.
FAST_PATH_MAX = 100


class _PublishHook(CommitHook):
    """Publishes all messages added in a transaction or savepoint."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[TaskMessage] = []
        self.batches: dict[tuple[str, str], int] = {}
        self.created: set[uuid.UUID] = set()

    def act(self) -> None:
        if self.messages:
            ports.publish(self.messages)
        if self.batches:
            ports.publish_batches(self.batches)


def _hook() -> _PublishHook:
    return hook_of_transaction(_PublishHook, _PublishHook)


def messages_so_far() -> int:
    """Return how many messages will be published when the current transaction commits."""
    return sum(len(hook.messages) for hook in hooks(_PublishHook))


def publish_after_commit(messages: Sequence[TaskMessage]) -> None:
    """Publish these messages after the COMMIT, or at once if there is no transaction."""
    if not in_atomic_block():
        ports.publish(messages)
        return
    _hook().messages.extend(messages)


def start_batch_after_commit(queue: str, name: str, priority: int) -> None:
    """Publish a batch message of this queue and task name after the COMMIT if none is outstanding,
    or at once if there is no transaction.
    """
    if not in_atomic_block():
        ports.publish_batches({(queue, name): priority})
        return
    batches = _hook().batches
    batches[queue, name] = max(priority, batches.get((queue, name), 0))


def remember_until_commit(task_id: uuid.UUID) -> None:
    """Record that this task was created in the current transaction, if there is one."""
    if in_atomic_block():
        _hook().created.add(task_id)


def created_so_far() -> int:
    """Return how many tasks the current transaction has created."""
    return sum(len(hook.created) for hook in hooks(_PublishHook)) if in_atomic_block() else 0


def is_uncommitted(task_id: uuid.UUID) -> bool:
    """Return whether this task was created in the current transaction of this thread."""
    return in_atomic_block() and any(task_id in hook.created for hook in hooks(_PublishHook))
