"""Intervals are relative to their anchor, exact to the microsecond, and counted without
enumeration.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_durable_tasks.exceptions import InvalidSchedule
from django_durable_tasks.schedules.timetables.builder import checked, timetable
from django_durable_tasks.schedules.timetables.intervals import Interval

ANCHOR = datetime(2026, 1, 1, 12, 0, 0, 123_456, tzinfo=UTC)
steps = st.timedeltas(min_value=timedelta(milliseconds=1), max_value=timedelta(days=400))
moments = st.integers(-(10**14), 10**15).map(lambda number: ANCHOR + timedelta(microseconds=number))


def _hourly() -> Interval:
    return Interval(ANCHOR, timedelta(hours=1))


@given(steps, moments)
def test_the_next_fire_is_the_first_grid_point_after(step: timedelta, after: datetime) -> None:
    fire = Interval(ANCHOR, step).next(after)
    assert fire is not None
    assert fire.nominal > after
    assert (fire.nominal - ANCHOR) % step == timedelta(0)
    assert fire.nominal == ANCHOR or fire.nominal - step <= after


@given(steps, moments)
def test_the_fire_before_the_next_but_one_is_the_next(step: timedelta, after: datetime) -> None:
    rule = Interval(ANCHOR, step)
    first = rule.next(after)
    assert first is not None
    second = rule.next(first.nominal)
    assert second is not None
    assert rule.previous(second.nominal) == first


@given(steps, moments, st.integers(0, 30))
def test_a_count_equals_the_enumeration(step: timedelta, after: datetime, number: int) -> None:
    rule = Interval(ANCHOR, step)
    last = after
    for _ in range(number):
        fire = rule.next(last)
        assert fire is not None
        last = fire.nominal
    assert rule.count(after, last).number == number


def test_ten_thousand_years_of_milliseconds_are_counted_exactly() -> None:
    start, end = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)
    count = Interval(start, timedelta(milliseconds=1)).count(start, end)
    assert count.exact
    assert count.number == (end - start).days * 86_400_000


def test_the_anchor_is_the_first_fire() -> None:
    early = ANCHOR - timedelta(days=3)
    first = _hourly().next(early)
    assert first is not None
    assert first.nominal == ANCHOR
    assert _hourly().previous(ANCHOR) is None
    assert _hourly().count(early, ANCHOR).number == 1
    assert _hourly().count(ANCHOR, early).number == 0


def test_the_last_fire_is_in_the_year_9999() -> None:
    assert _hourly().next(datetime(9999, 12, 31, 23, 30, tzinfo=UTC)) is None


@pytest.mark.parametrize(
    "value", [0, -1, 0.0001, float("nan"), float("inf"), "soon", None, True, timedelta(0), 10**12]
)
def test_an_invalid_length_is_refused(value: Any) -> None:
    with pytest.raises(InvalidSchedule, match="interval="):
        checked([{"interval": value}])


def test_a_part_is_stored_in_seconds_and_built_on_the_anchor() -> None:
    parts = checked([{"interval": timedelta(hours=2)}])
    assert parts == [{"interval": 7200.0}]
    fire = timetable(parts, zone="UTC", anchor=ANCHOR).next(ANCHOR)
    assert fire is not None
    assert fire.nominal == ANCHOR + timedelta(hours=2)
