"""Composes an agenda of the layers that a schedule needs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from django_durable_tasks.exceptions import InvalidSchedule
from django_durable_tasks.rules.recurring.calendars import BusinessDays, Roll
from django_durable_tasks.rules.recurring.effective.bounded import (
    BoundedTimetable,
    EveryFire,
    TimetableExcept,
    fire_at,
)
from django_durable_tasks.rules.recurring.effective.business_days import OnOpenDays
from django_durable_tasks.rules.recurring.effective.overrides import checked, of_fires, overridden
from django_durable_tasks.rules.recurring.effective.segments import CalendarSegments
from django_durable_tasks.rules.recurring.effective.types import Agenda, Override
from django_durable_tasks.rules.recurring.effective.wall_clock import WallClock
from django_durable_tasks.rules.recurring.timetables.types import Timetable
from django_durable_tasks.rules.recurring.timetables.zone_offsets import LAST_YEAR


def agenda(
    timetable: Timetable,
    *,
    zone: str,
    days: BusinessDays | None = None,
    roll: Roll = Roll.SKIP,
    start: datetime | None = None,
    end: datetime | None = None,
    overrides: Sequence[Override] = (),
) -> Agenda:
    """Return the agenda of this timetable.

    ``start`` and ``end`` bound the fire times, both included; runs that a calendar rolls or an
    operator moves may be outside of them. Rolling keeps the wall time of the day. Raises
    InvalidSchedule if the end is before the start.
    """
    if start is not None and start.year > LAST_YEAR:
        raise InvalidSchedule(
            f"start_time={start}: schedules are computed up to the year {LAST_YEAR}."
        )
    if start is not None and end is not None and end < start:
        raise InvalidSchedule(f"end_time={end} is before start_time={start}: no fire lies between.")
    fires, own = timetable, checked(overrides)
    if start is not None or end is not None:
        fires = BoundedTimetable(
            fires, start and start.astimezone(UTC), end and end.astimezone(UTC)
        )
    if own:
        own = of_fires(fires, own)
        fires = TimetableExcept(
            fires,
            frozenset(one.fire_time for one in own if fire_at(fires, one.fire_time) is not None),
        )
    rest = (
        EveryFire(fires)
        if days is None
        else OnOpenDays(fires, CalendarSegments(days, Roll(roll), WallClock(zone)))
    )
    return overridden(rest, own) if own else rest
