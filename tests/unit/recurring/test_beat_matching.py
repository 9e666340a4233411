"""Fires of beat are matched with fire times of the schedule: each once, and none is lost."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from django_durable_tasks.contrib.beat.shadow_fires import EARLY, matched

START = datetime(2026, 3, 2, 9, tzinfo=UTC)
TOLERANCE = timedelta(seconds=30)


def _at(*seconds: float) -> list[datetime]:
    return [START + timedelta(seconds=one) for one in seconds]


def test_a_late_fire_belongs_to_its_fire_time() -> None:
    match = matched(_at(0, 60, 120), _at(0.1, 65, 120), TOLERANCE)
    assert list(match.lags.values()) == [0.1, 5.0, 0.0]
    assert (match.only_here, match.only_beat) == ([], [])


def test_a_fire_that_beat_omitted_does_not_shift_the_others() -> None:
    match = matched(_at(0, 10, 20, 30), _at(0.1, 20.1, 30.1), TOLERANCE)
    assert match.only_here == _at(10)
    assert [round(lag, 3) for lag in match.lags.values()] == [0.1, 0.1, 0.1]


def test_duplicate_and_additional_fires_are_of_beat_only() -> None:
    match = matched(_at(0, 60), _at(0.1, 0.2, 45, 60), TOLERANCE)
    assert match.only_beat == _at(0.2, 45)


def test_a_clock_slightly_ahead_is_no_difference() -> None:
    assert matched(_at(60), _at(59.5), TOLERANCE).only_beat == []
    assert matched(_at(60), _at(58.5), TOLERANCE).only_beat == _at(58.5)


_TIMES = st.lists(st.integers(0, 200), unique=True, max_size=20).map(
    lambda found: _at(*sorted(found))
)


@given(_TIMES, _TIMES)
def test_every_fire_is_matched_once(here: list[datetime], beat: list[datetime]) -> None:
    match = matched(here, beat, TOLERANCE)
    assert sorted([*match.lags, *match.only_here]) == here
    assert len(match.lags) + len(match.only_beat) == len(beat)
    assert all(-EARLY.total_seconds() <= lag <= 30 for lag in match.lags.values())
    assert set(match.only_beat) <= set(beat)
