"""A missing table is distinguished from an unavailable database."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import Error, OperationalError, connection, transaction

from django_durable_tasks.store.errors import is_unmigrated, reason_of

pytestmark = pytest.mark.django_db


def _refused(sql: str) -> Error:
    with pytest.raises(Error) as raised, transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(sql)
    return raised.value


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1 FROM durable_tasks_absent",
        "INSERT INTO durable_tasks_absent VALUES (1)",
        "SELECT durable_tasks_task.absent FROM durable_tasks_task",
    ],
)
def test_a_missing_table_or_column_of_the_package_is_a_missing_migration(
    sql: str, settings: Any
) -> None:
    error = _refused(sql)
    assert is_unmigrated(error), error
    assert "run `manage.py migrate`" in reason_of(error)
    assert "\n" not in reason_of(error)
    settings.DURABLE_TASKS = {"DATABASE": "tasks"}
    assert "run `manage.py migrate django_durable_tasks --database tasks`" in reason_of(error)


def test_the_remedy_names_the_optional_app_whose_table_is_missing(settings: Any) -> None:
    settings.DURABLE_TASKS = {"DATABASE": "tasks"}
    name = "durable_tasks_notification_event"
    error = _refused(f"SELECT {name}.absent FROM {name}")
    assert "migrate durable_tasks_notifications --database tasks`" in reason_of(error)


def test_other_errors_are_not_a_missing_migration() -> None:
    for error in (
        _refused("SELECT 1 FROM shop_absent"),
        OperationalError("server closed the connection"),
    ):
        assert not is_unmigrated(error)
        assert "migrate" not in reason_of(error)


def test_a_refused_statement_is_no_outage_and_its_error_is_named() -> None:
    reason = reason_of(_refused("SELECT 1 FROM shop_absent"))
    assert reason.startswith("the database refused a statement (")
    assert "shop_absent" in reason
    assert "\n" not in reason
    lost = reason_of(OperationalError("server closed the connection"))
    assert lost == "the database is unavailable (OperationalError)"


def test_a_refused_value_is_not_named() -> None:
    error = _refused("UPDATE durable_tasks_tenant SET slug = NULL")
    assert reason_of(error) == "the database refused a value (IntegrityError)"
