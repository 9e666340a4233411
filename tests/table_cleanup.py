"""Deletes the rows of a transactional test at its end. Django's flush would truncate every table,
which takes a second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.test import TransactionTestCase

from django_durable_tasks.store.tables import write_first_rows

KEPT = {"django_migrations", "django_content_type", "auth_permission"}
"""Tables whose rows a flush deletes and inserts again unchanged."""
MANY = 500
"""Above this number of rows a flush is faster, and leaves no free space that would change query
plans.
"""


def empty_tables(using: str) -> bool:
    """Delete all rows except the seed rows. Returns False, and does nothing, if a flush is needed."""
    connection = connections[using]
    counts = _counts(connection)
    if any(number > MANY for number in counts.values()):
        return False
    touched = [table for table, number in counts.items() if number]
    with (
        transaction.atomic(using),
        connection.constraint_checks_disabled(),
        connection.cursor() as cursor,
    ):
        for table in touched:
            cursor.execute(f"DELETE FROM {connection.ops.quote_name(table)}")
    write_first_rows(using=using)
    return True


def truncate_tables(using: str) -> None:
    """Delete all rows except the seed rows, as a flush does but without signals. PostgreSQL only."""
    connection = connections[using]
    names = map(connection.ops.quote_name, sorted(_tables(connection)))
    with connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {', '.join(names)} CASCADE")
    write_first_rows(using=using)


def _tables(connection: BaseDatabaseWrapper) -> set[str]:
    return set(connection.introspection.django_table_names(include_views=False)) - KEPT


def _counts(connection: BaseDatabaseWrapper) -> dict[str, int]:
    """Count the rows of each table up to the maximum, in one statement."""
    each = (
        f"SELECT '{table}', COUNT(*) FROM (SELECT 1 FROM {connection.ops.quote_name(table)} LIMIT"
        f" {MANY + 1}) AS few"
        for table in sorted(_tables(connection))
    )
    with connection.cursor() as cursor:
        cursor.execute(" UNION ALL ".join(each))
        return dict(cursor.fetchall())


def use_instead_of_flush() -> None:
    """Use this at the end of pytest-django's transactional tests. A test that needs more gets its
    flush.
    """
    before = TransactionTestCase.__dict__["_fixture_teardown"]
    flush: Callable[[Any], None] = getattr(
        before, "__func__", before
    )  # since Django 6 it belongs to the class

    def emptied(case: Any) -> None:
        plain = (
            case.available_apps is None
            and not case.serialized_rollback
            and not case.reset_sequences
        )
        if not plain or not all(map(empty_tables, case._databases_names(include_mirrors=False))):
            flush(case)

    setattr(TransactionTestCase, "_fixture_teardown", classmethod(emptied))  # noqa: B010 - the stubs do not know it
