"""Statements that a prefork child executes without cursors."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from django.db import OperationalError, ProgrammingError, connections, transaction

from django_durable_tasks.store import postgresql
from django_durable_tasks.store.connections import close_all, dedicated_connection

pytestmark = [pytest.mark.postgresql, pytest.mark.django_db(transaction=True)]


@pytest.fixture(autouse=True)
def used(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(postgresql, "_process", postgresql._Process())
    postgresql.use_directly()
    yield
    close_all()


def _rows(sql: str, **parameters: object) -> list[tuple[object, ...]]:
    with dedicated_connection():
        result = postgresql.execute_directly(sql, parameters)
    assert result is not None
    return result.rows


def test_values_arrive_as_by_a_cursor() -> None:
    at = datetime(2026, 3, 1, 12, tzinfo=UTC)
    sql = (
        "SELECT %(a)s::int + 1, %(b)s::text, %(at)s::timestamptz, %(none)s::text, %(b)s::text,"
        " %(many)s::text[], '{\"x\": [1]}'::jsonb, '100%%'"
    )
    text = "quote ' \" \\ \u00e9"
    given = {"a": 2, "b": text, "at": at, "none": None, "many": ["a,b", "c"]}
    expected = (3, text, at, None, text, ["a,b", "c"], {"x": [1]}, "100%")
    for _ in range(2):
        assert _rows(sql, **given) == [expected]


def test_other_connections_and_open_transactions_use_cursors() -> None:
    assert postgresql.execute_directly("SELECT 1", {}) is None
    with dedicated_connection(), transaction.atomic():
        assert postgresql.execute_directly("SELECT 1", {}) is None


def test_an_error_is_raised_as_django_raises_it_and_the_connection_is_replaced() -> None:
    with pytest.raises(ProgrammingError) as raised, dedicated_connection():
        postgresql.execute_directly("SELECT * FROM nowhere", {})
    assert raised.value.__cause__ is not None
    assert raised.value.__cause__.sqlstate == "42P01"  # type: ignore[attr-defined]
    assert _rows("SELECT 1") == [(1,)]


def test_a_lost_connection_is_an_operational_error() -> None:
    with dedicated_connection():
        postgresql.execute_directly("SELECT 1", {})
        pid = connections["default"].connection.info.backend_pid
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
    with pytest.raises(OperationalError), dedicated_connection():
        postgresql.execute_directly("SELECT 1", {})
    assert _rows("SELECT 1") == [(1,)]


def test_a_connection_that_is_lost_without_a_message_of_the_server_is_an_operational_error() -> (
    None
):
    with dedicated_connection():
        postgresql.execute_directly("SELECT 1", {})
        with socket.socket(fileno=os.dup(connections["default"].connection.fileno())) as link:
            link.shutdown(socket.SHUT_RDWR)
    with pytest.raises(OperationalError), dedicated_connection():
        postgresql.execute_directly("SELECT 1", {})
    assert _rows("SELECT 1") == [(1,)]
