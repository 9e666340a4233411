"""Jitter is deterministic, spreads over its range, and never reaches the next fire."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from django_durable_tasks.schedules.agenda import PlannedRun
from django_durable_tasks.schedules.misfires import effective

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
FIRE = PlannedRun(NOON, NOON)


@given(st.text(max_size=40), st.floats(0, 1e7), st.floats(0, 1000), st.integers(1, 10**12))
def test_a_run_starts_at_or_after_its_fire_and_before_the_next(
    seed: str, seconds: float, percent: float, microseconds: int
) -> None:
    following = NOON + timedelta(microseconds=microseconds)
    moment = effective(FIRE, following, seed, seconds, percent)
    assert NOON <= moment < following
    assert moment == effective(FIRE, following, seed, seconds, percent)


def test_seconds_and_percent_spread_over_their_whole_range() -> None:
    following = NOON + timedelta(seconds=100)
    by_seconds = [
        (effective(FIRE, None, str(seed), 60, 0) - NOON).total_seconds() for seed in range(500)
    ]
    by_percent = [
        (effective(FIRE, following, str(seed), 0, 50) - NOON).total_seconds() for seed in range(500)
    ]
    for spread, most in ((by_seconds, 60), (by_percent, 50)):
        assert 0 <= min(spread) < most * 0.05
        assert most * 0.95 < max(spread) < most


def test_it_depends_on_the_fire_time_and_the_schedule() -> None:
    other = PlannedRun(NOON + timedelta(hours=1), NOON)
    moments = {
        effective(FIRE, None, "a", 60, 0),
        effective(FIRE, None, "b", 60, 0),
        effective(other, None, "a", 60, 0),
    }
    assert len(moments) == 3


def test_without_a_next_fire_a_percentage_delays_nothing() -> None:
    assert effective(FIRE, None, "a", 0, 50) == NOON


def test_a_rolled_fire_is_delayed_from_its_rolled_instant() -> None:
    rolled = PlannedRun(NOON, NOON + timedelta(days=2), rolled=True)
    assert effective(rolled, None, "a", 60, 0) >= rolled.at
