"""What ends a transactional test: the tables it wrote to are emptied, which a flush does to all,
one second a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.test import TransactionTestCase

from django_durable_tasks.engine.db.seed_rows import write_first_rows

KEPT = {"django_migrations", "django_content_type", "auth_permission"}
"""What a flush deletes and writes again as it was."""
MANY = 500
"""Of more rows than this a flush makes shorter work, and leaves no room behind that a plan would
see.
"""


def empty_tables(using: str) -> bool:
    """Delete all rows but the first ones; return False, and do nothing, where that is the work of a
    flush.
    """
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


def _counts(connection: BaseDatabaseWrapper) -> dict[str, int]:
    """Count the rows of each table up to a few too many, by one statement."""
    tables = set(connection.introspection.django_table_names(include_views=False)) - KEPT
    each = (
        f"SELECT '{table}', COUNT(*) FROM (SELECT 1 FROM {connection.ops.quote_name(table)} LIMIT"
        f" {MANY + 1}) AS few"
        for table in sorted(tables)
    )
    with connection.cursor() as cursor:
        cursor.execute(" UNION ALL ".join(each))
        return dict(cursor.fetchall())


def use_instead_of_flush() -> None:
    """Let pytest-django end its transactional tests so; one that asks for more than rows gets its
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
