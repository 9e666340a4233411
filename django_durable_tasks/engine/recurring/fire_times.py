"""Finds the fire time that a user means. Lists and pages print whole seconds, but schedules may
fire within them.
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
"""Two fire times in one second are already ambiguous."""


def end_of(at: datetime) -> datetime:
    """Return the last instant that ``at`` can mean: the end of its second if it has no fraction,
    otherwise itself.
    """
    return at if at.microsecond else at + timedelta(seconds=1) - TICK


def meant(row: RecurringTask, at: datetime) -> datetime:
    """Return the fire time that this instant (UTC) names: itself, or the only fire time within its
    whole second.

    Considers the timetable within the row's bounds, overrides and the ledger. Returns ``at``
    unchanged if the second holds no fire time or several, or if ``at`` has a fraction. Raises
    InvalidSchedule for a row that cannot be read.
    """
    last = end_of(at)
    if last == at:
        return at
    found = _timed(row, at, last) | _recorded(row, at, last)
    return found.pop() if len(found) == 1 else at


def _timed(row: RecurringTask, first: datetime, last: datetime) -> set[datetime]:
    last = last if row.end_time is None else min(last, row.end_time)
    times, found = fire_times_of(row), set[datetime]()
    fire = times.next(max(first, row.start_time) - TICK)
    while fire is not None and fire.nominal <= last and len(found) < _TOO_MANY:
        found.add(fire.nominal)
        fire = times.next(fire.nominal)
    return found


def _recorded(row: RecurringTask, first: datetime, last: datetime) -> set[datetime]:
    overrides = OccurrenceOverride.objects.using(tables.database()).filter(
        fire_time__range=(first, last)
    )
    # Two conditions, because the unique key and the partial index serve one each.
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
