"""The system check of the database server. It connects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage
from django.db import NotSupportedError, connections, transaction

from django_durable_tasks.checks.configuration import listed, registered_options, valid_settings
from django_durable_tasks.checks.findings import FINDINGS
from django_durable_tasks.models.fields import ExactCharField, exact_collation
from django_durable_tasks.store.statements import text

OLDEST: dict[str, tuple[int, ...]] = {
    "PostgreSQL": (14,),
    "MySQL": (8, 0, 17),
    "MariaDB": (10, 6),
    "SQLite": (3, 35),
}


def check_database(
    app_configs: Any = None, databases: Iterable[str] | None = None, **_: Any
) -> list[CheckMessage]:
    """Check the server of the database that stores the tasks; connects."""
    settings = valid_settings()
    if settings is None or settings.DATABASE not in (databases or ()):
        return []
    connection = connections[settings.DATABASE]
    try:
        version = tuple(connection.get_database_version())
    except NotSupportedError as too_old:
        return [FINDINGS["E012"](found=str(too_old).rstrip("."))]
    product = connection.display_name
    if product not in OLDEST or version < OLDEST[product]:
        return [FINDINGS["E012"](found=f"{product} {'.'.join(map(str, version))}")]
    found = [*_inexact_columns(connection), *_encoding(connection), *_left_limits(connection)]
    if connection.vendor == "mysql":
        return [*found, *_isolation(connection)]
    if connection.vendor == "postgresql":
        return [*found, *_isolation_of_atomic(connection, settings.DATABASE)]
    return [*found, *_sqlite(connection)] if connection.vendor == "sqlite" else found


_API = "django_durable_tasks.contrib.api"
_LIMITING = ("durable_tasks_staff_tenant", "durable_tasks_tenant_quota")


def _left_limits(connection: Any) -> Iterator[CheckMessage]:
    """Find limits of users and tenants that nothing enforces, because the app was removed."""
    if apps.is_installed(_API):
        return
    for table in {*_LIMITING} & {*connection.introspection.table_names()}:
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT 1 FROM {connection.ops.quote_name(table)} LIMIT 1")  # noqa: S608 - a constant
            if cursor.fetchone() is not None:
                yield FINDINGS["E024"](table=table, app=_API)


def exact_columns() -> dict[str, set[str]]:
    """Return the columns of each table that compare texts exactly."""
    found: dict[str, set[str]] = {}
    for model in apps.get_models():
        for field in model._meta.local_fields:
            if type(field) is ExactCharField:
                found.setdefault(model._meta.db_table, set()).add(str(field.column))
    return found


def _inexact_columns(connection: Any) -> Iterator[CheckMessage]:
    """Find columns with another collation than their field has: of tables that were converted, or
    created by an older release.
    """
    sql = text("inexact_columns", connection.vendor)
    if sql is None:
        return
    wanted, collation = exact_columns(), exact_collation(connection)
    with connection.cursor() as cursor:
        cursor.execute(sql, {"exact": collation})
        rows = [row for row in cursor.fetchall() if row[1] in wanted.get(row[0], ())]
    if not rows:
        return
    tables = dict.fromkeys(table for table, _, _ in rows)
    remedy = "change them to the default collation of the database"
    if collation is not None:
        remedy = " ".join(
            f"ALTER TABLE {table} CONVERT TO CHARACTER SET utf8mb4 COLLATE {collation};"
            for table in tables
        )
    yield FINDINGS["E022"](
        columns=listed([f"{table}.{column} ({name})" for table, column, name in rows]),
        remedy=remedy,
    )


def _encoding(connection: Any) -> Iterator[CheckMessage]:
    """Find an encoding that cannot store every text."""
    show = {
        "postgresql": "SHOW server_encoding",
        "mysql": "SHOW VARIABLES LIKE 'character_set_connection'",
    }
    if connection.vendor not in show:
        return
    with connection.cursor() as cursor:
        cursor.execute(show[connection.vendor])
        name = str(cursor.fetchone()[-1])
    if name not in ("UTF8", "utf8mb4"):
        yield FINDINGS["E023"](name=name)


def _isolation(connection: Any) -> Iterator[CheckMessage]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SHOW VARIABLES WHERE Variable_name IN ('transaction_isolation', 'tx_isolation')"
        )
        levels = {str(value).replace("-", " ").upper() for _, value in cursor.fetchall()}
    if levels != {"READ COMMITTED"}:
        yield FINDINGS["E013"](found=", ".join(sorted(levels)))


def _isolation_of_atomic(connection: Any, alias: str) -> Iterator[CheckMessage]:
    names = [task.name for task in registered_options() if task.atomic]
    if not names:
        return
    with transaction.atomic(using=alias), connection.cursor() as cursor:
        cursor.execute("SHOW transaction_isolation")
        level = str(cursor.fetchone()[0]).upper()
    if level not in ("READ COMMITTED", "READ UNCOMMITTED"):
        yield FINDINGS["E017"](names=listed(names), alias=alias, level=level)


def _sqlite(connection: Any) -> Iterator[CheckMessage]:
    if connection.is_in_memory_db():
        return
    missing = []
    if (
        str((connection.settings_dict.get("OPTIONS") or {}).get("transaction_mode")).upper()
        != "IMMEDIATE"
    ):
        missing.append("transactions do not begin IMMEDIATE")
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA journal_mode")
        mode = str(cursor.fetchone()[0])
    if mode.lower() != "wal":
        missing.append(f"the journal is {mode!r}, not WAL")
    if missing:
        yield FINDINGS["W008"](missing="; ".join(missing))
