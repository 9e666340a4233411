"""Explains why the database cannot be used: it is unavailable, or its tables do not fit this
release.

The management commands call it.
"""

from __future__ import annotations

from django_durable_tasks import conf

_PREFIX = "durable_tasks_"
_MISSING = frozenset({"42P01", "42703", 1146, 1054})
"""Undefined table and undefined column: PostgreSQL's SQLSTATE, MySQL's and MariaDB's numbers."""
_MISSING_IN_SQLITE = ("no such table", "no such column", "has no column named")


def is_unmigrated(error: BaseException) -> bool:
    """Return whether a table or column of this package is missing: ``migrate`` has not run."""
    text = str(error)
    codes = {getattr(error.__cause__, "sqlstate", None), *error.args[:1]}
    return _PREFIX in text and (
        not _MISSING.isdisjoint(codes) or text.startswith(_MISSING_IN_SQLITE)
    )


def reason_of(error: BaseException) -> str:
    """Return why the database could not be used, with the remedy if there is one.

    The text contains no data of rows.
    """
    if is_unmigrated(error):
        alias = conf.settings().DATABASE
        where = "" if alias == "default" else f" django_durable_tasks --database {alias}"
        return (
            f"the tables of django_durable_tasks in database {alias!r} are missing or older than"
            f" this release ({str(error).splitlines()[0]}); run `manage.py migrate{where}`"
        )
    return f"the database is unavailable ({type(error).__name__})"
