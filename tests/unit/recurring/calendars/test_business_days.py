"""Calendars: which days are open, why others are closed, and how several calendars are combined."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import date, datetime, time, timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from django_durable_tasks.choices import DayKind, SpecialDay
from django_durable_tasks.exceptions import InvalidCalendar
from django_durable_tasks.schedules.business_days import (
    BusinessDays,
    combined,
    days_from,
    from_holidays,
    longest_closure,
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
@given(
    offsets=st.sets(st.integers(-5_000, 5_000), max_size=12),
    closed=st.sets(st.integers(-40, 40)),
    half=st.dictionaries(st.integers(-30, 30), st.integers(0, 23)),
    asked=st.lists(st.tuples(st.integers(-50, 50), st.integers(0, 23)), min_size=1, max_size=9),
    working=st.sampled_from([(), (1, 2, 3, 4, 5), (7,)]),
)
@example(
    offsets=set(),
    closed=set(),
    half={5: 1},
    asked=[(5, 9), (4, 9), (6, 9)],
    working=(1, 2, 3, 4, 5),
)
def test_the_next_open_day_is_found_whatever_was_found_before(
    step: int,
    offsets: set[int],
    closed: set[int],
    half: dict[int, int],
    asked: list[tuple[int, int]],
    working: tuple[int, ...],
) -> None:
    """Also without working days, and when the answers of other days are remembered."""
    start, way = date(2026, 3, 2), timedelta(days=step)
    kinds = dict.fromkeys(offsets, DayKind.OPEN) | dict.fromkeys(closed, DayKind.CLOSED)
    kinds |= dict.fromkeys(half, DayKind.HALF)
    kinds.setdefault(9_000, DayKind.OPEN)  # no calendar is without an open day
    dates = tuple(
        SpecialDay(
            start + timedelta(days=at),
            kind,
            until=time(half[at]) if kind is DayKind.HALF else None,
        )
        for at, kind in kinds.items()
    )
    days = BusinessDays(working_days=working, special=dates)
    for at, o_clock in asked:
        day, hour = start + timedelta(days=at), time(o_clock)
        passed, first = list[date](), None
        for other in days_from(day, way):
            if days.open_at(other, hour):
                first = other
                break
            passed.append(other)
        found, closes = days.next_open(day, hour, way)
        assert found == first
        latest = max(filter(None, map(days.closes, passed)), default=None)
        assert closes == latest if first else (closes or time.max) >= (latest or time.min)


def test_a_search_over_many_closed_days_examines_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first, examined = date(2026, 12, 1), list[date]()
    closed = [SpecialDay(first + timedelta(days=at), DayKind.CLOSED) for at in range(500)]
    half = [
        SpecialDay(first + timedelta(days=at), DayKind.HALF, until=time(0, at % 50))
        for at in range(500, 1_000)
    ]
    days, open_at = BusinessDays(special=(*closed, *half)), BusinessDays.open_at

    def counting(self: BusinessDays, day: date, hour: time) -> bool:
        examined.append(day)
        return open_at(self, day, hour)

    monkeypatch.setattr(BusinessDays, "open_at", counting)
    for at in range(1_000):
        day, _ = days.next_open(first + timedelta(days=at), time(9), timedelta(days=1))
        assert day == date(2029, 8, 27)
    assert len(examined) <= 2_010


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


@pytest.mark.parametrize(
    ("working", "closed", "expected"),
    [
        ((1, 2, 3, 4, 5, 6, 7), [], 1),
        ((1, 2, 3, 4, 5), [], 3),
        ((7,), [], 7),
        ((1, 2, 3, 4, 5), range(20), 24),  # three weeks, and the weekends around them
    ],
)
def test_the_longest_closure_is_counted_between_open_days(
    working: tuple[int, ...], closed: Sequence[int], expected: int
) -> None:
    first = date(2026, 3, 2)
    special = [SpecialDay(first + timedelta(days=at), DayKind.CLOSED) for at in closed]
    days = BusinessDays(working_days=working, special=tuple(special))
    open_days = [day for at in range(-30, 60) if days.is_open(day := first + timedelta(days=at))]
    gaps = [(later - earlier).days for earlier, later in itertools.pairwise(open_days)]
    assert longest_closure(days) == max(gaps) == expected
