"""The doors of ``RecurringTask`` and its manager, each with the verb behind it; see ``ports.schedules``."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django_durable_tasks import ports, registry
from django_durable_tasks.lifecycle import accounts, backfills, occurrences, overrides, schedules
from django_durable_tasks.models import OccurrenceOverride, RecurringTask, Task
from django_durable_tasks.rules.backfills import Report


class Doors:
    """What the rows of recurring tasks can be asked to do."""

    pause = staticmethod(schedules.pause)
    snooze = staticmethod(schedules.snooze)
    resume = staticmethod(schedules.resume)
    cancel = staticmethod(schedules.cancel)
    withdraw = staticmethod(overrides.withdraw)
    next_fire_times = staticmethod(accounts.next_fire_times)

    def upsert(self, *, name: str, task: Any, **options: Any) -> RecurringTask:
        """Create or change the schedule of this name."""
        _load_for(task)
        return schedules.upsert(name=name, task=task, **options)

    def trigger_now(self, row: RecurringTask, *, request_id: str | None, by: str) -> Task:
        """Run once now."""
        _load_for(row.task)
        return occurrences.trigger_now(row, request_id=request_id, by=by)

    def explain(self, row: RecurringTask, at: datetime) -> str:
        """Say what became of a fire time."""
        _load_for(row.task)
        return accounts.explain(row, at)

    def backfill(self, row: RecurringTask, start: datetime, end: datetime, **options: Any) -> Report:
        """Run the fire times of [start, end] that have no run."""
        _load_for(row.task)
        return backfills.backfill(row, start, end, **options)

    def override(self, row: RecurringTask, fire_time: datetime, action: str, **options: Any) -> OccurrenceOverride:
        """Decide about one fire time."""
        return overrides.override(row, fire_time, action, **options)


def _load_for(task: Any) -> None:
    """Import the project's task modules if this process, a web process for instance, has not imported this task's."""
    if isinstance(task, str) and registry.find(task) is None:
        ports.load_tasks()
