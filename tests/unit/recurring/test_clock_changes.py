"""The clock changes of a zone are those of the time zone database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from django_durable_tasks.exceptions import InvalidSchedule
from django_durable_tasks.schedules.timetables.zones import clock_changes, zone

HOUR = timedelta(hours=1)
ZONES = [
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "Antarctica/Troll",
    "Africa/Casablanca",
    "UTC",
]


def test_a_year_in_berlin_has_two() -> None:
    found = list(
        clock_changes(
            "Europe/Berlin", datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 12, 31, tzinfo=UTC)
        )
    )
    assert found == [
        (datetime(2026, 3, 29, 1, tzinfo=UTC), HOUR),
        (datetime(2026, 10, 25, 1, tzinfo=UTC), -HOUR),
    ]


def test_the_range_includes_its_end_and_excludes_its_start() -> None:
    change = datetime(2026, 3, 29, 1, tzinfo=UTC)
    assert list(clock_changes("Europe/Berlin", change, change + HOUR)) == []
    assert [one.at for one in clock_changes("Europe/Berlin", change - HOUR, change)] == [change]


@given(
    st.sampled_from(ZONES),
    st.datetimes(datetime(2005, 1, 1), datetime(2030, 1, 1)),
    st.integers(1, 800),
)
@settings(deadline=None)
def test_probing_every_sixth_hour_finds_the_same(name: str, naive: datetime, days: int) -> None:
    start = naive.replace(minute=0, second=0, microsecond=0, tzinfo=UTC)
    moments = [start + n * 6 * HOUR for n in range(days * 4 + 1)]
    offsets = [moment.astimezone(zone(name)).utcoffset() for moment in moments]
    jumps = [after - before for before, after in pairwise(offsets) if before != after]  # type: ignore[operator]
    assert [one.shift for one in clock_changes(name, start, moments[-1])] == jumps


def test_an_unknown_zone_is_refused() -> None:
    with pytest.raises(InvalidSchedule, match="Europe/Berln"):
        list(
            clock_changes(
                "Europe/Berln", datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 2, 1, tzinfo=UTC)
            )
        )
