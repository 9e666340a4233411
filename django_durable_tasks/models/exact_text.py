"""A text column whose values are equal only if they are the same characters, on every database.

PostgreSQL and SQLite compare texts byte by byte. The default collations of MySQL and MariaDB ignore
case, accents and trailing blanks, so two keys of a project would be one key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import models
from django.db.models.lookups import IContains

# MariaDB's utf8mb4_bin ignores trailing blanks, and MySQL has no utf8mb4_nopad_bin.
_OF_MARIADB, _OF_MYSQL = "utf8mb4_nopad_bin", "utf8mb4_0900_bin"
# Of both servers. Searches in the admin ignore case, as on the other databases.
_IGNORES_CASE = "utf8mb4_general_ci"


def exact_collation(connection: Any) -> str | None:
    """Return the collation of these columns; None if that of the database compares exactly."""
    if connection.vendor != "mysql":
        return None
    return _OF_MARIADB if connection.mysql_is_mariadb else _OF_MYSQL


# The plugin of mypy derives the types of columns from Django's own field classes.
if TYPE_CHECKING:
    ExactCharField = models.CharField
else:

    class _LikeCharField(type):
        """Lets an expression combine the field with other texts, as Case(default=Value("")) does.

        Django resolves the type of an expression by isinstance() over the classes of its parts.
        """

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, models.CharField)

    class ExactCharField(models.CharField, metaclass=_LikeCharField):
        """The CharField of all models of this package: names, keys and other short texts.

        Its collation is a property of the field, so that no column that identifies something can
        lack it. Use TextField only for texts that nothing compares.
        """

        def db_parameters(self, connection: Any) -> Any:
            """Add the collation that compares exactly."""
            return super().db_parameters(connection) | {"collation": exact_collation(connection)}


class _ContainsIgnoringCase(IContains):
    """``icontains``. LIKE of MySQL and MariaDB compares by the collation of the column."""

    def process_lhs(self, compiler: Any, connection: Any, lhs: Any = None) -> Any:
        sql, parameters = super().process_lhs(compiler, connection, lhs)
        if connection.vendor == "mysql":
            sql = f"CONVERT({sql} USING utf8mb4) COLLATE {_IGNORES_CASE}"
        return sql, parameters


ExactCharField.register_lookup(_ContainsIgnoringCase)
