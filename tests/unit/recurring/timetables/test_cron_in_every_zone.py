"""Cron in every zone of the tz database equals the independent table of its wall clock: next,
previous and count, from any instant.

The windows are around each clock change. DURABLE_TASKS_LONG_SWEEP=1 tests all years from 1970 to
2037.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import product
from random import Random

import pytest

from django_durable_tasks.schedules.timetables.builder import timetable
from django_durable_tasks.schedules.timetables.types import DstGap, DstOverlap, Timetable
from django_durable_tasks.schedules.timetables.zones import zone_names
from tests.repetitions import drawn, repetitions
from tests.unit.recurring.timetables.wall_clock_table import (
    Diary,
    Expression,
    changing_days,
    clock_of,
    table,
)

DAY = timedelta(days=1)
SHARES = 16
LONG = bool(os.environ.get("DURABLE_TASKS_LONG_SWEEP"))
FIRST_YEAR, LAST_YEAR = (1970, 2037) if LONG else (2025, 2027)
TEXTS = (
    "30 2 * * *",
    "30 1 * * *",
    "0 0 * * *",
    "15,45 0-3 * * *",
    "10 0-23 * * 0,6",
    "*/20 * * * *",
    "30 * * * *",
    "0 */2 * * *",
    "*/15 2 * * *",
)
POLICIES = list(product(DstGap, DstOverlap))
ODD = [  # zones with unusual clock changes, and their years
    ("Australia/Lord_Howe", 1981, 1987),  # half an hour, and a whole one
    ("Antarctica/Troll", 2005, 2008),  # two hours
    ("Antarctica/Casey", 2009, 2023),  # three hours and more, there and back
    ("Pacific/Apia", 2010, 2012),  # no 30 December 2011
    ("Pacific/Kwajalein", 1993, 1993),  # no 21 August 1993
    ("Pacific/Kiritimati", 1994, 1995),  # no 31 December 1994
    ("America/Santiago", 2014, 2023),  # no midnight
    ("Asia/Beirut", 2019, 2023),  # no midnight
    ("Africa/Cairo", 2007, 2023),  # no midnight; four changes in 2010 and 2014
    ("Asia/Gaza", 2008, 2024),  # two hours a year, at odd times of day
    ("America/Caracas", 2007, 2016),  # half an hour for good
    ("Asia/Pyongyang", 2015, 2018),  # half an hour, and back
    ("Asia/Kathmandu", 1985, 1986),  # a quarter of an hour
    ("Pacific/Chatham", 2020, 2021),  # three quarters off the hour
    ("Africa/Casablanca", 2018, 2026),  # back for Ramadan
    ("Europe/Dublin", 1968, 1972),  # negative summer time
    ("America/Havana", 2010, 2026),
    ("Asia/Tehran", 2020, 2022),
    ("America/Scoresbysund", 2023, 2025),
    ("Europe/Volgograd", 2010, 2020),
]


def _distinct_zones() -> list[str]:
    """Return one name for each different table, since links are duplicates."""
    return sorted({table(name): name for name in sorted(zone_names(), reverse=True)}.values())


def _instants(parts: Timetable, start: datetime, end: datetime) -> list[datetime]:
    found, fire = [], parts.next(start - timedelta(microseconds=1))
    while fire and fire.nominal < end:
        found.append(fire.nominal)
        fire = parts.next(fire.nominal)
    return found


def _backwards(parts: Timetable, start: datetime, end: datetime) -> list[datetime]:
    found, fire = [], parts.previous(end)
    while fire and fire.nominal >= start:
        found.append(fire.nominal)
        fire = parts.previous(fire.nominal)
    return found[::-1]


def _agree_from_anywhere(
    parts: Timetable, expected: Sequence[datetime], start: datetime, random: Random
) -> None:
    """Compare from arbitrary instants, including those in the repeated hour and next to the skipped
    one.
    """
    for _ in range(6):
        low, high = sorted(
            start + timedelta(microseconds=random.randrange(2 * 86_400 * 10**6)) for _ in range(2)
        )
        after, before = bisect_right(expected, low), bisect_left(expected, high)
        if after < len(expected):
            fire = parts.next(low)
            assert fire is not None
            assert fire.nominal == expected[after] > low
        if before:
            fire = parts.previous(high)
            assert fire is not None
            assert fire.nominal == expected[before - 1] < high
        count = parts.count(low, high)
        assert (count.number, count.exact) == (bisect_right(expected, high) - after, True)


def _agree_around(
    name: str, day: datetime, random: Random, policies: Sequence[tuple[DstGap, DstOverlap]]
) -> None:
    start, end = day - DAY / 2, day + 1.5 * DAY
    diary = Diary(name, start, end)
    for text in TEXTS:
        expression = Expression(text)
        for gap, overlap in policies[:1] if expression.wildcard else policies:
            parts = timetable(
                [{"cron": text}], zone=name, anchor=start, dst_gap=gap, dst_overlap=overlap
            )
            expected = diary.fires(expression, gap, overlap)
            where = (name, text, gap, overlap, day)
            assert _instants(parts, start, end) == expected, where
            assert _backwards(parts, start, end) == expected, where
            _agree_from_anywhere(parts, expected, start, random)


@pytest.mark.timeout(3600 if LONG else 120)
@pytest.mark.parametrize("share", drawn(range(SHARES), SHARES))
def test_every_clock_change_equals_the_table(share: int) -> None:
    random, met = Random(share), 0
    for name in _distinct_zones()[share::SHARES]:
        for day in changing_days(name, FIRST_YEAR, LAST_YEAR):
            if clock_of(name).utcoffset(day.replace(tzinfo=None)).seconds % 60 == 0:  # type: ignore[union-attr]
                _agree_around(name, day, random, [random.choice(POLICIES)])
                met += 1
    assert met


@pytest.mark.parametrize(("name", "first", "last"), drawn(ODD))
def test_unusual_clock_changes_are_right_under_every_policy(
    name: str, first: int, last: int
) -> None:
    days = list(changing_days(name, first, last))
    assert days
    for day in days if LONG else days[:: max(len(days) // repetitions(5), 1)]:
        _agree_around(name, day, Random(first), POLICIES)


def test_zones_without_clock_changes_fire_at_their_wall_time_all_year() -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    unchanged = [name for name in _distinct_zones() if not list(changing_days(name, 2026, 2026))]
    assert unchanged
    for name in drawn(unchanged):
        parts = timetable([{"cron": "30 2 * * *"}], zone=name, anchor=start)
        fires = _instants(parts, start, start + 365 * DAY)
        assert len(fires) == 365
        shown = {fire.astimezone(clock_of(name)).strftime("%H:%M") for fire in fires}
        assert shown == {"02:30"}, name


def test_a_change_within_a_minute_is_exact_to_the_second() -> None:
    day = datetime(
        1972, 1, 6, 22, tzinfo=UTC
    )  # Monrovia changed from 44:30 behind UTC to UTC on the 7th
    start, end = day, day + timedelta(hours=6)
    diary = Diary("Africa/Monrovia", start, end, timedelta(seconds=1))
    for text in ("30 0 * * *", "*/15 * * * *", "10,20 0-2 * * *"):
        parts = timetable([{"cron": text}], zone="Africa/Monrovia", anchor=start)
        expected = diary.fires(Expression(text))
        assert _instants(parts, start, end) == expected
        assert _backwards(parts, start, end) == expected
        assert parts.count(start - timedelta(seconds=1), end - timedelta(seconds=1)).number == len(
            expected
        )
