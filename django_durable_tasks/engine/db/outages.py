"""Explains why the database cannot be used: it is unavailable, or its tables do not fit this
release.

The management commands call it.
"""

from __future__ import annotations

from django.db import DataError, IntegrityError

from django_durable_tasks import conf
from django_durable_tasks.engine.db.error_codes import UNDEFINED, code_of
from django_durable_tasks.engine.db.isolation import is_outage

_PREFIX = "durable_tasks_"
# SQLite has one code for all wrong statements, and one language.
_MISSING_IN_SQLITE = ("no such table", "no such column", "has no column named")


def is_unmigrated(error: BaseException) -> bool:
    """Return whether a table or column of this package is missing: ``migrate`` has not run."""
    text = str(error)
    return _PREFIX in text and (code_of(error) in UNDEFINED or text.startswith(_MISSING_IN_SQLITE))


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
    kind = type(error).__name__
    if is_outage(error):
        return f"the database is unavailable ({kind})"
    if isinstance(error, DataError | IntegrityError):
        return f"the database refused a value ({kind})"
    return f"the database refused a statement ({kind}: {str(error).partition(chr(10))[0]})"
