"""Zones are loaded by name from the tzdata package. An unknown name is refused with the nearest
valid one.
"""

from __future__ import annotations

import re
import zoneinfo
from datetime import UTC, datetime, timedelta
from importlib import resources
from itertools import pairwise
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
import pytz
from hypothesis import given, settings
from hypothesis import strategies as st

from django_durable_tasks.exceptions import InvalidSchedule
from django_durable_tasks.schedules.timetables.builder import checked, timetable
from django_durable_tasks.schedules.timetables.zones import (
    clock_changes,
    tzdata_version,
    zone,
    zone_name,
    zone_names,
)


@pytest.mark.parametrize(
    "name",
    ["right/UTC", "posix/Europe/Berlin", "localtime", "Factory", "Mars/Olympus", "", "x" * 5_000],
)
def test_an_invalid_zone_is_refused_everywhere(name: str) -> None:
    with pytest.raises(InvalidSchedule, match="timezone="):
        zone(name)
    with pytest.raises(InvalidSchedule, match="timezone="):
        checked([{"interval": 60}], zone=name)
    with pytest.raises(InvalidSchedule, match="timezone="):
        timetable([{"interval": 60.0}], zone=name, anchor=datetime(2026, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    ("name", "near"),
    [("Europe/Berln", "Europe/Berlin"), ("america/new_york", "America/New_York"), ("UCT0", "UCT")],
)
def test_the_nearest_names_are_suggested(name: str, near: str) -> None:
    with pytest.raises(InvalidSchedule, match=f"did you mean .*{re.escape(near)}"):
        zone(name)


@pytest.mark.parametrize(
    "path", ["../../etc/passwd", "/etc/localtime", "Europe", "tzdata.zi", None, 5]
)
def test_a_path_or_another_object_is_not_a_zone(path: object) -> None:
    with pytest.raises(InvalidSchedule, match="timezone="):
        zone_name(path)


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (pytz.timezone("Asia/Tokyo"), "Asia/Tokyo"),
        (pytz.utc, "UTC"),
        (ZoneInfo("Europe/Paris"), "Europe/Paris"),
        (UTC, "UTC"),
        ("Africa/Cairo", "Africa/Cairo"),
    ],
)
def test_zones_of_other_libraries_are_accepted_by_their_name(value: object, name: str) -> None:
    assert zone_name(value) == name
    assert zone(zone_name(value)).key == name


def test_every_name_is_loaded_from_the_package_and_once() -> None:
    assert len(zone_names()) > 500
    for name in zone_names():
        assert zone(name) is zone(name)
        assert zone(name).key == name


def test_the_tables_of_the_system_are_not_read(tmp_path: Path) -> None:
    wrong = tmp_path / "Europe" / "Berlin"
    wrong.parent.mkdir()
    wrong.write_bytes(resources.files("tzdata.zoneinfo").joinpath("Asia", "Tokyo").read_bytes())
    summer = datetime(2026, 7, 1, tzinfo=UTC)
    zoneinfo.reset_tzpath(to=[tmp_path])
    try:
        zone.cache_clear()
        assert summer.astimezone(ZoneInfo.no_cache("Europe/Berlin")).hour == 9
        assert summer.astimezone(zone("Europe/Berlin")).hour == 2
    finally:
        zoneinfo.reset_tzpath()


def test_the_release_of_the_tables_is_reported() -> None:
    assert re.fullmatch(r"20\d\d[a-z]+", tzdata_version())


# Clock changes ------------------------------------------------------------------------------------
#
# The clock changes of a zone are those of the time zone database.


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
