"""Functions that leave a transaction of the project's connection open."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from django.contrib.auth.models import Group
from django.db import DatabaseError, connection, transaction

from django_durable_tasks import durable_task
from tests.project.observed import SLOWLY

_entered: list[Any] = []
"""Keeps the blocks alive, as a generator that was not closed does."""


def _enter(**options: Any) -> None:
    block: Any = transaction.atomic(**options)
    block.__enter__()
    _entered.append(block)


def _fail() -> None:
    with suppress(DatabaseError), connection.cursor() as cursor:
        cursor.execute("SELECT * FROM no_such_table")


def leave(ways: list[str], raises: bool) -> str:
    """Do these things one after another and leave them so; write a row before and after."""
    Group.objects.create(name="kept" if not ways else "lost before")
    for way in ways:
        match way:
            case "atomic":
                _enter()
            case "without savepoint":
                _enter(savepoint=False)
            case "fails":
                _fail()
            case "autocommit" if not connection.in_atomic_block:
                transaction.set_autocommit(False)
            case "begins" if not connection.in_atomic_block and connection.get_autocommit():
                with connection.cursor() as cursor:
                    cursor.execute("BEGIN")
            case "closes":
                connection.close()
            case "interrupted":
                connection.in_atomic_block = True
            case "writes":
                with suppress(DatabaseError, transaction.TransactionManagementError):
                    Group.objects.create(name="lost")
    if raises:
        raise ValueError("after it")
    return "left"


WAYS = (
    *("atomic", "without savepoint", "fails", "autocommit", "begins", "closes"),
    *("interrupted", "writes"),
)
leave_alone = durable_task(name="tests.leaving.alone", **SLOWLY)(leave)
leave_in_batch = durable_task(name="tests.leaving.batch", batch=20, **SLOWLY)(leave)
leave_atomically = durable_task(name="tests.leaving.atomic", atomic=True, **SLOWLY)(leave)
LANES = (leave_alone, leave_in_batch, leave_atomically)
