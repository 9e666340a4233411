"""Overrides skip, move and add single fire times; closed calendar days are reported with their
names.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_durable_tasks.choices import Action, DayKind, SpecialDay
from django_durable_tasks.exceptions import InvalidSchedule
from django_durable_tasks.schedules.agenda import Agenda, Override, PlannedRun, SkippedRange, agenda
from django_durable_tasks.schedules.business_days import BusinessDays, Roll
from django_durable_tasks.schedules.timetables.intervals import Interval
from django_durable_tasks.schedules.timetables.types import Count

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
MONDAY = datetime(2026, 12, 21, 9, tzinfo=UTC)
DAILY = Interval(MONDAY - 21 * DAY, DAY)
OFFICE = BusinessDays(
    name="office",
    special=(
        SpecialDay(date(2026, 12, 25), DayKind.CLOSED, "Christmas Day"),
        SpecialDay(date(2026, 12, 24), DayKind.HALF, "Christmas Eve", time(8)),
    ),
)
TUESDAY, FRIDAY, SATURDAY, SUNDAY = (MONDAY + n * DAY for n in (1, 4, 5, 6))


def _runs(schedule: Agenda, after: datetime, until: datetime) -> list[PlannedRun]:
    found = []
    while (run := schedule.next(after)) is not None and run.at <= until:
        found.append(run)
        after = run.at
    return found


def test_closed_days_are_reported_as_one_range_with_their_reasons() -> None:
    schedule = agenda(DAILY, zone="UTC", days=OFFICE)
    (stretch,) = schedule.closed(MONDAY, SUNDAY)
    assert (stretch.first, stretch.last, stretch.count, stretch.exact) == (
        FRIDAY - DAY,
        SUNDAY,
        4,
        True,
    )
    assert stretch.outcome == "SKIPPED_CALENDAR"
    assert (
        stretch.reason
        == "calendar 'office' is closed: after 08:00 on Christmas Eve (half day), Christmas Day,"
        " Saturday, Sunday"
    )


def test_a_rolled_run_has_its_origin_reason_and_rule() -> None:
    weekly = Interval(SATURDAY - 14 * DAY, 7 * DAY)
    (run,) = _runs(agenda(weekly, zone="UTC", days=OFFICE, roll=Roll.PRECEDING), MONDAY, SUNDAY)
    assert run == PlannedRun(
        SATURDAY,
        SATURDAY - 3 * DAY,
        ("rolled from 2026-12-26 09:00 (Saturday) by PRECEDING",),
        rolled=True,
    )


def test_a_run_that_replaces_others_says_so() -> None:
    schedule = agenda(DAILY, zone="UTC", days=OFFICE, roll=Roll.FOLLOWING)
    run = schedule.next(SUNDAY)
    assert run is not None
    assert not run.rolled
    assert (
        run.remarks[1]
        == "also for 2026-12-25T09:00:00Z, rolled from 2026-12-25 09:00 (Christmas Day) by"
        " FOLLOWING"
    )
    met = schedule.at_nominal(FRIDAY)
    assert isinstance(met, SkippedRange)
    assert (
        met.reason
        == "calendar 'office' is closed: Christmas Day; by FOLLOWING it meets a fire that runs"
    )


def test_a_roll_into_a_clock_gap_runs_right_after_it() -> None:
    sunday = datetime(
        2026, 3, 29, 1, 30, tzinfo=UTC
    )  # the gap in Berlin is from 02:00 to 03:00 this day
    weekly = Interval(sunday - DAY - timedelta(hours=0), 7 * DAY)
    days = BusinessDays(name="sundays", working_days=(7,))
    run = agenda(weekly, zone="Europe/Berlin", days=days, roll=Roll.FOLLOWING).next(sunday - HOUR)
    assert run is not None
    assert run.at == datetime(2026, 3, 29, 1, tzinfo=UTC)
    assert (
        run.remarks[1]
        == "DST gap: 02:30 does not exist on 2026-03-29 in Europe/Berlin; runs right after it, at"
        " 03:00"
    )


def test_a_timetable_that_fires_on_closed_days_only_never_runs_and_is_detected_soon() -> None:
    weekly = Interval(SATURDAY - 7 * DAY, 7 * DAY)
    schedule = agenda(weekly, zone="UTC", days=OFFICE)
    assert schedule.next(MONDAY) is None
    assert schedule.previous(MONDAY) is None
    assert schedule.count(MONDAY, MONDAY + 70 * DAY) == Count(0)


class _Counting:
    """A timetable that counts its calls."""

    def __init__(self, inner: Interval) -> None:
        self.inner, self.asked = inner, 0

    def __getattr__(self, name: str) -> Any:
        self.asked += 1
        return getattr(self.inner, name)


@pytest.mark.parametrize("roll", Roll)
def test_ten_million_fires_are_processed_by_bounded_work(roll: Roll) -> None:
    every_second: Any = _Counting(Interval(MONDAY - 400 * DAY, timedelta(seconds=1)))
    schedule = agenda(every_second, zone="Europe/Berlin", days=OFFICE, roll=roll)
    schedule.next(SATURDAY)
    schedule.previous(SATURDAY)
    schedule.count(MONDAY - 300 * DAY, MONDAY)
    schedule.closed(MONDAY - 300 * DAY, MONDAY)
    assert every_second.asked < 10_000


def test_skipping_a_calendar_counts_millions_exactly() -> None:
    every_second = Interval(MONDAY - 400 * DAY, timedelta(seconds=1))
    schedule = agenda(every_second, zone="UTC", days=BusinessDays(name="week"))
    assert schedule.count(MONDAY, MONDAY + 700 * DAY) == Count(500 * 86_400)
    (stretch,) = schedule.closed(MONDAY, MONDAY + 700 * DAY)
    assert (stretch.count, stretch.exact, stretch.reason) == (
        200 * 86_400,
        True,
        "calendar 'week' is closed: Saturday, Sunday",
    )


def test_a_calendar_of_a_few_dates_ends_with_them() -> None:
    once = BusinessDays(
        name="once", working_days=(), special=(SpecialDay(TUESDAY.date(), DayKind.OPEN),)
    )
    assert [run.at for run in _runs(agenda(DAILY, zone="UTC", days=once), MONDAY, SUNDAY)] == [
        TUESDAY
    ]
    rolled = agenda(DAILY, zone="UTC", days=once, roll=Roll.FOLLOWING)
    assert rolled.next(TUESDAY) is None
    lost = rolled.at_nominal(FRIDAY)
    assert isinstance(lost, SkippedRange)
    assert lost.reason.endswith("FOLLOWING finds no open day within ten years")


def test_a_fire_is_skipped_moved_and_added_manually() -> None:
    schedule = agenda(
        DAILY,
        zone="UTC",
        overrides=[
            Override(TUESDAY, Action.SKIP, reason="inventory"),
            Override(FRIDAY, Action.MOVE, move_to=FRIDAY + 3 * HOUR),
            Override(SATURDAY + HOUR, Action.ADD, reason="asked for"),
        ],
    )
    runs = _runs(schedule, MONDAY, SATURDAY + 2 * HOUR)
    assert [run.at for run in runs] == [
        MONDAY + 2 * DAY,
        MONDAY + 3 * DAY,
        FRIDAY + 3 * HOUR,
        SATURDAY,
        SATURDAY + HOUR,
    ]
    assert [run for run in runs if run.overridden] == [
        PlannedRun(
            FRIDAY,
            FRIDAY + 3 * HOUR,
            ("moved by hand from 2026-12-25T09:00:00Z to 2026-12-25T12:00:00Z",),
            overridden=True,
        ),
        PlannedRun(
            SATURDAY + HOUR, SATURDAY + HOUR, ("added by hand: asked for",), overridden=True
        ),
    ]
    assert schedule.count(MONDAY, SATURDAY + 2 * HOUR) == Count(5)
    assert schedule.closed(MONDAY, SUNDAY) == [
        SkippedRange(TUESDAY, TUESDAY, 1, True, "OVERRIDDEN", "skipped by hand: inventory")
    ]
    assert schedule.at_nominal(FRIDAY) == runs[2]
    assert schedule.at_nominal(SATURDAY + HOUR) == runs[4]
    assert schedule.at_nominal(TUESDAY) == schedule.closed(MONDAY, SUNDAY)[0]
    assert schedule.previous(SATURDAY) == runs[2]


def test_an_added_fire_runs_on_a_closed_day_too() -> None:
    schedule = agenda(
        DAILY,
        zone="UTC",
        days=OFFICE,
        roll=Roll.FOLLOWING,
        overrides=[Override(SATURDAY, Action.ADD)],
    )
    assert [run.at for run in _runs(schedule, FRIDAY, SUNDAY)] == [SATURDAY]
    assert schedule.next(SATURDAY) == schedule.next(SUNDAY)


def test_a_fire_onto_which_others_rolled_may_be_skipped() -> None:
    monday = MONDAY + 7 * DAY
    schedule = agenda(
        DAILY,
        zone="UTC",
        days=OFFICE,
        roll=Roll.FOLLOWING,
        overrides=[Override(monday, Action.SKIP)],
    )
    run = schedule.next(SUNDAY)
    assert run is not None
    assert (run.at, run.nominal, run.rolled) == (monday, FRIDAY - DAY, True)


def test_a_move_onto_an_existing_fire_makes_one_run() -> None:
    move = Override(TUESDAY, Action.MOVE, move_to=TUESDAY + DAY)
    schedule = agenda(
        DAILY, zone="UTC", overrides=[move, Override(FRIDAY, Action.MOVE, move_to=TUESDAY + DAY)]
    )
    assert [run.nominal for run in _runs(schedule, MONDAY, TUESDAY + DAY)] == [TUESDAY + DAY]
    assert schedule.count(MONDAY, TUESDAY + DAY) == Count(1)
    assert {stretch.first for stretch in schedule.closed(MONDAY, SUNDAY)} == {TUESDAY, FRIDAY}
    met = schedule.at_nominal(TUESDAY)
    assert isinstance(met, SkippedRange)
    assert met.outcome == "OVERRIDDEN"
    assert met.reason.endswith("it meets a fire that runs")


@pytest.mark.parametrize("action", [Action.SKIP, Action.MOVE])
def test_an_override_of_no_fire_time_changes_nothing(action: Action) -> None:
    move_to = TUESDAY + 2 * HOUR if action is Action.MOVE else None
    schedule = agenda(DAILY, zone="UTC", overrides=[Override(TUESDAY + HOUR, action, move_to)])
    assert _runs(schedule, MONDAY, SUNDAY) == _runs(agenda(DAILY, zone="UTC"), MONDAY, SUNDAY)
    assert schedule.closed(MONDAY, SUNDAY) == []


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ([Override(TUESDAY, "DANCE")], "action='DANCE': give SKIP, MOVE or ADD"),
        ([Override(TUESDAY, Action.MOVE)], "takes move_to"),
        ([Override(TUESDAY, Action.SKIP, TUESDAY)], "takes move_to"),
        ([Override(TUESDAY, Action.SKIP), Override(TUESDAY, Action.ADD)], "there are two"),
    ],
)
def test_contradicting_overrides_are_refused(overrides: list[Override], words: str) -> None:
    with pytest.raises(InvalidSchedule, match=words):
        agenda(DAILY, zone="UTC", overrides=overrides)


hours = st.integers(0, 14 * 24).map(lambda number: MONDAY + number * HOUR)
actions = st.dictionaries(hours, st.one_of(st.none(), st.just("ADD"), hours), max_size=8)


@given(actions)
def test_the_effective_schedule_equals_the_fires_with_the_overrides(
    changes: dict[datetime, Any],
) -> None:
    every_third = Interval(MONDAY - 30 * HOUR, 3 * HOUR)
    overrides = [
        Override(
            at,
            Action.SKIP if what is None else "ADD" if what == "ADD" else "MOVE",
            None if what == "ADD" else what,
        )
        for at, what in changes.items()
    ]
    schedule = agenda(every_third, zone="UTC", overrides=overrides)
    after, until = MONDAY - HOUR, MONDAY + 15 * DAY
    fires = {every_third.anchor + n * 3 * HOUR for n in range(200)}
    expected = fires - changes.keys()
    expected |= {
        at if what == "ADD" else what
        for at, what in changes.items()
        if what and (what == "ADD" or at in fires)
    }
    expected = {at for at in expected if after < at <= until}
    runs = _runs(schedule, after, until)
    assert [run.at for run in runs] == sorted(expected)
    assert schedule.count(after, until) == Count(len(expected))
    back, moment = [], until + timedelta(seconds=1)
    while (run := schedule.previous(moment)) is not None and run.at > after:
        back.append(run)
        moment = run.at
    assert back == runs[::-1]
    out = sum(stretch.count for stretch in schedule.closed(after, until))
    considered = {at for at in fires if after < at <= until} | {
        at for at, what in changes.items() if what == "ADD"
    }
    assert len(considered) == len(runs) + out


# Bounds -------------------------------------------------------------------------------------------
#
# Without calendar and overrides, the effective schedule equals its timetable within bounds.


START = datetime(2026, 11, 20, 12, tzinfo=UTC)
HOURLY = Interval(START - timedelta(days=9), HOUR)


def test_every_fire_runs_at_its_fire_time() -> None:
    plain = agenda(HOURLY, zone="UTC")
    assert plain.next(START) == PlannedRun(START + HOUR, START + HOUR)
    assert plain.previous(START) == PlannedRun(START - HOUR, START - HOUR)
    assert plain.count(START, START + 5 * HOUR) == Count(5)
    assert plain.closed(START, START + 5 * HOUR) == []
    assert plain.at_nominal(START) == PlannedRun(START, START)
    assert plain.at_nominal(START + timedelta(seconds=1)) is None


def test_bounds_are_inclusive() -> None:
    bounded = agenda(HOURLY, zone="UTC", start=START, end=START + 2 * HOUR)
    assert bounded.next(START - 5 * HOUR) == PlannedRun(START, START)
    assert bounded.next(START + HOUR) == PlannedRun(START + 2 * HOUR, START + 2 * HOUR)
    assert bounded.next(START + 2 * HOUR) is None
    assert bounded.previous(START) is None
    assert bounded.previous(START + 9 * HOUR) == PlannedRun(START + 2 * HOUR, START + 2 * HOUR)
    assert bounded.count(START - 9 * HOUR, START + 9 * HOUR) == Count(3)
    assert bounded.count(START + 3 * HOUR, START + 9 * HOUR) == Count(0)
    assert bounded.at_nominal(START - HOUR) is None


def test_bounds_in_another_zone_are_the_same_instants() -> None:
    east = timezone(timedelta(hours=5))
    assert agenda(HOURLY, zone="UTC", start=START.astimezone(east)).next(
        START - HOUR
    ) == PlannedRun(START, START)


def test_a_start_at_the_maximum_datetime_is_refused() -> None:
    with pytest.raises(InvalidSchedule, match="up to the year 9998"):
        agenda(HOURLY, zone="UTC", start=datetime(9999, 1, 1, tzinfo=UTC))


def test_an_end_at_the_maximum_datetime_is_no_end() -> None:
    endless = agenda(HOURLY, zone="UTC", end=datetime.max.replace(tzinfo=UTC))
    assert endless.next(START) == agenda(HOURLY, zone="UTC").next(START)
    assert endless.previous(START) == agenda(HOURLY, zone="UTC").previous(START)


def test_an_end_before_the_start_is_refused() -> None:
    with pytest.raises(InvalidSchedule, match=r"end_time=.* is before start_time="):
        agenda(HOURLY, zone="UTC", start=START, end=START - HOUR)
