"""Short functions to query a timetable in the tests of this folder."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from django_durable_tasks.schedules.timetables.builder import checked, timetable
from django_durable_tasks.schedules.timetables.types import Fire, Timetable
from tests.unit.recurring.timetables.wall_clock_table import clock_of

START = datetime(2026, 1, 1, tzinfo=UTC)
TICK = timedelta(microseconds=1)


def built(
    *parts: Mapping[str, Any], zone: str = "UTC", anchor: datetime = START, **options: Any
) -> Timetable:
    """Return the timetable of parts written as users write them."""
    canonical = checked(parts, zone=zone, anchor=anchor, seed=options.get("seed", ""))
    return timetable(canonical, zone=zone, anchor=anchor, **options)


def fires(rule: Timetable, number: int, after: datetime = START - TICK) -> list[Fire]:
    """Return the next fires, and check that each is also the previous one of the instant right
    after it.
    """
    found: list[Fire] = []
    while len(found) < number and (fire := rule.next(after)):
        assert fire.nominal > after
        assert rule.previous(fire.nominal + TICK) == fire
        assert len(found) < 1 or rule.previous(fire.nominal) == found[-1]
        after = fire.nominal
        found.append(fire)
    return found


def shown(
    rule: Timetable, number: int, zone: str = "UTC", after: datetime = START - TICK
) -> list[str]:
    """Return the next fires as the wall clock of the zone shows them."""
    moments = (fire.nominal.astimezone(clock_of(zone)) for fire in fires(rule, number, after))
    return [
        f"{moment:%Y-%m-%d %H:%M}{f':{moment.second}' if moment.second else ''}"
        for moment in moments
    ]
