"""System checks of the broker in the database. None of them connects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.core.checks import CheckMessage, register
from django.db import connections

from django_durable_tasks.checks import ProjectFinding, valid_settings
from django_durable_tasks.contrib.database_transport.due_tasks import broker_name, find_alias
from django_durable_tasks.store.dialects import POSTGRESQL, SQLITE

_FINDINGS = (
    ProjectFinding(
        "E026",
        "The URL of the broker names the database {name!r}, which DATABASES does not have (it has:"
        " {known}).",
        "Write CELERY_BROKER_URL = 'durable-database://<alias>' with an alias of DATABASES.",
    ),
    ProjectFinding(
        "E027",
        "The broker is in the in-memory database {alias!r} of SQLite: each connection has a"
        " database of its own, so that no worker finds a message.",
        "Store the database in a file, or use PostgreSQL, MySQL or MariaDB.",
    ),
    ProjectFinding(
        "W024",
        "The broker is in the database {alias!r} and DURABLE_TASKS['DATABASE'] is {tasks!r}:"
        " schedulers publish durable tasks as messages, which are not committed together with"
        " their rows.",
        "Write CELERY_BROKER_URL = 'durable-database://{tasks}': workers then take due tasks from"
        " their table.",
    ),
    ProjectFinding(
        "W025",
        "DISABLE_SERVER_SIDE_CURSORS is set for the database {alias!r}, as for a transaction"
        " pooler, through which no notification arrives: idle workers find tasks and messages by"
        " polling, up to a second late.",
        "Name an entry of DATABASES with a direct connection to this PostgreSQL in"
        " DURABLE_TASKS['LISTEN_DATABASE'].",
    ),
)
FINDINGS = {finding.id: finding for finding in _FINDINGS}
"""The text and the remedy of each finding, by its id."""


@register("durable_tasks")
def check_broker(app_configs: Any = None, **_: Any) -> list[CheckMessage]:
    """Check the database that the URL of the broker names, if it names one."""
    return list(_found())


def _found() -> Iterator[CheckMessage]:
    name = broker_name()
    if name is None:
        return
    alias = find_alias(name)
    if alias is None:
        yield FINDINGS["E026"](name=name, known=", ".join(sorted(connections)))
        return
    connection: Any = connections[alias]
    # Not the database of a test run, into which Django turns one in a file: the checks of
    # `manage.py test` must not fail because of it.
    if (
        connection.vendor == SQLITE
        and connection.is_in_memory_db()
        and connection.settings_dict["NAME"] != connection.creation._get_test_db_name()
    ):
        yield FINDINGS["E027"](alias=alias)
    settings = valid_settings()
    if settings is None:
        return  # reported as E001 or E002
    if alias != settings.DATABASE:
        yield FINDINGS["W024"](alias=alias, tasks=settings.DATABASE)
    elif (
        connection.vendor == POSTGRESQL
        and connection.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS")
        and settings.LISTEN_DATABASE is None
    ):
        yield FINDINGS["W025"](alias=alias)
