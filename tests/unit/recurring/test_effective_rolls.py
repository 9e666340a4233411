"""With a calendar, the effective schedule equals brute force: in any zone, across clock changes, in
both directions.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_durable_tasks.choices import DayKind, SpecialDay
from django_durable_tasks.schedules.agenda import (
    Agenda,
    PlannedRun,
    SkippedRange,
    WallClock,
    agenda,
)
from django_durable_tasks.schedules.business_days import BusinessDays, Roll
from django_durable_tasks.schedules.timetables.types import Fire
from tests.repetitions import repetitions
from tests.unit.recurring.calendars.enumerated import (
    DAY,
    LENGTH,
    MINUTE,
    Instants,
    first_shown,
    lands,
    stream,
)

CLOCKS = {
    "UTC": date(2026, 3, 1),
    "America/New_York": date(2026, 3, 8),
    "Europe/London": date(2026, 10, 25),
    "Australia/Lord_Howe": date(2026, 4, 5),
    "Antarctica/Troll": date(2026, 3, 29),
    "Pacific/Apia": date(2011, 12, 30),
    "America/Havana": date(2026, 3, 8),
    "America/St_Johns": date(2006, 10, 29),
    "America/Sao_Paulo": date(2017, 2, 19),
}
ROLLS = [Roll.FOLLOWING, Roll.PRECEDING, Roll.MODIFIED_FOLLOWING]


class Case(NamedTuple):
    """A zone around a clock change, a calendar, and fires by the numbers of their half hours."""

    zone: str
    slots: Sequence[int]
    days: BusinessDays

    @property
    def start(self) -> datetime:
        return _start(self.zone)

    @property
    def fires(self) -> list[datetime]:
        return [self.start + slot * 30 * MINUTE for slot in self.slots]


def _start(zone: str) -> datetime:
    return datetime.combine(CLOCKS[zone] - LENGTH / 2, time(12), UTC)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw fires on the half hour, dense or sparse, and a calendar with random closed days."""
    zone = draw(st.sampled_from(sorted(CLOCKS)))
    start, slots = _start(zone), LENGTH // timedelta(minutes=30)
    steps = st.sampled_from([1, 2, 3, 7, 48]).map(lambda step: range(0, slots, step))
    chosen = draw(steps | st.lists(st.integers(0, slots), max_size=40, unique=True).map(sorted))
    kinds = st.tuples(
        st.integers(0, LENGTH.days), st.sampled_from(DayKind), st.sampled_from([1, 2, 9, 13])
    )
    special = [
        SpecialDay(
            (start + number * DAY).date(), kind, kind, time(hour) if kind is DayKind.HALF else None
        )
        for number, kind, hour in draw(st.lists(kinds, max_size=10, unique_by=lambda one: one[0]))
    ]
    working = tuple(draw(st.sampled_from([(1, 2, 3, 4, 5), (6, 7), (3,), (1, 2, 3, 4, 5, 6, 7)])))
    days = BusinessDays(name="any", working_days=working, special=tuple(special))
    return Case(zone, chosen, days)


def _forward(rolled: Agenda, moment: datetime, end: datetime) -> list[PlannedRun]:
    found = []
    while (planned := rolled.next(moment)) is not None and planned.at <= end:
        assert planned.at > moment
        found.append(planned)
        moment = planned.at
    return found


def _backward(rolled: Agenda, moment: datetime, end: datetime) -> list[PlannedRun]:
    found = []
    while (planned := rolled.previous(moment)) is not None and planned.at >= end:
        assert planned.at < moment
        found.append(planned)
        moment = planned.at
    return found


thorough = settings(
    deadline=None, max_examples=repetitions(60), suppress_health_check=[HealthCheck.too_slow]
)


@thorough
@given(cases(), st.sampled_from(Roll))
def test_both_directions_return_every_run_once_and_in_order(case: Case, roll: Roll) -> None:
    rolled = agenda(Instants(case.fires), zone=case.zone, days=case.days, roll=roll)
    expected = list(stream(case.fires, case.zone, case.start, case.days, roll).items())
    first, last = case.start - 40 * DAY, case.start + LENGTH + 40 * DAY
    assert [(one.at, one.nominal) for one in _forward(rolled, first, last)] == expected
    assert [(one.at, one.nominal) for one in _backward(rolled, last, first)] == expected[::-1]


@thorough
@given(cases(), st.sampled_from(Roll), st.integers(-30 * 1440, 48 * 1440))
def test_from_any_minute_the_neighbours_are_right(case: Case, roll: Roll, minute: int) -> None:
    rolled = agenda(Instants(case.fires), zone=case.zone, days=case.days, roll=roll)
    expected = stream(case.fires, case.zone, case.start, case.days, roll)
    moment = case.start + minute * MINUTE
    after, before = rolled.next(moment), rolled.previous(moment)
    assert (after and after.at) == min((at for at in expected if at > moment), default=None)
    assert (before and before.at) == max((at for at in expected if at < moment), default=None)


