"""Schedules that were processed by a database clock which was ahead and was set back."""

from __future__ import annotations

import logging
import uuid
from datetime import datetime, timedelta

from django.db.models import Max

from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.db.isolation import Isolation
from django_durable_tasks.engine.recurring import writes
from django_durable_tasks.engine.recurring.schedule_cache import agenda_of, calendars_of
from django_durable_tasks.exceptions import DurableTasksError
from django_durable_tasks.models import RecurringTask
from django_durable_tasks.models.recurring_task import RecurringTaskQuerySet
from django_durable_tasks.rules.recurring.policies import RecurringStatus

logger = logging.getLogger("django_durable_tasks.recurrence")
_isolation = Isolation[uuid.UUID]("recurring task")


def processed_later(now: datetime, tolerance: float) -> RecurringTaskQuerySet:
    """Return the schedules that were processed later than ``now`` plus ``tolerance`` seconds."""
    rows: RecurringTaskQuerySet = RecurringTask.objects.using(tables.database()).filter(
        watermark_at__gt=now + timedelta(seconds=tolerance)
    )
    return rows.exclude(status=RecurringStatus.CANCELLED).order_by("pk")


def processed_later_by(now: datetime) -> float:
    """Return by how many seconds the last schedule was processed later than ``now``; 0 if none."""
    last = processed_later(now, 0.0).order_by().aggregate(last=Max("watermark_at"))["last"]
    return (last - now).total_seconds() if last else 0.0


def set_back(now: datetime, tolerance: float, limit: int) -> int:
    """Set the watermark of at most ``limit`` such schedules to ``now``, and their next fire time to
    the one after it; return how many.

    Every fire time before ``now`` has been processed. The ledger has those that were processed too
    early, so its unique key prevents a second task of them. Rows that other transactions have
    locked are skipped.
    """
    these = processed_later(now, tolerance).exclude(pk__in=_isolation.postponed())
    keys = list(these.values_list("pk", flat=True)[:limit])
    if not keys:
        return 0
    return sum(
        _isolation.batch(
            lambda: _set_back(keys, now), lambda: keys, lambda key: _set_back([key], now)
        )
    )


def _set_back(keys: list[uuid.UUID], now: datetime) -> int:
    with tables.atomic():
        selected = processed_later(now, 0.0).filter(pk__in=keys)
        rows = list(tables.locked_for_change(selected, skip_locked=True))
        calendars = calendars_of(rows)
        for row in rows:
            row.watermark_at = now
            if row.status == RecurringStatus.ACTIVE:
                try:
                    following = agenda_of(row, calendars).next(row.watermark_at)
                except DurableTasksError as error:
                    # The next tick reports what is wrong with the schedule.
                    logger.warning("Recurring task %s has no next fire time: %s", row.name, error)
                    following = None
                # If no fire time is left, the next tick ends the schedule.
                row.next_run_at = now if following is None else following.at
            writes.rewrite(row)
    return len(rows)
