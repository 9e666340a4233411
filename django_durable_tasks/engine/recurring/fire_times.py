"""Resolves an instant in whole seconds, as users enter it, to the exact fire time within that
second.

The admin and the command line show whole seconds, but a schedule may fire between them.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db.models import Q

from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.recurring import ledger
from django_durable_tasks.engine.recurring.schedule_cache import fire_times_of
from django_durable_tasks.models import OccurrenceOverride, RecurringTask
from django_durable_tasks.rules.recurring.effective.types import TICK

_TOO_MANY = 2
"""The search stops at two fire times, because the instant is then ambiguous."""


def end_of(at: datetime) -> datetime:
    """Return the last instant of the second of ``at``, or ``at`` itself if it has a fraction."""
    return at if at.microsecond else at + timedelta(seconds=1) - TICK


def meant(row: RecurringTask, at: datetime) -> datetime:
    """Return the only fire time within the second of ``at`` (UTC), or ``at`` itself.

    Considers the timetable between the start and end of the schedule, its overrides and the ledger.
    Returns ``at`` unchanged if the second contains no fire time or several, or if ``at`` has a
    fraction. Raises InvalidSchedule if the row is corrupted.
    """
    last = end_of(at)
    if last == at:
        return at
    found = _from_timetable(row, at, last) | _from_ledger(row, at, last)
    return found.pop() if len(found) == 1 else at


def _from_timetable(row: RecurringTask, first: datetime, last: datetime) -> set[datetime]:
    last = last if row.end_time is None else min(last, row.end_time)
    times, found = fire_times_of(row), set[datetime]()
    fire = times.next(max(first, row.start_time) - TICK)
    while fire is not None and fire.nominal <= last and len(found) < _TOO_MANY:
        found.add(fire.nominal)
        fire = times.next(fire.nominal)
    return found


def _from_ledger(row: RecurringTask, first: datetime, last: datetime) -> set[datetime]:
    overrides = OccurrenceOverride.objects.using(tables.database()).filter(
        fire_time__range=(first, last)
    )
    # Two conditions, because the unique key serves one and the partial index the other.
    entries = ledger.ledger().filter(
        Q(unique_fire_time__range=(first, last))
        | Q(
            unique_fire_time__isnull=True,
            last_fire_time__isnull=True,
            fire_time__range=(first, last),
        )
    )
    both = (
        rows.filter(recurring_task=row.pk).values_list("fire_time", flat=True)
        for rows in (overrides, entries)
    )
    return {fire_time for fire_times in both for fire_time in fire_times[:_TOO_MANY]}
