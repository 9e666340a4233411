"""Solar events equal the times that observatories publish, within a minute."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from django_durable_tasks.exceptions import InvalidSchedule
from django_durable_tasks.schedules.timetables.builder import checked
from tests.repetitions import repetitions
from tests.unit.recurring.timetables.queries import TICK, built, fires

# Atlanta: U.S. Naval Observatory, 6 September 2009, as quoted in PyEphem's documentation; in UTC.
ATLANTA = [
    ("dawn_civil", "2009-09-06 10:50"),
    ("sunrise", "2009-09-06 11:15"),
    ("solar_noon", "2009-09-06 17:36"),
    ("sunset", "2009-09-06 23:56"),
    ("dusk_civil", "2009-09-07 00:21"),
]
EVENTS = [
    "dawn_astronomical",
    "dawn_nautical",
    "dawn_civil",
    "sunrise",
    "solar_noon",
    "sunset",
    "dusk_civil",
    "dusk_nautical",
    "dusk_astronomical",
]
TROMSO = {"latitude": 69.65, "longitude": 18.96}


def _part(event: str, latitude: float, longitude: float, offset: float = 0) -> dict[str, Any]:
    return {"solar": event, "latitude": latitude, "longitude": longitude, "offset": offset}


@pytest.mark.parametrize(("event", "published"), ATLANTA)
def test_the_events_in_atlanta_are_those_of_the_naval_observatory(
    event: str, published: str
) -> None:
    expected = datetime.fromisoformat(published).replace(tzinfo=UTC)
    (fire,) = fires(built(_part(event, 33.8, -84.4)), 1, datetime(2009, 9, 6, 6, tzinfo=UTC))
    assert abs(fire.nominal - expected) <= timedelta(seconds=60)


@pytest.mark.parametrize(
    ("place", "event", "published"),
    [  # almanac values to the minute, in UTC
        ((51.5074, -0.1278), "sunrise", "2024-06-20 03:43"),
        ((51.5074, -0.1278), "sunset", "2024-06-20 20:21"),
        ((40.7128, -74.0060), "sunrise", "2024-12-21 12:17"),
        ((40.7128, -74.0060), "sunset", "2024-12-21 21:32"),
        ((-33.8688, 151.2093), "sunset", "2024-12-21 09:05"),
        ((35.6895, 139.6917), "sunrise", "2024-03-19 20:45"),
    ],
)
def test_sunrise_and_sunset_around_the_world_are_those_of_the_almanac(
    place: tuple[float, float], event: str, published: str
) -> None:
    expected = datetime.fromisoformat(published).replace(tzinfo=UTC)
    (fire,) = fires(built(_part(event, *place)), 1, expected - timedelta(hours=6))
    assert abs(fire.nominal - expected) <= timedelta(seconds=90)


@settings(deadline=None, max_examples=repetitions(60))
@given(
    st.floats(-60, 60),
    st.floats(-180, 180),
    st.datetimes(datetime(1990, 1, 1), datetime(2060, 1, 1)),
)
def test_each_day_goes_from_dawn_to_dusk_in_order(
    latitude: float, longitude: float, moment: datetime
) -> None:
    after = moment.replace(tzinfo=UTC)
    noon = fires(built(_part("solar_noon", latitude, longitude)), 1, after)[0].nominal
    order = [
        built(_part(event, latitude, longitude)).previous(noon + TICK)
        if EVENTS.index(event) <= 4
        else built(_part(event, latitude, longitude)).next(noon)
        for event in ("dawn_civil", "sunrise", "solar_noon", "sunset", "dusk_civil")
    ]
    moments = [fire.nominal for fire in order if fire]
    assert len(moments) == 5
    assert moments == sorted(moments)
    assert moments[-1] - moments[0] < timedelta(hours=24)


@settings(deadline=None, max_examples=repetitions(60))
@given(
    st.sampled_from(EVENTS), st.floats(-70, 70), st.floats(-180, 180), st.integers(-86_400, 86_400)
)
def test_both_directions_and_the_count_agree(
    event: str, latitude: float, longitude: float, offset: int
) -> None:
    rule = built(_part(event, latitude, longitude, offset))
    start = datetime(2026, 3, 1, tzinfo=UTC)
    found = fires(rule, 12, start)
    assert rule.count(start, found[-1].nominal).number == len(found)


def test_the_offset_moves_the_fire() -> None:
    plain, before = (built(_part("sunset", 51.5, -0.1, offset)) for offset in (0, -600))
    assert fires(before, 1)[0].nominal + timedelta(minutes=10) == fires(plain, 1)[0].nominal


def test_a_polar_night_has_no_sunrise_but_a_noon() -> None:
    start, end = datetime(2026, 12, 1, tzinfo=UTC), datetime(2027, 1, 10, tzinfo=UTC)
    assert built(_part("sunrise", **TROMSO)).count(start, end).number == 0
    assert built(_part("solar_noon", **TROMSO)).count(start, end).number == 40
    last, first = (
        built(_part("sunrise", **TROMSO)).previous(end),
        built(_part("sunrise", **TROMSO)).next(start),
    )
    assert last is not None
    assert first is not None
    assert (last.nominal.month, first.nominal.month) == (11, 1)


def test_an_event_that_never_occurs_at_a_location_is_refused() -> None:
    with pytest.raises(InvalidSchedule, match="sunrise' never comes at latitude 90"):
        checked([_part("sunrise", 90, 0)])


@pytest.mark.parametrize(
    ("part", "why"),
    [
        (_part("moonrise", 0, 0), "solar='moonrise'"),
        (_part("sunset", 91, 0), "latitude=91"),
        (_part("sunset", 0, -181), "longitude=-181"),
        (_part("sunset", float("nan"), 0), "latitude=nan"),
        (_part("sunset", 0, 0, 90_000), "offset=90000"),
        ({"solar": "sunset", "latitude": 1}, "longitude=None"),
        ({"solar": "sunset", "latitude": "1", "longitude": 1}, "latitude='1'"),
    ],
)
def test_an_invalid_location_is_refused(part: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidSchedule, match=why):
        checked([part])


def test_a_count_of_centuries_is_bounded() -> None:
    count = built(_part("sunset", 51.5, -0.1)).count(
        datetime(1500, 1, 1, tzinfo=UTC), datetime(2500, 1, 1, tzinfo=UTC)
    )
    assert not count.exact
    assert count.number > 3_000
