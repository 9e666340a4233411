"""On-commit hooks that collect what a transaction did and act on all of it after the COMMIT.

Each transaction, and each open savepoint in it, has one hook of a kind, so that a rollback to the
savepoint also removes what was collected in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from django.db import connections, transaction

from django_durable_tasks.engine.db.tables import database

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


def _savepoints() -> frozenset[str]:
    return frozenset(connections[database()].savepoint_ids)


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
    """
    savepoints = _savepoints()
    for hook in hooks(kind):
        if not hook.called and (any_savepoint or hook.savepoints == savepoints):
            return hook
    hook = create()
    hook.savepoints = savepoints
    transaction.on_commit(hook, using=database(), robust=True)
    return hook
