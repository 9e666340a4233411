"""Without calendar and overrides, the effective schedule equals its timetable within bounds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from django_durable_tasks.exceptions import InvalidSchedule
from django_durable_tasks.schedules.agenda import PlannedRun, agenda
from django_durable_tasks.schedules.timetables.intervals import Interval
from django_durable_tasks.schedules.timetables.types import Count

START = datetime(2026, 11, 20, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
HOURLY = Interval(START - timedelta(days=9), HOUR)


def test_every_fire_runs_at_its_fire_time() -> None:
    plain = agenda(HOURLY, zone="UTC")
    assert plain.next(START) == PlannedRun(START + HOUR, START + HOUR)
    assert plain.previous(START) == PlannedRun(START - HOUR, START - HOUR)
    assert plain.count(START, START + 5 * HOUR) == Count(5)
    assert plain.closed(START, START + 5 * HOUR) == []
    assert plain.at_nominal(START) == PlannedRun(START, START)
    assert plain.at_nominal(START + timedelta(seconds=1)) is None


def test_bounds_are_inclusive() -> None:
    bounded = agenda(HOURLY, zone="UTC", start=START, end=START + 2 * HOUR)
    assert bounded.next(START - 5 * HOUR) == PlannedRun(START, START)
    assert bounded.next(START + HOUR) == PlannedRun(START + 2 * HOUR, START + 2 * HOUR)
    assert bounded.next(START + 2 * HOUR) is None
    assert bounded.previous(START) is None
    assert bounded.previous(START + 9 * HOUR) == PlannedRun(START + 2 * HOUR, START + 2 * HOUR)
    assert bounded.count(START - 9 * HOUR, START + 9 * HOUR) == Count(3)
    assert bounded.count(START + 3 * HOUR, START + 9 * HOUR) == Count(0)
    assert bounded.at_nominal(START - HOUR) is None


def test_bounds_in_another_zone_are_the_same_instants() -> None:
    east = timezone(timedelta(hours=5))
    assert agenda(HOURLY, zone="UTC", start=START.astimezone(east)).next(
        START - HOUR
    ) == PlannedRun(START, START)


def test_a_start_at_the_maximum_datetime_is_refused() -> None:
    with pytest.raises(InvalidSchedule, match="up to the year 9998"):
        agenda(HOURLY, zone="UTC", start=datetime(9999, 1, 1, tzinfo=UTC))


def test_an_end_at_the_maximum_datetime_is_no_end() -> None:
    endless = agenda(HOURLY, zone="UTC", end=datetime.max.replace(tzinfo=UTC))
    assert endless.next(START) == agenda(HOURLY, zone="UTC").next(START)
    assert endless.previous(START) == agenda(HOURLY, zone="UTC").previous(START)


def test_an_end_before_the_start_is_refused() -> None:
    with pytest.raises(InvalidSchedule, match=r"end_time=.* is before start_time="):
        agenda(HOURLY, zone="UTC", start=START, end=START - HOUR)
