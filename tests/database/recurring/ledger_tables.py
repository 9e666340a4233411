"""A ledger with partitions of a day, and the table as the migration creates it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connection

from django_durable_tasks.engine.recurring import ledger, ledger_partitions
from django_durable_tasks.engine.recurring.ledger import LedgerEntry
from django_durable_tasks.models import OccurrenceRecord, RecurringTask
from django_durable_tasks.models.tenant import DEFAULT_TENANT_ID
from django_durable_tasks.rules.recurring.partitions import PREFIX, Partition
from django_durable_tasks.rules.recurring.policies import FireOutcome

DAY = timedelta(days=1)
NOW = datetime(2026, 3, 2, 9, tzinfo=UTC)
"""The time of the conversion."""
KEPT = timedelta(days=30)


def enable_partitions(settings: Any) -> None:
    """Enable partitions of a day and keep the ledger for 30 days."""
    settings.DURABLE_TASKS = {
        **settings.DURABLE_TASKS,
        "LEDGER_PARTITION_DAYS": 1,
        "LEDGER_RETENTION": KEPT.total_seconds(),
    }


def new_plain_ledger() -> None:
    """Replace the ledger by an empty table without partitions. PostgreSQL only."""
    with connection.schema_editor() as editor:
        editor.execute(f"DROP TABLE {OccurrenceRecord._meta.db_table}")
        editor.create_model(OccurrenceRecord)


def plain_ledger() -> None:
    """Undo the partitions of a run that has them enabled. The ledger must be empty."""
    if ledger_partitions.partitions():
        new_plain_ledger()


def converted(now: datetime = NOW) -> list[Partition]:
    """Partition the ledger and return its partitions."""
    plain_ledger()
    return ledger_partitions.convert(now)


def an_entry(row: RecurringTask, fire_time: datetime, **more: Any) -> LedgerEntry:
    """Return the entry of a fire time that was missed."""
    return LedgerEntry(
        recurring_task_id=row.pk,
        tenant_id=DEFAULT_TENANT_ID,
        fire_time=fire_time,
        outcome=FireOutcome.MISSED,
        **more,
    )


def write(row: RecurringTask, *fire_times: datetime, age: timedelta | None = None) -> None:
    """Write entries; with ``age`` as if they were written that long after their fire times."""
    ledger.write([an_entry(row, one) for one in fire_times])
    for one in fire_times if age is not None else ():
        entries = ledger.ledger().filter(recurring_task=row.pk, unique_fire_time=one)
        entries.update(created_at=one + (age or timedelta()))


def fire_times_in(table: str) -> list[datetime]:
    """Return the fire times in a partition, in order."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT fire_time FROM {PREFIX}{table} ORDER BY fire_time")
        return [fire_time for (fire_time,) in cursor.fetchall()]


def partition_names() -> list[str]:
    """Return the last parts of the names of the partitions, in order."""
    return [one.name.removeprefix(PREFIX) for one in ledger_partitions.partitions()]
