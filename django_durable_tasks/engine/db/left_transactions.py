"""Rolls back transactions that a task function left open on the project's connections.

Django marks a connection that is closed in such a transaction as unusable. Each later task of the
process would fail.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from django.db import Error, connections
from django.db.transaction import TransactionManagementError

logger = logging.getLogger("django_durable_tasks.runs")
# PQTRANS_INTRANS and PQTRANS_INERROR of libpq.
_OPEN_STATES = (2, 3)
# The bit SERVER_STATUS_IN_TRANS in the status that MySQL sends with each answer. PyMySQL shows it;
# mysqlclient does not, so that a raw BEGIN remains unnoticed there.
_IN_TRANSACTION = 1


def open_blocks() -> dict[str, int]:
    """Return how many ``atomic`` blocks are open on each connection of this thread, by alias."""
    return {one.alias: len(one.atomic_blocks) for one in connections.all(initialized_only=True)}


def roll_back_left(name: str, before: Mapping[str, int] | None = None) -> list[str]:
    """Roll back what the function of the task ``name`` left open on the connections of this thread;
    return the aliases.

    ``before``: how many ``atomic`` blocks were open before the function. Without it only those of
    a TestCase belong to a caller.
    """
    left = []
    for connection in connections.all(initialized_only=True):
        own = _of_test_case(connection) if before is None else before.get(connection.alias, 0)
        if _is_as_before(connection, own):
            continue
        left.append(connection.alias)
        if own:
            _leave_blocks(connection, own)
        else:
            _reset(connection)
    if left:
        logger.error(
            "%s left a transaction open, or autocommit disabled, on the connections %s. It was"
            " rolled back.",
            name,
            ", ".join(map(repr, left)),
            extra={"task_name": name},
        )
    return left


def left_open(name: str) -> TransactionManagementError:
    """Return the error of an atomic task whose function left a block of its transaction open."""
    return TransactionManagementError(
        f"The function of the atomic task {name} entered transaction.atomic() without leaving it,"
        " or left a block that it had not entered. Its writes were rolled back."
    )


def _of_test_case(connection: Any) -> int:
    return sum(bool(block._from_testcase) for block in connection.atomic_blocks)


def _is_as_before(connection: Any, own: int) -> bool:
    if own:
        return bool(connection.in_atomic_block) and len(connection.atomic_blocks) == own
    if connection.in_atomic_block:
        return False
    raw = connection.connection
    if raw is None:
        return True
    if connection.autocommit != connection.settings_dict["AUTOCOMMIT"]:
        return False
    if connection.vendor == "postgresql":
        return raw.info.transaction_status not in _OPEN_STATES
    if connection.vendor == "mysql":
        return not (getattr(raw, "server_status", 0) or 0) & _IN_TRANSACTION
    return not getattr(raw, "in_transaction", False)  # SQLite


def _leave_blocks(connection: Any, own: int) -> None:
    """Leave the blocks above the first ``own`` ones as an exception would."""
    error = TransactionManagementError("The block was not left.")
    while len(connection.atomic_blocks) > own:
        with suppress(Error):
            connection.atomic_blocks[-1].__exit__(type(error), error, None)


def _reset(connection: Any) -> None:
    """Close the connection, whatever its state is; the database rolls back."""
    if connection.connection is not None:
        with suppress(Error), connection.wrap_database_errors:
            connection.connection.rollback()
    connection.in_atomic_block = connection.needs_rollback = False
    connection.closed_in_transaction = False
    connection.savepoint_ids, connection.atomic_blocks = [], []
    with suppress(Error):
        connection.close()
    if connection.connection is not None:  # SQLite in memory stays open
        with suppress(Error):
            connection.set_autocommit(connection.settings_dict["AUTOCOMMIT"])
