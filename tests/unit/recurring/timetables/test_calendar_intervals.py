"""Calendar intervals select a day in every n-th period, counted from the period of the start."""

from __future__ import annotations

from calendar import monthrange
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_durable_tasks.exceptions import InvalidSchedule
from django_durable_tasks.schedules.timetables.builder import checked
from tests.unit.recurring.timetables.queries import TICK, built, fires, shown

ANCHOR = datetime(2026, 1, 15, 9, 30, tzinfo=UTC)

MEANINGS = [
    ({"every": "day", "count": 3}, ["2026-01-15 09:30", "2026-01-18 09:30", "2026-01-21 09:30"]),
    ({"every": "day", "time": "06:00"}, ["2026-01-16 06:00", "2026-01-17 06:00"]),
    ({"every": "week"}, ["2026-01-15 09:30", "2026-01-22 09:30"]),
    ({"every": "week", "day": "friday", "count": 2}, ["2026-01-16 09:30", "2026-01-30 09:30"]),
    ({"every": "week", "day": 1}, ["2026-01-19 09:30", "2026-01-26 09:30"]),
    ({"every": "week", "day": "last working"}, ["2026-01-16 09:30", "2026-01-23 09:30"]),
    ({"every": "month"}, ["2026-01-15 09:30", "2026-02-15 09:30"]),
    (
        {"every": "month", "day": 1, "count": 5},
        ["2026-06-01 09:30", "2026-11-01 09:30", "2027-04-01 09:30"],
    ),
    ({"every": "month", "day": 31}, ["2026-01-31 09:30", "2026-03-31 09:30", "2026-05-31 09:30"]),
    ({"every": "month", "day": -2}, ["2026-01-30 09:30", "2026-02-27 09:30"]),
    ({"every": "month", "day": "last"}, ["2026-01-31 09:30", "2026-02-28 09:30"]),
    (
        {"every": "month", "day": "Last Working", "time": "17:00:30"},
        ["2026-01-30 17:00:30", "2026-02-27 17:00:30"],
    ),
    (
        {"every": "month", "day": "first working"},
        ["2026-02-02 09:30", "2026-03-02 09:30", "2026-04-01 09:30"],
    ),
    ({"every": "month", "day": "3rd working"}, ["2026-02-04 09:30", "2026-03-04 09:30"]),
    ({"every": "month", "day": "2nd tuesday"}, ["2026-02-10 09:30", "2026-03-10 09:30"]),
    ({"every": "month", "day": "last friday"}, ["2026-01-30 09:30", "2026-02-27 09:30"]),
    ({"every": "month", "day": "5th monday"}, ["2026-03-30 09:30", "2026-06-29 09:30"]),
    ({"every": "quarter"}, ["2026-01-15 09:30", "2026-04-15 09:30"]),
    ({"every": "quarter", "day": "last working"}, ["2026-03-31 09:30", "2026-06-30 09:30"]),
    ({"every": "quarter", "month": 2, "day": 10}, ["2026-02-10 09:30", "2026-05-10 09:30"]),
    ({"every": "year"}, ["2026-01-15 09:30", "2027-01-15 09:30"]),
    ({"every": "year", "day": -1, "count": 2}, ["2026-12-31 09:30", "2028-12-31 09:30"]),
    ({"every": "year", "month": 2, "day": 29}, ["2028-02-29 09:30", "2032-02-29 09:30"]),
    (
        {"every": "year", "month": 11, "day": "1st tuesday"},
        ["2026-11-03 09:30", "2027-11-02 09:30"],
    ),
]

REFUSALS = [
    ({"every": "fortnight"}, "every='fortnight'"),
    ({"every": []}, "every="),
    ({"every": "month", "count": 0}, "count=0"),
    ({"every": "month", "count": True}, "count=True"),
    ({"every": "month", "count": 1.5}, "count=1.5"),
    ({"every": "day", "day": 1}, "every day is meant already"),
    ({"every": "month", "day": 0}, "day=0: a month has no such day"),
    ({"every": "month", "day": 32}, "day=32"),
    ({"every": "week", "day": 8}, "day=8"),
    ({"every": "month", "day": "someday"}, "day='someday'"),
    ({"every": "month", "day": "friday"}, "day='friday'"),
    ({"every": "month", "day": "0th friday"}, "day='0th friday'"),
    ({"every": "month", "day": 1.0}, "day=1.0"),
    ({"every": "month", "month": 1}, "only where every is quarter or year"),
    ({"every": "quarter", "month": 4}, "from 1 to 3"),
    ({"every": "year", "month": 13}, "from 1 to 12"),
    ({"every": "month", "time": "24:00"}, "time='24:00'"),
    ({"every": "month", "time": 9}, "time=9"),
    ({"every": "year", "month": 2, "day": 30}, "can never fire.*pause it instead"),
    ({"every": "month", "day": "6th friday"}, "can never fire"),
    ({"every": "month", "week": 1}, "week beside every"),
]


