"""Recomputes next fire times after a new time zone database or a step of the database's clock."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Max

from django_durable_tasks.choices import RecurringStatus
from django_durable_tasks.exceptions import DurableTasksError, InvalidCalendar, InvalidSchedule
from django_durable_tasks.models import RecurringTask
from django_durable_tasks.models.schedules import RecurringTaskQuerySet
from django_durable_tasks.schedules import writes
from django_durable_tasks.schedules.schedule_cache import agenda_of, calendars_of
from django_durable_tasks.schedules.timetables.zones import tzdata_version
from django_durable_tasks.store import tables
from django_durable_tasks.store.errors import Isolation

# Called by the maintenance job ``recompute_fire_times`` and by ``durable dst``.


logger = logging.getLogger("django_durable_tasks.recurrence")


@dataclass(frozen=True, slots=True)
class ChangedFireTime:
    """A schedule with its stored next fire time and the one that this process computes."""

    row: RecurringTask
    stored: datetime | None
    found: datetime | None


def computed_elsewhere() -> RecurringTaskQuerySet:
    """Return the active schedules whose next fire time was computed with another tzdata release."""
    rows: RecurringTaskQuerySet = RecurringTask.objects.using(tables.database()).active()
    return (
        rows.filter(next_run_at__isnull=False)
        .exclude(tzdata_version=tzdata_version())
        .order_by("pk")
    )


def moved_fire_times(limit: int) -> list[ChangedFireTime]:
    """Return the schedules whose next fire time changes, among at most ``limit`` computed with
    another release.

    Writes nothing.
    """
    return [
        moved
        for moved in _compared(list(computed_elsewhere()[:limit]))
        if moved.stored != moved.found
    ]


_isolation = Isolation[uuid.UUID]("recurring task")


def recompute_fire_times(limit: int) -> int:
    """Set the next fire time of at most ``limit`` such schedules and log each change; return how
    many were written.

    Schedules that another transaction has locked are left to a later call.
    """
    these = computed_elsewhere().exclude(pk__in=_isolation.postponed())
    keys = list(these.values_list("pk", flat=True)[:limit])
    if not keys:
        return 0
    return sum(
        _isolation.batch(lambda: _recompute(keys), lambda: keys, lambda key: _recompute([key]))
    )


def _recompute(keys: list[uuid.UUID]) -> int:
    with tables.atomic():
        selected = RecurringTask.objects.using(tables.database()).filter(pk__in=keys).order_by("pk")
        rows = list(selected.select_for_update(skip_locked=True))
        for moved in _compared(rows):
            if moved.stored != moved.found:
                logger.warning(
                    "tzdata %s changes the next fire time of recurring task %s from %s to %s.",
                    tzdata_version(),
                    moved.row.name,
                    moved.stored,
                    moved.found,
                )
            moved.row.next_run_at, moved.row.tzdata_version = moved.found, tzdata_version()
            writes.rewrite(moved.row)
    return len(rows)


def _compared(rows: Sequence[RecurringTask]) -> list[ChangedFireTime]:
    calendars, compared = calendars_of(rows), list[ChangedFireTime]()
    for row in rows:
        computed = row.next_run_at
        try:
            following = agenda_of(row, calendars).next(row.watermark_at)
            computed = following.at if following else computed
        except (InvalidSchedule, InvalidCalendar) as error:
            logger.warning(
                "Could not recompute the next fire time of recurring task %s: %s", row.name, error
            )
        compared.append(ChangedFireTime(row, row.next_run_at, computed))
    return compared


# Schedules that were processed by a database clock which was ahead and was set back.


_clock_isolation = Isolation[uuid.UUID]("recurring task")


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


def set_back_schedules(now: datetime, tolerance: float, limit: int) -> int:
    """Set the watermark of at most ``limit`` such schedules to ``now``, and their next fire time to
    the one after it; return how many.

    Every fire time before ``now`` has been processed. The ledger has those that were processed too
    early, so its unique key prevents a second task of them. Rows that other transactions have
    locked are skipped.
    """
    these = processed_later(now, tolerance).exclude(pk__in=_clock_isolation.postponed())
    keys = list(these.values_list("pk", flat=True)[:limit])
    if not keys:
        return 0
    return sum(
        _clock_isolation.batch(
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
