"""Schedules for tests, created and triggered at chosen instants."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from django_durable_tasks.models import OccurrenceRecord, RecurringTask, Task
from django_durable_tasks.schedules import trigger
from django_durable_tasks.schedules.agenda import Override
from django_durable_tasks.schedules.schedule_cache import stored_overrides
from tests.project import tasks

START = datetime(2026, 3, 2, 9, tzinfo=UTC)
"""A Monday."""
TOMORROW = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) + timedelta(hours=12)
"""The start of an hour. No other start of an hour lies between it and now, at whatever time the
tests run.
"""
DAILY = f"0 {TOMORROW.hour} * * *"
"""Fires every day at that hour."""


def at(seconds: float = 0, **more: float) -> datetime:
    """Return an instant after START."""
    return START + timedelta(seconds=seconds, **more)


def tomorrow(**more: float) -> datetime:
    """Return the next fire of DAILY, plus an offset."""
    return TOMORROW + timedelta(**more)


def a_schedule(name: str = "nightly", *, task: Any = tasks.noop, **given: Any) -> RecurringTask:
    """Declare a schedule, by default every 60 s from START, whose ledger begins just before START."""
    kinds = {"interval", "cron", "rrule", "solar", "at", "every", "parts"}
    timing: dict[str, Any] = {} if kinds & given.keys() else {"interval": 60}
    row = RecurringTask.objects.upsert(name=name, task=task, **timing, **{"queue": "test", **given})
    return begin(row, given.get("start_time", START))


def begin(row: RecurringTask, start: datetime) -> RecurringTask:
    """Change the row as if it had been declared just before ``start``."""
    first = start - timedelta(microseconds=1)
    RecurringTask.objects.unguarded().filter(pk=row.pk).update(
        start_time=start, watermark_at=first, next_run_at=start, revision=row.revision + 1
    )
    row.refresh_from_db()
    return row


def fire(now: datetime, limit: int = 100) -> int:
    """Trigger the fire times due at ``now`` and return how many tasks were created."""
    return trigger.fire_due(now, limit, term=7)


def fire_times(row: RecurringTask) -> list[datetime]:
    """Return the fire times of the tasks of a schedule, in order."""
    rows = Task.objects.filter(recurring_task=row).order_by("fire_time")
    return [task.fire_time for task in rows if task.fire_time]


def ledger_of(row: RecurringTask) -> list[tuple[str, datetime, datetime | None, int, str]]:
    """Return the ledger of a schedule: outcome, first, last, count, reason."""
    rows = OccurrenceRecord.objects.filter(recurring_task=row).order_by("fire_time", "id")
    return list(rows.values_list("outcome", "fire_time", "last_fire_time", "count", "reason"))


def override_directly(row: RecurringTask, *overrides: Override) -> None:
    """Store these overrides, also of the past, without a check."""
    row.overrides = stored_overrides(overrides)
    RecurringTask.objects.unguarded().filter(pk=row.pk).update(overrides=row.overrides)
