"""``status__standing``: where a row stands, as a guard beside its primary key and never as the way
to find it.
"""

from __future__ import annotations

from typing import Any

from django.db.models.lookups import In


class Standing(In):
    """``IN`` that no index serves on MySQL and MariaDB.

    There an UPDATE by primary key and status may go in by the index on status: it locks that entry
    before the row, and so deadlocks with everyone who locks the row first.
    """

    lookup_name = "standing"

    def process_lhs(self, compiler: Any, connection: Any, lhs: Any = None) -> tuple[str, Any]:
        """Hide the column from the optimizer of MySQL and MariaDB."""
        sql, parameters = super().process_lhs(compiler, connection, lhs)
        return (f"CONCAT({sql})" if connection.vendor == "mysql" else sql), parameters
