"""Statements that a prefork child executes without cursors."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from django.db import OperationalError, ProgrammingError, connections, transaction

from django_durable_tasks.engine.db import direct
from django_durable_tasks.engine.db.connections import close_all, dedicated_connection
from tests.factories import a_task

pytestmark = [pytest.mark.postgresql, pytest.mark.django_db(transaction=True)]
_PRIORITY = "UPDATE durable_tasks_task SET priority = %(new)s WHERE id = %(id)s"


@pytest.fixture(autouse=True)
def used(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(direct, "_process", direct._Process())
    direct.use()
    yield
    close_all()


def _rows(sql: str, **parameters: object) -> list[tuple[object, ...]]:
    with dedicated_connection():
        result = direct.execute(sql, parameters)
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
    assert direct.execute("SELECT 1", {}) is None
    with dedicated_connection(), transaction.atomic():
        assert direct.execute("SELECT 1", {}) is None
        assert direct.execute_together([("SELECT 1", {})]) is None


def test_an_error_is_raised_as_django_raises_it_and_the_connection_is_replaced() -> None:
    with pytest.raises(ProgrammingError) as raised, dedicated_connection():
        direct.execute("SELECT * FROM nowhere", {})
    assert raised.value.__cause__ is not None
    assert raised.value.__cause__.sqlstate == "42P01"  # type: ignore[attr-defined]
    assert _rows("SELECT 1") == [(1,)]


def test_statements_together_are_one_transaction() -> None:
    first, second = a_task(), a_task()
    changes: list[direct.Statement] = [
        (_PRIORITY, {"id": row.pk, "new": 7}) for row in (first, second)
    ]
    with dedicated_connection():
        results = direct.execute_together(changes)
    assert results is not None
    assert [result.number for result in results] == [1, 1]
    with pytest.raises(ProgrammingError), dedicated_connection():
        direct.execute_together(
            [(_PRIORITY, {"id": first.pk, "new": 1}), ("SELECT * FROM nowhere", {})]
        )
    failing: list[direct.Statement] = [
        (_PRIORITY, {"id": first.pk, "new": 2}),
        ("SELECT 1 / %(n)s::int", {"n": 0}),
    ]
    with pytest.raises(Exception, match="division by zero"), dedicated_connection():
        direct.execute_together(failing)
    for row in (first, second):
        row.refresh_from_db()
        assert row.priority == 7


def test_a_lost_connection_is_an_operational_error() -> None:
    statements: list[direct.Statement] = [("SELECT 1", {}), ("SELECT 2", {})]
    with dedicated_connection():
        direct.execute_together(statements)
        pid = connections["default"].connection.info.backend_pid
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
    with pytest.raises(OperationalError), dedicated_connection():
        direct.execute_together(statements)
    assert _rows("SELECT 1") == [(1,)]
