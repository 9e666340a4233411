"""The fast path: rows that are due now are rung at the commit of their transaction, by one hook."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from django.db import connections, transaction

from django_durable_tasks import conf, ports
from django_durable_tasks.lifecycle import limits, transitions
from django_durable_tasks.lifecycle.reckoning import surely_over
from django_durable_tasks.ports import Ring


class _Bell:
    """The one on-commit hook of a transaction (and savepoint): the rings of all rows born in it."""

    def __init__(self, savepoints: frozenset[str]) -> None:
        self.savepoints = savepoints
        self.rings: list[Ring] = []
        self.created: set[uuid.UUID] = set()
        self.rung = False

    def __call__(self) -> None:
        self.rung = True  # a test may run the hooks of a transaction that goes on; what comes then needs another one
        if self.rings:
            ports.ring(self.rings)


def _bell() -> _Bell | None:
    connection = connections[transitions.database()]
    savepoints = frozenset(connection.savepoint_ids)
    for _, hook, *_ in reversed(connection.run_on_commit):
        if isinstance(hook, _Bell) and hook.savepoints == savepoints and not hook.rung:
            return hook
    return None


def _rung_so_far() -> int:
    hooks = (hook for _, hook, *_ in connections[transitions.database()].run_on_commit)
    return sum(len(hook.rings) for hook in hooks if isinstance(hook, _Bell))


def may_be_rung(values: Mapping[str, Any]) -> bool:
    """Return whether a row of these values may be born QUEUED and rung at commit: the fast path is open for it."""
    settings = conf.settings()
    connection = connections[transitions.database()]
    if not settings.FAST_PATH:
        return False
    if not connection.in_atomic_block and not connection.get_autocommit():
        return False
    if connection.run_on_commit and _rung_so_far() >= settings.FAST_PATH_MAX:
        return False
    if values["run_at"] is not None and not surely_over(values["run_at"]):
        return False
    return ports.broker_open(values["queue"]) and limits.fast_path_open(
        values["name"], values["queue"], values["tenant_id"]
    )


def ring_after_commit(rings: Sequence[Ring]) -> None:
    """Ring these rows once their transaction has committed; at once where there is none."""
    if not connections[transitions.database()].in_atomic_block:
        ports.ring(rings)
        return
    _hook().rings.extend(rings)


def _hook() -> _Bell:
    database = transitions.database()
    bell = _bell()
    if bell is None:
        bell = _Bell(frozenset(connections[database].savepoint_ids))
        transaction.on_commit(bell, using=database, robust=True)
    return bell


def remember_until_commit(task_id: uuid.UUID) -> None:
    """Remember that this task was created in the caller's transaction, if there is one."""
    if connections[transitions.database()].in_atomic_block:
        _hook().created.add(task_id)


def is_uncommitted(task_id: uuid.UUID) -> bool:
    """Return whether this task was created in the transaction that this thread is in."""
    connection = connections[transitions.database()]
    hooks = (hook for _, hook, *_ in connection.run_on_commit if isinstance(hook, _Bell))
    return connection.in_atomic_block and any(task_id in hook.created for hook in hooks)
