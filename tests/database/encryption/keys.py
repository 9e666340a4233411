"""Keys for tests, and what the database contains."""

from __future__ import annotations

import base64
from typing import Any

from django.db import connection
from django.db.models import F

from django_durable_tasks.models import Task

SECRET = "4111-1111-1111-1111"


def key_of(key_id: str) -> str:
    """Return an entry of ENCRYPTION_KEYS."""
    return f"{key_id}:{base64.b64encode(key_id.encode().ljust(32, b'k')).decode()}"


def use(settings: Any, *key_ids: str) -> None:
    """Set ENCRYPTION_KEYS to the keys of these ids."""
    keys = [key_of(key_id) for key_id in key_ids]
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "ENCRYPTION_KEYS": keys}


def raw(table: str) -> str:
    """Return the contents of a table, read by SQL."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {table}")
        return repr(cursor.fetchall())


TABLES = (
    "durable_tasks_task",
    "durable_tasks_dead_letter",
    "durable_tasks_recurring_task",
    "durable_tasks_audit_entry",
    "durable_tasks_idempotent_request",
)


def assert_nowhere() -> None:
    """Assert that no table contains the secret."""
    for table in TABLES:
        assert SECRET not in raw(table), table


def queued(row: Task) -> Task:
    """Return the task as QUEUED, so that its message can be delivered."""
    row.refresh_from_db()
    if row.status != "QUEUED":
        Task.objects.unguarded().filter(pk=row.pk).update(status="QUEUED", epoch=F("epoch") + 1)
    found: Task = Task.objects.get(pk=row.pk)
    return found