@thorough
@given(cases(), st.sampled_from(Roll))
def test_every_fire_time_has_one_answer(case: Case, roll: Roll) -> None:
    rolled = agenda(Instants(case.fires), zone=case.zone, days=case.days, roll=roll)
    at_by_nominal = {
        nominal: at
        for at, nominal in stream(case.fires, case.zone, case.start, case.days, roll).items()
    }
    for nominal in case.fires:
        answer = rolled.at_nominal(nominal)
        assert answer is not None
        if nominal in at_by_nominal:
            assert isinstance(answer, PlannedRun)
            assert (answer.nominal, answer.at) == (nominal, at_by_nominal[nominal])
            assert answer.rolled == bool(case.days.why_closed(WallClock(case.zone).shown(nominal)))
        else:
            assert isinstance(answer, SkippedRange)
            assert (answer.first, answer.last, answer.count) == (nominal, nominal, 1)
        assert rolled.at_nominal(nominal + MINUTE) is None


@thorough
@given(cases(), st.sampled_from(Roll), st.integers(0, 18 * 1440), st.integers(0, 18 * 1440))
def test_counts_are_exact_or_marked_as_at_least(
    case: Case, roll: Roll, one: int, other: int
) -> None:
    rolled = agenda(Instants(case.fires), zone=case.zone, days=case.days, roll=roll)
    expected = stream(case.fires, case.zone, case.start, case.days, roll)
    after, until = (case.start + minute * MINUTE for minute in sorted([one, other]))
    runs = sum(after < at <= until for at in expected)
    counted = rolled.count(after, until)
    assert counted.number == runs if counted.exact else counted.number <= runs
    gone = [
        nominal
        for nominal in case.fires
        if after < nominal <= until and nominal not in set(expected.values())
    ]
    closed = rolled.closed(after, until)
    number = sum(stretch.count for stretch in closed)
    if len(case.fires) <= 400 or roll is Roll.SKIP:  # few enough to be enumerated
        ends = {moment for stretch in closed for moment in (stretch.first, stretch.last)}
        assert number == len(gone)
        assert {min(ends), max(ends)} == {gone[0], gone[-1]} if gone else not closed
        assert all(stretch.exact for stretch in closed)
    else:
        assert (
            number == len(gone)
            if closed and all(stretch.exact for stretch in closed)
            else number <= len(gone)
        )


@given(st.sampled_from(sorted(CLOCKS)), st.integers(-20 * 1440, 38 * 1440))
@settings(deadline=None)
def test_a_wall_time_maps_to_the_instant_found_by_examining_every_minute(
    zone: str, minute: int
) -> None:
    wall = (_start(zone) + minute * MINUTE).replace(tzinfo=None)
    assert WallClock(zone).lands(wall) == lands(zone, _start(zone), wall)


@given(st.sampled_from(sorted(CLOCKS)), st.integers(-20 * 1440, 38 * 1440))
@settings(deadline=None)
def test_the_last_wall_time_before_an_instant_is_found(zone: str, minute: int) -> None:
    moment = _start(zone) + minute * MINUTE
    landed = [wall for wall, at in first_shown(zone, _start(zone)).items() if at <= moment]
    reach = WallClock(zone).reach(moment)
    assert max(landed) <= reach < max(landed) + MINUTE


def test_hours_of_one_day_may_roll_forward_and_back() -> None:
    half = [
        SpecialDay(date(2026, 3, day), DayKind.HALF, "", time(hour))
        for day, hour in ((30, 9), (31, 12))
    ]
    fires = [datetime(2026, 3, 30, hour, tzinfo=UTC) for hour in (10, 13)]
    days = BusinessDays(name="halves", special=tuple(half))
    rolled = agenda(Instants(fires), zone="UTC", days=days, roll=Roll.MODIFIED_FOLLOWING)
    back, forward = datetime(2026, 3, 27, 13, tzinfo=UTC), datetime(2026, 3, 31, 10, tzinfo=UTC)
    assert [(one.at, one.nominal) for one in _forward(rolled, back - DAY, forward)] == [
        (back, fires[1]),
        (forward, fires[0]),
    ]
    assert [one.at for one in _backward(rolled, forward + DAY, back)] == [forward, back]


class _Asked(Instants):
    """Fires that count how often the next one is asked for."""

    asked = 0

    def next(self, after: datetime) -> Fire | None:
        self.asked += 1
        return super().next(after)


@pytest.mark.parametrize("roll", ROLLS)
def test_the_search_for_a_run_does_not_read_all_half_days_that_follow(roll: Roll) -> None:
    start, number = date(2026, 3, 1), 500
    halves = [SpecialDay(start + n * DAY, DayKind.HALF, "", time(12)) for n in range(number)]
    days = BusinessDays(name="halves", working_days=(1,), special=tuple(halves))
    fires = _Asked([datetime(2026, 3, 1, tzinfo=UTC) + n * DAY for n in range(number)])
    first = datetime(2026, 3, 2, tzinfo=UTC)
    runs = _forward(agenda(fires, zone="UTC", days=days, roll=roll), first, first + 10 * DAY)
    assert len(runs) == 10
    assert fires.asked < number
