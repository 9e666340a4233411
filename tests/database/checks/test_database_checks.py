"""The database check connects and reports servers that are too old or configured to lose data."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core import checks as django_checks
from django.core.checks import Tags
from django.db import NotSupportedError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.module_loading import import_string

from django_durable_tasks import registry
from django_durable_tasks.checks import OLDEST, check_database
from django_durable_tasks.contrib.api import access
from tests.database.api.client import a_tenant

pytestmark = pytest.mark.django_db
LEVELS = "django.db.backends.postgresql.psycopg_any.IsolationLevel"


def _ids(**options: Any) -> list[str]:
    return [str(message.id).removeprefix("durable_tasks.") for message in check_database(**options)]


def test_the_database_of_this_run_passes() -> None:
    assert _ids(databases=["default"]) == []


def test_limits_of_staff_users_that_are_left_without_their_app_are_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("django_durable_tasks.checks._API", "an.app.that.was.removed")
    assert _ids(databases=["default"]) == []
    User.objects.create_user("ann", is_staff=True)
    access.assign_staff(a_tenant("acme"), "ann")
    assert _ids(databases=["default"]) == ["E024"]


def test_the_check_connects_only_to_databases_that_django_selects() -> None:
    assert _ids(databases=None) == _ids(databases=["other"]) == []
    registered: list[Any] = list(django_checks.registry.registry.get_checks())
    assert check_database in registered
    assert Tags.database in registered[registered.index(check_database)].tags


def test_an_old_server_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    product = connections["default"].display_name
    monkeypatch.setitem(OLDEST, product, (99, 9))
    [message] = check_database(databases=["default"])
    assert message.id == "durable_tasks.E012"
    assert product in message.msg
    assert _ids(databases=["default"]) == ["E012"]


def test_an_untested_server_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(OLDEST, connections["default"].display_name)
    assert _ids(databases=["default"]) == ["E012"]


def test_a_server_that_django_itself_refuses_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise NotSupportedError("PostgreSQL 14 or later is required (found 12.1).")

    monkeypatch.setattr(connections["default"], "get_database_version", refuse)
    [message] = check_database(databases=["default"])
    assert (message.id, message.msg) == (
        "durable_tasks.E012",
        "The database is not supported: PostgreSQL 14 or later is required (found 12.1).",
    )


def test_the_minimum_versions_are_the_documented_ones() -> None:
    assert OLDEST == {
        "PostgreSQL": (14,),
        "MySQL": (8, 0, 17),
        "MariaDB": (10, 6),
        "SQLite": (3, 35),
    }


@pytest.fixture
def elsewhere(settings: Any) -> Iterator[Any]:
    """Return a function that opens a second connection with other options, which the check then
    uses as the default one.
    """
    before, made = connections["default"], list[BaseDatabaseWrapper]()

    def connect(**changes: Any) -> None:
        connection = before.copy()
        connection.settings_dict.update(changes)
        connection.inc_thread_sharing()
        made.append(connection)
        connections["default"] = connection

    yield connect
    connections["default"] = before
    for connection in made:
        # The method of SQLite ignores this call for a database in memory. Then Python would warn in
        # a later test, in which the garbage collector finds the connection.
        BaseDatabaseWrapper.close(connection)


@pytest.mark.mariadb
def test_a_connection_that_cannot_send_every_text_is_an_error(elsewhere: Any) -> None:
    options = connections["default"].settings_dict["OPTIONS"]
    elsewhere(OPTIONS={**options, "charset": "latin1"})
    assert _ids(databases=["default"]) == ["E023"]


@pytest.mark.postgresql
def test_a_database_that_cannot_store_every_text_is_an_error(elsewhere: Any) -> None:
    name, before = f"durable_latin_{uuid.uuid4().hex[:12]}", connections["default"]
    with before._nodb_cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name} ENCODING 'LATIN1' TEMPLATE template0 LOCALE 'C'")
        try:
            elsewhere(NAME=name)
            assert _ids(databases=["default"]) == ["E023"]
        finally:
            connections["default"].close()
            connections["default"] = before
            cursor.execute(f"DROP DATABASE {name}")


@pytest.mark.mariadb
@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_another_isolation_level_is_an_error(elsewhere: Any, level: str) -> None:
    options = connections["default"].settings_dict["OPTIONS"]
    elsewhere(OPTIONS={**options, "isolation_level": level})
    [message] = check_database(databases=["default"])
    assert message.id == "durable_tasks.E013"
    assert level.upper() in message.msg
    elsewhere(OPTIONS={**options, "isolation_level": "read committed"})
    assert _ids(databases=["default"]) == []


@pytest.mark.postgresql
@pytest.mark.parametrize("level", ["REPEATABLE_READ", "SERIALIZABLE"])
def test_atomic_tasks_under_a_stricter_isolation_level_are_an_error(
    elsewhere: Any, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "tests.project.tasks.write_name"
    # The message names the first few tasks; those that other tests registered must not count.
    monkeypatch.setattr(registry, "_tasks", {name: registry.get(name)})
    options, levels = connections["default"].settings_dict["OPTIONS"], import_string(LEVELS)
    elsewhere(OPTIONS={**options, "isolation_level": levels[level]})
    [message] = check_database(databases=["default"])
    assert message.id == "durable_tasks.E017"
    assert level.replace("_", " ") in message.msg
    assert name in message.msg
    elsewhere(OPTIONS={**options, "isolation_level": levels.READ_COMMITTED})
    assert _ids(databases=["default"]) == []


@pytest.mark.sqlite
def test_a_file_without_wal_or_immediate_transactions_is_a_warning(
    elsewhere: Any, tmp_path: Path
) -> None:
    elsewhere(NAME=str(tmp_path / "plain.sqlite3"), OPTIONS={})
    [message] = check_database(databases=["default"])
    assert message.id == "durable_tasks.W008"
    assert "do not begin IMMEDIATE; the journal is 'delete', not WAL" in message.msg
    elsewhere(NAME=str(tmp_path / "half.sqlite3"), OPTIONS={"transaction_mode": "IMMEDIATE"})
    assert _ids(databases=["default"]) == ["W008"]
    whole = {"transaction_mode": "immediate", "init_command": "PRAGMA journal_mode=WAL"}
    elsewhere(NAME=str(tmp_path / "whole.sqlite3"), OPTIONS=whole)
    assert _ids(databases=["default"]) == []


@pytest.mark.sqlite
def test_a_database_in_memory_needs_neither(elsewhere: Any) -> None:
    elsewhere(NAME=":memory:", OPTIONS={})
    assert _ids(databases=["default"]) == []