@pytest.mark.parametrize(("part", "expected"), MEANINGS)
def test_a_calendar_interval_fires_on_its_day_and_never_before_its_start(
    part: dict[str, Any], expected: list[str]
) -> None:
    rule = built(part, anchor=ANCHOR)
    assert shown(rule, len(expected), after=datetime(2020, 1, 1, tzinfo=UTC)) == expected
    assert rule.previous(fires(rule, 1, ANCHOR - TICK)[0].nominal) is None


@pytest.mark.parametrize(("part", "why"), REFUSALS)
def test_an_invalid_period_is_refused(part: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidSchedule, match=why):
        checked([part])


class _Calendar:
    def __init__(self, *closed: date) -> None:
        self.closed = closed

    def is_open(self, day: date) -> bool:
        return day.weekday() < 5 and day not in self.closed


class _NeverOpen:
    def is_open(self, day: date) -> bool:
        return False


def test_working_days_are_those_of_the_given_calendar() -> None:
    part = {"every": "month", "day": "last working", "time": "12:00"}
    closed = _Calendar(date(2026, 1, 30), date(2026, 1, 29))
    assert shown(built(part, anchor=ANCHOR, days=closed), 2) == [
        "2026-01-28 12:00",
        "2026-02-27 12:00",
    ]


def test_a_calendar_without_a_working_day_ends_the_search() -> None:
    rule = built({"every": "month", "day": "first working"}, anchor=ANCHOR, days=_NeverOpen())
    assert rule.next(ANCHOR) is None
    assert rule.previous(ANCHOR + timedelta(days=900)) is None
    assert rule.count(ANCHOR, ANCHOR + timedelta(days=900)).number == 0


def test_the_start_is_interpreted_in_the_zone() -> None:
    late = datetime(2026, 1, 31, 23, 0, tzinfo=UTC)  # the first of February in Berlin
    assert shown(
        built({"every": "month"}, zone="Europe/Berlin", anchor=late), 2, "Europe/Berlin"
    ) == ["2026-02-01 00:00", "2026-03-01 00:00"]


@given(st.integers(1, 14), st.integers(1, 28), st.dates(date(2000, 1, 1), date(2030, 1, 1)))
def test_months_are_counted_from_that_of_the_start(count: int, day: int, start: date) -> None:
    anchor = datetime(start.year, start.month, start.day, tzinfo=UTC)
    found = fires(
        built({"every": "month", "count": count, "day": day}, anchor=anchor), 6, anchor - TICK
    )
    months = [fire.nominal.year * 12 + fire.nominal.month for fire in found]
    assert {fire.nominal.day for fire in found} == {day}
    assert {(month - start.year * 12 - start.month) % count for month in months} == {0}
    assert {after - before for before, after in pairwise(months)} == {count}


@given(st.dates(date(2000, 1, 1), date(2030, 1, 1)))
def test_the_last_working_day_is_a_weekday_followed_only_by_a_weekend(start: date) -> None:
    anchor = datetime(start.year, start.month, start.day, tzinfo=UTC)
    for fire in fires(
        built({"every": "month", "day": "last working"}, anchor=anchor), 5, anchor - TICK
    ):
        day = fire.nominal.date()
        rest = [
            day.replace(day=number)
            for number in range(day.day + 1, monthrange(day.year, day.month)[1] + 1)
        ]
        assert day.weekday() < 5
        assert all(later.weekday() > 4 for later in rest)


def test_counting_equals_enumerating() -> None:
    rule = built({"every": "week", "day": "2nd working", "count": 3}, anchor=ANCHOR)
    last = fires(rule, 40, ANCHOR)[-1].nominal
    assert (rule.count(ANCHOR, last).number, rule.count(ANCHOR, last - TICK).number) == (40, 39)
