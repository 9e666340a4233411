"""Calendars: which days are open, why others are closed, and how several calendars are combined."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_durable_tasks.choices import DayKind, SpecialDay
from django_durable_tasks.exceptions import InvalidCalendar
from django_durable_tasks.schedules.business_days import (
    BusinessDays,
    combined,
    days_from,
    from_holidays,
)

CHRISTMAS = SpecialDay(date(2026, 12, 25), DayKind.CLOSED, "Christmas Day")
EVE = SpecialDay(date(2026, 12, 24), DayKind.HALF, "Christmas Eve", time(13))
INVENTORY = SpecialDay(date(2026, 12, 26), DayKind.OPEN, "Inventory")
OFFICE = BusinessDays(name="office", special=(CHRISTMAS, EVE, INVENTORY))
WEEKEND = BusinessDays(name="weekend", working_days=(6, 7))


def _at(day: int, hour: int = 9, minute: int = 0) -> datetime:
    return datetime(2026, 12, day, hour, minute)


def test_weekdays_are_open_unless_a_special_day_closes_them() -> None:
    opened = [day for day in range(21, 29) if OFFICE.is_open(date(2026, 12, day))]
    assert opened == [21, 22, 23, 24, 26, 28]


@pytest.mark.parametrize(
    ("local", "why"),
    [
        (_at(23), ""),
        (_at(24, 13), ""),
        (_at(24, 13, 1), "after 13:00 on Christmas Eve (half day)"),
        (_at(25), "Christmas Day"),
        (_at(26), ""),
        (_at(27), "Sunday"),
    ],
)
def test_a_closed_hour_has_a_reason(local: datetime, why: str) -> None:
    assert OFFICE.why_closed(local) == why


def test_a_closed_date_without_a_name_is_described_by_its_date() -> None:
    days = BusinessDays(special=(SpecialDay(date(2026, 12, 25)),))
    assert days.why_closed(_at(25)) == "2026-12-25 is closed"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"working_days": ()}, "calendar 'x' has no working day"),
        ({"working_days": (), "special": (CHRISTMAS,)}, "has no working day"),
        ({"working_days": (0, 1)}, r"working_days has 0; weekdays are 1 \(Monday\) to 7"),
        ({"working_days": (True,)}, "working_days has True"),
        (
            {"special": (CHRISTMAS, SpecialDay(CHRISTMAS.day, DayKind.OPEN))},
            "2026-12-25 is given twice",
        ),
        (
            {"special": (SpecialDay(CHRISTMAS.day, DayKind.HALF),)},
            "2026-12-25 is HALF: a half day.*has `until`",
        ),
        (
            {"special": (SpecialDay(CHRISTMAS.day, DayKind.CLOSED, "", time(9)),)},
            "2026-12-25 is CLOSED",
        ),
        (
            {"special": tuple(SpecialDay(date(1, 1, 1) + timedelta(n)) for n in range(20_001))},
            "20001 dates",
        ),
    ],
)
def test_an_invalid_calendar_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidCalendar, match=words):
        BusinessDays(name="x", **given)


def test_the_order_of_the_dates_makes_no_difference() -> None:
    turned = BusinessDays(
        name="office", working_days=(5, 4, 3, 2, 1), special=(INVENTORY, EVE, CHRISTMAS)
    )
    assert turned == OFFICE
    assert hash(turned) == hash(OFFICE)
    assert turned != BusinessDays(name="office")


days = st.dates(date(2026, 12, 1), date(2027, 1, 31))
special_days = st.builds(
    lambda day, kind, hour: SpecialDay(
        day, kind, f"{kind} {day}", hour if kind is DayKind.HALF else None
    ),
    days,
    st.sampled_from(DayKind),
    st.times(min_value=time(6), max_value=time(20)),
)
calendars = st.builds(
    lambda working, special: BusinessDays(
        name="any", working_days=tuple(working), special=tuple(special)
    ),
    st.sets(st.integers(1, 7), min_size=1),
    st.lists(special_days, max_size=12, unique_by=lambda one: one.day),
)


@given(st.lists(calendars, min_size=1, max_size=3), st.datetimes(_at(1), datetime(2027, 1, 31)))
def test_combined_calendars_are_open_if_all_are(
    several: list[BusinessDays], local: datetime
) -> None:
    try:
        both = combined(several)
    except InvalidCalendar:
        assert not set.intersection(*(set(one.working_days) for one in several))
        assert not all(one.is_open(local.date()) for one in several)
        return
    assert (both.why_closed(local) == "") == all(one.why_closed(local) == "" for one in several)


def test_the_closing_calendar_of_a_combined_day_is_named() -> None:
    trade = BusinessDays(
        name="trade", special=(SpecialDay(CHRISTMAS.day, DayKind.CLOSED, "Bank holiday"),)
    )
    both = combined([OFFICE, trade])
    assert both.name == "office + trade"
    assert both.why_closed(_at(25)) == "Christmas Day / Bank holiday"
    assert both.why_closed(_at(26)) == "Saturday"
    assert both.why_closed(_at(24, 14)) == "after 13:00 on Christmas Eve (half day)"


def test_calendars_that_together_leave_no_day_are_refused() -> None:
    with pytest.raises(InvalidCalendar, match=r"'office \+ weekend'.*no working day"):
        combined([BusinessDays(name="office"), WEEKEND])
    with pytest.raises(InvalidCalendar, match="at least one"):
        combined([])


@pytest.mark.parametrize("step", [1, -1])
@given(offsets=st.sets(st.integers(-5_000, 5_000), min_size=1, max_size=12))
def test_without_working_days_only_the_dates_are_examined(step: int, offsets: set[int]) -> None:
    start, way = date(2026, 3, 2), timedelta(days=step)
    dates = tuple(SpecialDay(start + timedelta(days=one), DayKind.OPEN) for one in offsets)
    few = BusinessDays(working_days=(), special=dates)
    assert list(few.may_open(start, way)) == [
        one for one in days_from(start, way) if few.is_open(one)
    ]


def test_holidays_are_a_snapshot_of_the_requested_years() -> None:
    bavaria = from_holidays("DE", "BY", [2026, 2027])
    names = {special.day: special.name for special in bavaria}
    assert {special.kind for special in bavaria} == {DayKind.CLOSED}
    assert {day.year for day in names} == {2026, 2027}
    assert date(2026, 1, 6) in names
    assert date(2026, 1, 6) not in {special.day for special in from_holidays("DE", "BE", [2026])}


def test_an_exchange_has_holidays_too() -> None:
    assert date(2026, 4, 3) in {special.day for special in from_holidays("XNYS", None, [2026])}


@pytest.mark.parametrize(
    ("country", "subdivision", "years", "words"),
    [
        ("XX", None, [2026], "country='XX'.*not available"),
        ("DE", "ZZ", [2026], "subdivision='ZZ'.*does not have subdivision"),
        ("DE", None, [], "give 1 to 100 years"),
        ("DE", None, range(1900, 2100), "give 1 to 100 years"),
    ],
)
def test_unknown_holidays_are_refused(
    country: str, subdivision: str | None, years: Any, words: str
) -> None:
    with pytest.raises(InvalidCalendar, match=words):
        from_holidays(country, subdivision, years)
