"""The doors of ``RecurringTask`` and its manager, each with the verb behind it; see ``ports.schedules``."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django_durable_tasks.lifecycle import accounts, backfills, occurrences, overrides, schedules
from django_durable_tasks.models import OccurrenceOverride, RecurringTask
from django_durable_tasks.rules.backfills import Report


class Doors:
    """What the rows of recurring tasks can be asked to do."""

    upsert = staticmethod(schedules.upsert)
    pause = staticmethod(schedules.pause)
    resume = staticmethod(schedules.resume)
    cancel = staticmethod(schedules.cancel)
    trigger_now = staticmethod(occurrences.trigger_now)
    withdraw = staticmethod(overrides.withdraw)
    next_fire_times = staticmethod(accounts.next_fire_times)
    explain = staticmethod(accounts.explain)

    def backfill(self, row: RecurringTask, start: datetime, end: datetime, **options: Any) -> Report:
        """Run the fire times of [start, end] that have no run."""
        return backfills.backfill(row, start, end, **options)

    def override(self, row: RecurringTask, fire_time: datetime, action: str, **options: Any) -> OccurrenceOverride:
        """Decide about one fire time."""
        return overrides.override(row, fire_time, action, **options)
