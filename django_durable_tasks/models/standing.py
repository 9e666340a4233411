"""``status__standing``: the status as a condition in addition to the primary key, without the use
of an index.
"""

from __future__ import annotations

from typing import Any

from django.db.models.lookups import In


class UnindexedIn(In):
    """``IN`` for which MySQL and MariaDB use no index.

    There an UPDATE by primary key and status may use the index on status. It then locks the index
    entry before the row, and so deadlocks with transactions that lock the row first.
    """

    lookup_name = "standing"

    def process_lhs(self, compiler: Any, connection: Any, lhs: Any = None) -> tuple[str, Any]:
        """Hide the column from the optimizer of MySQL and MariaDB."""
        sql, parameters = super().process_lhs(compiler, connection, lhs)
        return (f"CONCAT({sql})" if connection.vendor == "mysql" else sql), parameters
