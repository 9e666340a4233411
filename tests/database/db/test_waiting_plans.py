"""What looks at waiting tasks reads them by an index and not the whole table."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_durable_tasks.cluster import status
from django_durable_tasks.limits import release
from django_durable_tasks.models import Task
from django_durable_tasks.store.clock import database_now
from tests.factories import many_tasks

pytestmark = [pytest.mark.postgresql, pytest.mark.django_db(transaction=True)]
_READS: dict[str, Callable[[], Any]] = {
    "aging": lambda: release.age(database_now(), 0.5, 100),
    "unknown names": lambda: status._unknown({"tests.project.tasks.noop"}),
    "due tasks": lambda: list(Task.objects.due(database_now()).order_by("-pk")[:50]),
}


@pytest.fixture(autouse=True)
def ended_tasks() -> None:
    """Insert many ended tasks, and a few that wait for their messages or for a batch."""
    many_tasks(1, "SUCCESS")
    with connection.cursor() as cursor:
        columns = [field.column for field in Task._meta.concrete_fields if not field.primary_key]
        names = ", ".join(f'"{name}"' for name in columns)
        cursor.execute(
            f"INSERT INTO durable_tasks_task (id, {names})"
            f" SELECT gen_random_uuid(), {names} FROM durable_tasks_task,"
            " generate_series(1, 20000)"
        )
        many_tasks(20)
        many_tasks(20, in_batch=True)
        cursor.execute("ANALYZE durable_tasks_task")


@pytest.mark.parametrize("name", _READS)
def test_ended_tasks_are_not_read(name: str) -> None:
    with CaptureQueriesContext(connection) as captured:
        _READS[name]()
    reads = [one["sql"] for one in captured if re.match("(SELECT|\\(SELECT)", one["sql"])]
    assert any("durable_tasks_task" in sql for sql in reads)
    for sql in reads:
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN {sql}")
            plan = "\n".join(line for (line,) in cursor.fetchall())
        assert "Seq Scan on durable_tasks_task" not in plan, f"{sql}\n{plan}"
