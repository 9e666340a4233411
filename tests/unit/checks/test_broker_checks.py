"""The system checks of the broker in the database report its misconfigurations, and nothing else."""

from __future__ import annotations

import copy
from contextlib import suppress
from typing import Any

import pytest
from django.db import connections

from django_durable_tasks.checks import FINDINGS as OF_THE_CORE
from django_durable_tasks.checks import check_celery
from django_durable_tasks.contrib.database_transport import due_tasks
from django_durable_tasks.contrib.database_transport.checks import FINDINGS, check_broker
from tests.celery_settings import celery_configured

SQLITE = "django.db.backends.sqlite3"
POSTGRESQL = "django.db.backends.postgresql"


def _ids(url: Any) -> list[str]:
    with celery_configured(broker_url=url, broker_read_url=url, broker_write_url=url):
        return [str(message.id).removeprefix("durable_tasks.") for message in check_broker()]


@pytest.fixture
def add_database(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Add an entry of DATABASES, which is never connected."""

    def add(alias: str, engine: str, **changes: Any) -> None:
        entry = copy.deepcopy(connections.settings["default"])
        entry |= {"ENGINE": engine, "NAME": "/var/shop.sqlite3", "OPTIONS": {}, **changes}
        monkeypatch.setitem(connections.settings, alias, entry)
        with suppress(AttributeError):  # unless an entry is replaced
            del connections[alias]

    return add


@pytest.mark.parametrize("url", ["memory://", "redis://localhost/0", "durable-filesystem:///var"])
def test_other_brokers_have_no_findings(url: str) -> None:
    assert _ids(url) == []


@pytest.mark.parametrize(
    "url",
    [
        "durable-database://default",
        "durable-database://",
        "durable-database://localhost//",
        "durable-database://DEFAULT/?x=1",
        "durable-database://default;redis://localhost/0",
        ["durable-database://default", "redis://localhost/0"],
    ],
)
def test_a_broker_in_the_database_of_the_tasks_has_no_findings(url: Any) -> None:
    assert _ids(url) == []
    with celery_configured(broker_url=url, broker_read_url=url, broker_write_url=url):
        assert due_tasks.takes_tasks()


def test_an_alias_that_is_not_in_databases_is_an_error() -> None:
    assert _ids("durable-database://elsewhere") == ["E026"]
    with celery_configured(broker_write_url="durable-database://elsewhere"):
        [message] = check_broker()
        assert "'elsewhere'" in message.msg
        assert "it has: default" in message.msg
        assert not due_tasks.takes_tasks()


def test_a_broker_in_another_database_than_the_tasks_is_a_warning(add_database: Any) -> None:
    add_database("Broker", SQLITE)
    assert _ids("durable-database://broker") == ["W024"]
    with celery_configured(broker_write_url="durable-database://broker"):
        assert not due_tasks.takes_tasks()


def test_an_in_memory_database_is_an_error_unless_it_is_of_a_test_run(
    add_database: Any, settings: Any
) -> None:
    settings.DURABLE_TASKS = {"DATABASE": "shop"}
    names = {
        ":memory:": ["E027"],
        "file:shop?mode=memory&cache=shared": ["E027"],
        "file:memorydb_shop?mode=memory&cache=shared": [],
        "/var/shop.sqlite3": [],
    }
    for name, expected in names.items():
        add_database("shop", SQLITE, NAME=name, TEST={"NAME": None})
        assert _ids("durable-database://shop") == expected, name


def test_a_pooler_without_a_direct_connection_is_a_warning(
    add_database: Any, settings: Any
) -> None:
    pytest.importorskip("psycopg")
    add_database("pooled", POSTGRESQL, DISABLE_SERVER_SIDE_CURSORS=True)
    add_database("direct", POSTGRESQL)
    settings.DURABLE_TASKS = {"DATABASE": "pooled"}
    assert _ids("durable-database://pooled") == ["W025"]
    settings.DURABLE_TASKS = {"DATABASE": "pooled", "LISTEN_DATABASE": "direct"}
    assert _ids("durable-database://pooled") == []
    settings.DURABLE_TASKS = {"DATABASE": "direct"}
    assert _ids("durable-database://direct") == []


def test_invalid_settings_of_the_package_are_reported_by_its_own_check(settings: Any) -> None:
    settings.DURABLE_TASKS = {"LEASE": 0}
    assert _ids("durable-database://default") == []


def test_messages_are_not_prefetched_if_workers_take_the_tasks() -> None:
    with celery_configured(
        broker_write_url="durable-database://default", worker_prefetch_multiplier=4
    ):
        assert "durable_tasks.W005" not in [message.id for message in check_celery()]


def test_the_ids_of_the_findings_are_unique() -> None:
    assert not FINDINGS.keys() & OF_THE_CORE.keys()
