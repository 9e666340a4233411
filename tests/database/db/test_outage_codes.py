"""An error of a wrong statement or a refused value is no outage, in any database; a lost connection is."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction

from django_durable_tasks.store.errors import is_outage

pytestmark = pytest.mark.django_db(transaction=True)
STATEMENTS = (
    "SELECT nope FROM django_content_type",
    "SELECT 1 FROM no_such_table",
    "INSERT INTO django_content_type (id) VALUES (-1)",
    "INSERT INTO django_content_type (app_label, model, nope) VALUES ('a', 'b', 'c')",
    "INSERT INTO django_content_type (app_label, model) VALUES ('a')",
    "SELECT no_such_function(1)",
    "SELEC 1",
    "UPDATE django_content_type SET id = NULL",
)


@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_wrong_statement_is_no_outage(statement: str) -> None:
    error = _error_of(statement)
    assert not is_outage(error), repr(error)


def test_a_lost_connection_is_an_outage() -> None:
    if connection.vendor == "sqlite":
        pytest.skip("SQLite has no server that ends a connection")
    other = connection.copy()
    try:
        with other.cursor() as cursor:
            cursor.execute(_OWN_ID[connection.vendor])
            (number,) = cursor.fetchone()
        with connection.cursor() as cursor:
            cursor.execute(_END[connection.vendor] % number)
        with pytest.raises(DatabaseError) as caught, other.cursor() as cursor:
            cursor.execute("SELECT 1")
        assert is_outage(caught.value), repr(caught.value)
    finally:
        other.close()


_OWN_ID: dict[str, str] = {
    "postgresql": "SELECT pg_backend_pid()",
    "mysql": "SELECT CONNECTION_ID()",
}
_END: dict[str, str] = {"postgresql": "SELECT pg_terminate_backend(%d)", "mysql": "KILL %d"}


def _error_of(statement: str) -> BaseException:
    caught: Any
    with (
        pytest.raises(DatabaseError) as caught,
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute(statement)
    error: BaseException = caught.value
    return error
