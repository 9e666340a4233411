"""Recognizes errors of databases by their codes. Their texts are in the language of the server."""

from __future__ import annotations

from django.db import IntegrityError

SERIALIZATION_FAILURE = "40001"
ABORTED = "25P02"
"""The code of a statement in a transaction of PostgreSQL that an earlier error has aborted."""
# A code is an SQLSTATE of PostgreSQL, a number of MySQL and MariaDB, or a name of SQLite.
DEADLOCKS = frozenset({"40P01", SERIALIZATION_FAILURE, 1213})
LOCK_TIMEOUTS = frozenset({"55P03", 1205})
STATEMENT_TIMEOUT = "57014"
# The driver of SQLite raises OperationalError for every statement that is wrong.
_WRONG_STATEMENTS = frozenset({"SQLITE_ERROR"})
# The drivers of MySQL raise OperationalError for each error that they do not know, for example an
# unknown column or a missing value. With these codes the server, not the statement, is the cause:
# full disks and tables, refused, ended and idle connections, read-only servers, shutdown.
_UNAVAILABLE = frozenset(
    {
        *(1021, 1030, 1040, 1041, 1042, 1043, 1045, 1047, 1053, 1077, 1078, 1079, 1080, 1081),
        *(1114, 1129, 1130, 1152, 1153, 1154, 1155, 1156, 1157, 1158, 1159, 1160, 1161, 1184),
        *(1203, 1226, 1290, 1317, 1792, 1836, 1927, 3032, 3168, 4031),
    }
)
# Errors of the client library, as a lost connection.
_OF_CLIENT = range(2000, 3000)
UNDEFINED = frozenset({"42P01", "42703", 1146, 1054})
"""Undefined table or column. SQLite has no code of its own for them."""
_TAKEN = frozenset(
    {
        *("23505", 1062, 1586),
        *("SQLITE_CONSTRAINT_UNIQUE", "SQLITE_CONSTRAINT_PRIMARYKEY", "SQLITE_CONSTRAINT_ROWID"),
    }
)


def code_of(error: BaseException) -> str | int | None:
    """Return the code of an error of Django's database layer; None if the database sent none, as
    for a lost connection.
    """
    first = error.args[0] if error.args else None
    if isinstance(first, int):
        return first
    # Of psycopg 3, psycopg 2 and sqlite3.
    names = ("sqlstate", "pgcode", "sqlite_errorname")
    codes = (getattr(error.__cause__, name, None) for name in names)
    return next((code for code in codes if code is not None), None)


def is_about_a_statement(code: str | int | None) -> bool:
    """Return whether an OperationalError with this code is caused by its statement, not by the
    server or the connection.
    """
    if isinstance(code, int):
        return code not in _UNAVAILABLE and code not in _OF_CLIENT
    return code in _WRONG_STATEMENTS


def is_unique_violation(error: IntegrityError) -> bool:
    """Return whether a unique or primary key is taken."""
    return code_of(error) in _TAKEN
