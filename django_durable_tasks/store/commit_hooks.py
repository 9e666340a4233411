"""On-commit hooks that act once for everything that a transaction did, and publish its messages."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from django.db import connections, transaction

from django_durable_tasks import ports
from django_durable_tasks.ports import TaskMessage
from django_durable_tasks.store.tables import database

# On-commit hooks that collect what a transaction did and act on all of it after the COMMIT.
#
# Each transaction, and each open savepoint in it, has one hook of a kind, so that a rollback to
# the savepoint also removes what was collected in it.


H = TypeVar("H", bound="CommitHook")


class CommitHook:
    """A hook of the current transaction; subclasses collect values and define ``act``."""

    def __init__(self) -> None:
        self.savepoints: frozenset[str] | None = None
        """The savepoints that were open at its registration; None if it was not registered."""
        self.called = False

    def __call__(self) -> None:
        # A test may run the hooks although its transaction continues. What follows needs a new
        # hook.
        self.called = True
        self.act()

    def act(self) -> None:
        """Act on what was collected, after the COMMIT."""
        raise NotImplementedError


def in_atomic_block() -> bool:
    """Return whether this thread is in a transaction of ``atomic()``."""
    return bool(connections[database()].in_atomic_block)


def hooks(kind: type[H]) -> Iterator[H]:
    """Yield the hooks of this kind that the current transaction will call, the newest first."""
    for _, hook, *_ in reversed(connections[database()].run_on_commit):
        if isinstance(hook, kind):
            yield hook


def hook_of_transaction(
    kind: type[H], create: Callable[[], H], *, any_savepoint: bool = False
) -> H:
    """Return the hook of the current transaction and savepoint; register a new one if there is
    none.

    With ``any_savepoint`` the hook of another savepoint is used too. This is for hooks that may act
    on something that was rolled back.

    Directly in the transaction of a test each call registers a hook of its own, because
    ``captureOnCommitCallbacks`` calls only those that were registered in its block.
    """
    connection: Any = connections[database()]
    savepoints = frozenset(connection.savepoint_ids)
    if not (connection.atomic_blocks and connection.atomic_blocks[-1]._from_testcase):
        for hook in hooks(kind):
            if not hook.called and (any_savepoint or hook.savepoints == savepoints):
                return hook
    hook = create()
    hook.savepoints = savepoints
    transaction.on_commit(hook, using=database(), robust=True)
    return hook


# Publishes messages when the transaction commits, by one on-commit hook per transaction.
#
# ``tasks/enqueue.py`` and ``dependencies/edit.py`` call it.


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
