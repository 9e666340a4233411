"""The database's clock in SQL, in UTC independent of the session's zone. On SQLite it is the host's
clock, always with six digits.
"""

from __future__ import annotations

from typing import Any

from django.db import models

from django_durable_tasks.models.instants import InstantField


class DatabaseNow(models.Func):
    """The time at which the database evaluates it; also current after a statement has waited for a
    lock.
    """

    template = "CURRENT_TIMESTAMP"
    output_field = InstantField()

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, template="CLOCK_TIMESTAMP()", **context)

    def as_mysql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, template="UTC_TIMESTAMP(6)", **context)

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(
            compiler,
            connection,
            template="STRFTIME('%%%%Y-%%%%m-%%%%d %%%%H:%%%%M:%%%%f000', 'NOW')",
            **context,
        )


class StatementTime(DatabaseNow):
    """The time at which the statement began: for default values, so that one INSERT writes one time
    into all columns. On PostgreSQL, `DatabaseNow` is evaluated once per column.
    """

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, template="STATEMENT_TIMESTAMP()", **context)
