"""The engine's own connections: their timeouts, and the settings they must not leave on pooled
sessions.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.db.backends.signals import connection_created
from django.utils.module_loading import import_string

from django_durable_tasks.choices import Status
from django_durable_tasks.states.claims import RUN_COLUMNS, run_of
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.store.connections import (
    close_all,
    count,
    cursor,
    dedicated_connection,
    name_connections,
)
from django_durable_tasks.store.errors import retry_on_deadlock
from tests.factories import a_task

LEVELS = "django.db.backends.postgresql.psycopg_any.IsolationLevel"
pytestmark = [pytest.mark.postgresql, pytest.mark.django_db(transaction=True)]


@pytest.fixture(autouse=True)
def new_connections() -> Iterator[None]:
    close_all()
    yield
    close_all()


def _limits() -> dict[str, str]:
    with dedicated_connection(), connections["default"].cursor() as cursor:
        cursor.execute(
            "SELECT name, source FROM pg_settings WHERE name IN"
            " ('statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout')"
        )
        return dict(cursor.fetchall())


def test_every_wait_of_an_engine_connection_has_a_timeout() -> None:
    assert set(_limits().values()) == {"session"}


def _set(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Change the settings of the database for connections that are opened from now on."""
    settings: dict[str, Any] = connection.settings_dict
    options = {**settings["OPTIONS"], **changes.pop("OPTIONS", {})}
    changed = {**settings, **changes, "OPTIONS": options}
    monkeypatch.setitem(connections.settings, "default", changed)


def _isolation() -> str:
    with connections["default"].cursor() as cursor:
        cursor.execute("SHOW transaction_isolation")
        return str(cursor.fetchone()[0])


def test_behind_a_pooler_no_timeout_remains_on_a_shared_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _set(monkeypatch, DISABLE_SERVER_SIDE_CURSORS=True)
    assert "session" not in _limits().values()


@pytest.mark.parametrize("behind_a_pooler", [False, True])
def test_engine_connections_are_read_committed_whatever_the_project_sets(
    monkeypatch: pytest.MonkeyPatch, behind_a_pooler: bool
) -> None:
    options = {"isolation_level": import_string(LEVELS).SERIALIZABLE}
    _set(monkeypatch, OPTIONS=options, DISABLE_SERVER_SIDE_CURSORS=behind_a_pooler)
    with dedicated_connection(), transaction.atomic():
        assert _isolation() == "read committed"


def test_engine_statements_outside_of_a_transaction_are_read_committed_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _set(monkeypatch, OPTIONS={"options": "-c default_transaction_isolation=serializable"})
    with dedicated_connection():
        assert _isolation() == "read committed"


def test_a_serialization_failure_is_retried_like_a_deadlock() -> None:
    tries: list[int] = []

    @retry_on_deadlock
    def act() -> int:
        tries.append(1)
        if len(tries) < 3:
            with connection.cursor() as cursor:
                cursor.execute(
                    "DO $$ BEGIN RAISE EXCEPTION 'conflict' USING ERRCODE = '40001'; END $$"
                )
        return len(tries)

    assert act() == 3


def test_connections_of_a_peak_are_closed_after_they_have_been_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with dedicated_connection(), dedicated_connection(), dedicated_connection():
        pass
    assert count() == 3
    with dedicated_connection():
        pass
    assert count() == 3
    monkeypatch.setattr("django_durable_tasks.process_state.IDLE_FOR", 0.0)
    for left in (2, 1, 1):
        with dedicated_connection():
            pass
        assert count() == left


def test_a_binary_cursor_reads_the_values_that_other_cursors_read() -> None:
    now = database_now()
    row = a_task(Status.RUNNING, args=[1, "é"], kwargs={"a": None}, fire_time=now, queued_at=now)
    sql = f"SELECT {', '.join(RUN_COLUMNS)} FROM durable_tasks_task"
    found = []
    for binary in (False, True):
        with dedicated_connection(), cursor(binary=binary) as one:
            one.execute(sql)
            assert one.cursor.pgresult.fformat(0) == binary
            (values,) = one.fetchall()
            found.append(run_of(values))
    assert found[0] == found[1]
    assert found[1].run_id == row.run_id
    assert found[1].args == [1, "é"]
    assert found[1].started_at.utcoffset() == timedelta()


@pytest.mark.parametrize("process", ["scheduler a", "worker celery@" + "ü" * 60])
def test_the_connections_of_a_process_have_its_name(
    monkeypatch: pytest.MonkeyPatch, process: str
) -> None:
    monkeypatch.delenv("PGAPPNAME", raising=False)
    name_connections(process)
    with dedicated_connection(), connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('application_name')")
        (name,) = cursor.fetchone()
    # The server replaces what is not ASCII.
    assert name.startswith(f"durable {process}"[:22])
    monkeypatch.setenv("PGAPPNAME", "of the operator")
    name_connections(process)
    assert os.environ["PGAPPNAME"] == "of the operator"


def test_a_connection_whose_setup_fails_is_closed() -> None:
    """It was closed by the garbage collector, some time later."""
    opened = list[Any]()

    def refuse(connection: Any, **_: Any) -> None:
        opened.append(connection)
        raise RuntimeError("refused")

    connection_created.connect(refuse)
    try:
        with pytest.raises(RuntimeError, match="refused"), dedicated_connection():
            pass
    finally:
        connection_created.disconnect(refuse)
    assert [one.connection for one in opened] == [None]
