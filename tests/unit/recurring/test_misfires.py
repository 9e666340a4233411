"""Decisions about missed fires: bounded work for any number of them, and nothing recorded twice."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_durable_tasks.choices import CatchUp, CatchUpOrder, SpecialDay
from django_durable_tasks.schedules.agenda import Agenda, PlannedRun, agenda
from django_durable_tasks.schedules.business_days import BusinessDays, Roll
from django_durable_tasks.schedules.misfires import AT_ONCE, Policy, choose, effective
from django_durable_tasks.schedules.timetables.builder import checked, timetable
from tests.repetitions import drawn

START = datetime(2026, 3, 2, 9, tzinfo=UTC)
BEFORE = START - timedelta(microseconds=1)
FRIDAYS = tuple(SpecialDay(date(2026, 1, 2) + timedelta(days=7 * week)) for week in range(300))
CLOSED_ON_FRIDAYS = BusinessDays(name="four days", special=FRIDAYS)
MILLION = 1_000_000
TIMETABLES: dict[str, tuple[list[dict[str, Any]], int]] = {
    "interval": ([{"interval": 1.0}], 10 * MILLION),
    "every minute": ([{"cron": "* * * * *"}], 600 * MILLION),
    "every second": ([{"cron": "* * * * * *", "seconds": "FIRST"}], 10 * MILLION),
    "a rule": ([{"rrule": "FREQ=MINUTELY"}], 600 * MILLION),
    "two that fall together": ([{"interval": 60.0}, {"cron": "* * * * *"}], 600 * MILLION),
    "two that do not": ([{"interval": 1.0}, {"interval": 0.7}], 10 * MILLION),
}


def _agenda(
    parts: list[dict[str, Any]], days: BusinessDays | None = None, roll: Roll = Roll.SKIP
) -> Agenda:
    times = timetable(checked(parts), zone="Europe/Berlin", anchor=START, days=days)
    return agenda(times, zone="Europe/Berlin", days=days, roll=roll, start=START)


def _calls(act: Callable[[], Any]) -> int:
    """Count the function calls of `act`, which measure its work independently of the machine's
    load.
    """
    number = 0

    def count(*_: Any) -> None:
        nonlocal number
        number += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        act()
    finally:
        sys.setprofile(before)
    return number


CALENDARS = [(None, Roll.SKIP), (CLOSED_ON_FRIDAYS, Roll.SKIP), (CLOSED_ON_FRIDAYS, Roll.FOLLOWING)]
MANY_MISSED = [
    pytest.param(kind, days, roll, catch_up, id=f"{kind}, {days and days.name}, {roll}, {catch_up}")
    for kind, (days, roll), catch_up in product(TIMETABLES, CALENDARS, CatchUp)
]


# A share of five has no common divisor with the lengths of the axes, so each day has cases of each.
@pytest.mark.parametrize(("kind", "days", "roll", "catch_up"), drawn(MANY_MISSED, 5))
def test_ten_million_missed_fires_are_decided_by_bounded_work(
    kind: str, days: BusinessDays | None, roll: Roll, catch_up: CatchUp
) -> None:
    parts, span = TIMETABLES[kind]
    fires, now, policy = (
        _agenda(parts, days, roll),
        START + timedelta(seconds=span),
        Policy(catch_up_mode=catch_up),
    )
    # Five million calls take some seconds at most; two calls per fire for ten million fires would be
    # four times that.
    assert (
        _calls(lambda: fires.closed(BEFORE, choose(fires, BEFORE, now, policy).through))
        < 5 * MILLION
    )
    choice = choose(fires, BEFORE, now, policy)
    assert choice.through == now
    assert choice.following is not None
    assert choice.following.at > now
    assert len(choice.runs) <= policy.max_catchup_runs + AT_ONCE
    assert 1 <= len(choice.missed) <= 2
    if kind == "interval" and days is None:
        assert sum(one.count for one in choice.missed) + len(choice.runs) == 10 * MILLION + 1


@pytest.mark.parametrize("order", CatchUpOrder)
@pytest.mark.parametrize("catch_up", CatchUp)
@pytest.mark.parametrize("roll", [Roll.FOLLOWING, Roll.PRECEDING, Roll.MODIFIED_FOLLOWING])
def test_with_rolls_too_every_fire_either_runs_or_is_recorded(
    roll: Roll, catch_up: CatchUp, order: CatchUpOrder
) -> None:
    """Compared with the effective schedule enumerated one by one; two hours apart, over a weekend
    and a closed Friday.
    """
    fires = _agenda([{"interval": 7_200.0}], CLOSED_ON_FRIDAYS, roll)
    policy = Policy(
        catch_up_mode=catch_up, misfire_grace=10_000, max_catchup_runs=7, catchup_order=order
    )
    watermark = BEFORE
    while watermark < START + timedelta(days=12):
        now = watermark + timedelta(hours=31)
        due, planned = list[PlannedRun](), fires.next(watermark)
        while planned is not None and planned.at <= now:
            due.append(planned)
            planned = fires.next(planned.at)
        choice = choose(fires, watermark, now, policy)
        runs = [chosen.planned for chosen in choice.runs]
        assert len({run.nominal for run in runs}) == len(runs)
        assert {run.nominal for run in runs} <= {run.nominal for run in due}
        assert len(runs) + sum(one.count for one in choice.missed) == len(due)
        assert all(one.first <= one.last for one in choice.missed)
        assert choice.following == planned
        watermark = choice.through


@dataclass(frozen=True, slots=True)
class _Stuck:
    """A faulty schedule, which returns the same fire again and again."""

    def next(self, after: datetime) -> PlannedRun:
        """Always return the same fire."""
        return PlannedRun(START, START)

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} is not asked")


def test_a_schedule_that_does_not_advance_is_an_error_and_no_endless_loop() -> None:
    stuck: Any = _Stuck()
    with pytest.raises(AssertionError, match="after 2026-03-02T09:00:00"):
        choose(stuck, BEFORE, START, Policy())


def test_a_tick_that_comes_too_early_moves_nothing_back() -> None:
    fires = _agenda([{"interval": 60.0}])
    choice = choose(fires, START + timedelta(seconds=90), START, Policy())
    assert (choice.runs, choice.missed, choice.through) == ((), (), START + timedelta(seconds=90))
    assert choice.following is not None
    assert choice.following.at == START + timedelta(seconds=120)


# Jitter -------------------------------------------------------------------------------------------
#
# Jitter is deterministic, spreads over its range, and never reaches the next fire.


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
