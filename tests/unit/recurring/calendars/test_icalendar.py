"""Calendar files close the days of their all-day events. Invalid lines are refused with their line
number.
"""

from __future__ import annotations

from datetime import date, datetime, timedelta

import pytest
from dateutil.rrule import rrulestr
from hypothesis import given, settings
from hypothesis import strategies as st

from django_durable_tasks.choices import DayKind, SpecialDay
from django_durable_tasks.exceptions import InvalidCalendar
from django_durable_tasks.schedules.business_days import BusinessDays, from_holidays, from_ics
from tests.repetitions import repetitions


def _file(*lines: str, end: str = "\r\n") -> str:
    return end.join(
        [
            "BEGIN:VCALENDAR",
            "VERSION:2.0",
            "BEGIN:VEVENT",
            *lines,
            "END:VEVENT",
            "END:VCALENDAR",
            "",
        ]
    )


def _days(*lines: str, years: tuple[int, ...] = (2026,)) -> list[str]:
    return [str(one.day) for one in from_ics(_file(*lines), years)]


def test_an_all_day_event_closes_its_day_with_its_name() -> None:
    found = from_ics(_file("DTSTART;VALUE=DATE:20261225", "SUMMARY:Christmas Day"), [2026])
    assert found == (SpecialDay(date(2026, 12, 25), DayKind.CLOSED, "Christmas Day"),)
    assert not BusinessDays(special=found).is_open(date(2026, 12, 25))


@pytest.mark.parametrize("end", ["DTEND;VALUE=DATE:20270102", "DURATION:P3D"])
def test_an_event_of_several_days_closes_all_of_them_within_the_years(end: str) -> None:
    lines = ("DTSTART;VALUE=DATE:20261230", end)
    assert _days(*lines) == ["2026-12-30", "2026-12-31"]
    assert _days(*lines, years=(2026, 2027)) == ["2026-12-30", "2026-12-31", "2027-01-01"]
    assert _days(*lines, years=(2027,)) == ["2027-01-01"]


def test_an_event_from_midnight_to_midnight_closes_the_day_too() -> None:
    assert _days(
        "DTSTART;TZID=Europe/Berlin:20261225T000000", "DTEND;TZID=Europe/Berlin:20261227T000000"
    ) == ["2026-12-25", "2026-12-26"]
    assert _days("DTSTART:20261225T000000Z", "DURATION:P1W")[-1] == "2026-12-31"


def test_lines_are_unfolded_and_texts_unescaped() -> None:
    (found,) = from_ics(
        _file(
            "DTSTART;VALUE=DATE:2026",
            " 1225",
            'SUMMARY;ALTREP="cid:x;y":Christmas\\, the',
            "\t first\\nday",
            end="\n",
        ),
        [2026],
    )
    assert found.name == "Christmas, the first day"


@pytest.mark.parametrize(
    ("lines", "days"),
    [
        (("DTSTART;VALUE=DATE:19991225", "RRULE:FREQ=YEARLY"), ["2026-12-25"]),
        (
            ("DTSTART;VALUE=DATE:20260101", "RRULE:FREQ=MONTHLY;COUNT=3"),
            ["2026-01-01", "2026-02-01", "2026-03-01"],
        ),
        (
            ("DTSTART;VALUE=DATE:20260101", "RRULE:FREQ=DAILY;UNTIL=20260102"),
            ["2026-01-01", "2026-01-02"],
        ),
        (("DTSTART;VALUE=DATE:20251127", "RRULE:FREQ=YEARLY;BYMONTH=11;BYDAY=4TH"), ["2026-11-26"]),
        (
            (
                "DTSTART;VALUE=DATE:20260101",
                "RRULE:FREQ=WEEKLY;COUNT=3",
                "EXDATE;VALUE=DATE:20260108",
            ),
            ["2026-01-01", "2026-01-15"],
        ),
        (
            ("DTSTART;VALUE=DATE:20260101", "RDATE;VALUE=DATE:20260301,20270301"),
            ["2026-01-01", "2026-03-01"],
        ),
        (
            ("DTSTART;VALUE=DATE:20260301", "RRULE:FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30"),
            ["2026-03-01"],
        ),
    ],
)
def test_recurrences_are_expanded_within_the_years(lines: tuple[str, ...], days: list[str]) -> None:
    assert _days(*lines) == days


def test_a_moved_instance_replaces_the_recurring_one() -> None:
    text = _file(
        "UID:a",
        "DTSTART;VALUE=DATE:20200501",
        "RRULE:FREQ=YEARLY",
        "SUMMARY:May day",
        "END:VEVENT",
        "BEGIN:VEVENT",
        "UID:a",
        "RECURRENCE-ID;VALUE=DATE:20260501",
        "DTSTART;VALUE=DATE:20260504",
        "SUMMARY:May day, moved",
    )
    assert from_ics(text, [2026, 2027]) == (
        SpecialDay(date(2026, 5, 4), DayKind.CLOSED, "May day, moved"),
        SpecialDay(date(2027, 5, 1), DayKind.CLOSED, "May day"),
    )


def test_cancelled_events_and_other_components_close_nothing() -> None:
    assert _days("DTSTART;VALUE=DATE:20261225", "STATUS:CANCELLED") == []
    alarm = ("BEGIN:VALARM", "DTSTART;VALUE=DATE:20261201", "END:VALARM")
    assert _days("DTSTART;VALUE=DATE:20261225", *alarm) == ["2026-12-25"]


def test_a_day_of_two_events_has_both_names() -> None:
    event = ("DTSTART;VALUE=DATE:20261225", "SUMMARY:Christmas", "END:VEVENT", "BEGIN:VEVENT")
    (found,) = from_ics(_file(*event, "DTSTART;VALUE=DATE:20261225", "SUMMARY:Noël"), [2026])
    assert found.name == "Christmas / Noël"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "line 1: an iCalendar file begins with BEGIN:VCALENDAR"),
        ("\n\nhello", "line 3: an iCalendar file begins"),
        (
            "BEGIN:VCALENDAR\nhello\nEND:VCALENDAR",
            "line 2: 'hello' is no line of an iCalendar file",
        ),
        ("BEGIN:VCALENDAR\nBEGIN:VEVENT\nEND:VCALENDAR", "line 3: END:VCALENDAR ends nothing"),
        ("BEGIN:VCALENDAR\nBEGIN:VEVENT\n", "line 2: BEGIN:VEVENT has no end"),
        ("BEGIN:VCALENDAR\nEND:VCALENDAR\nBEGIN:VEVENT", "line 3: an iCalendar file begins"),
        (_file("SUMMARY:x"), "line 3: this event has no DTSTART"),
        (_file("DTSTART:20261225T090000Z"), "line 4: DTSTART:20261225T090000Z has a time of day"),
        (_file("DTSTART;VALUE=DATE:20261232"), "line 4: DTSTART:20261232 is no date"),
        (_file("DTSTART:soon"), "line 4: DTSTART:soon is no date"),
        (_file("DTSTART:20261225", "DTEND:20261225"), "line 5: an event lasts 1 to"),
        (_file("DTSTART:20261225", "DTEND:20461225"), "line 5: an event lasts 1 to"),
        (_file("DTSTART:20261225", "DURATION:PT3H"), "line 5: an event lasts"),
        (_file("DTSTART:20261225T000000"), "line 4: an event lasts"),
        (_file("DTSTART:20261225", "RRULE:FREQ=SOMETIMES"), "line 5: rrule: FREQ='?SOMETIMES"),
        (_file("DTSTART:20261225", "EXDATE:x"), "line 5: EXDATE:x is no date"),
        ("x" * 2_000_001, "2000001 characters"),
        (_file(*["END:VEVENT", "BEGIN:VEVENT"] * 5_000), "line 10003: more than 5000 events"),
    ],
)
def test_invalid_lines_are_refused_with_their_number(text: str, words: str) -> None:
    with pytest.raises(InvalidCalendar, match=words):
        from_ics(text, [2026])


def test_too_many_days_and_too_many_years_are_refused() -> None:
    with pytest.raises(InvalidCalendar, match="line 3: more than 20000 days"):
        from_ics(_file("DTSTART:19900101", "RRULE:FREQ=DAILY"), range(1990, 2050))
    with pytest.raises(InvalidCalendar, match="give 1 to 100 years"):
        from_ics(_file("DTSTART:19900101"), range(1900, 2050))


rules = st.builds(
    lambda frequency, interval, bound, part: f"FREQ={frequency};INTERVAL={interval}{bound}{part}",
    st.sampled_from(["YEARLY", "MONTHLY", "WEEKLY", "DAILY"]),
    st.integers(1, 5),
    st.sampled_from(["", ";COUNT=7", ";UNTIL=20261130"]),
    st.sampled_from(["", ";BYMONTH=3,12", ";BYDAY=MO,FR", ";BYMONTHDAY=1,-1"]),
)


@given(rules, st.dates(date(2020, 1, 1), date(2026, 6, 1)))
@settings(deadline=None, max_examples=repetitions(60))
def test_recurrences_equal_those_of_dateutil(rule: str, start: date) -> None:
    begin = datetime.combine(start, datetime.min.time())
    expected = rrulestr(rule, dtstart=begin).between(
        datetime(2026, 1, 1), datetime(2026, 12, 31), inc=True
    )
    days = {str(one.date()) for one in expected} | ({str(start)} if start.year == 2026 else set())
    assert _days(f"DTSTART;VALUE=DATE:{start:%Y%m%d}", f"RRULE:{rule}") == sorted(days)


def test_a_file_of_the_holidays_package_closes_the_days_of_the_package() -> None:
    expected = from_holidays("DE", "BY", [2026, 2027])
    events = [
        line
        for one in expected
        for line in (
            "BEGIN:VEVENT",
            f"DTSTART;VALUE=DATE:{one.day:%Y%m%d}",
            f"DTEND;VALUE=DATE:{one.day + timedelta(1):%Y%m%d}",
            f"SUMMARY:{one.name}",
            "END:VEVENT",
        )
    ]
    assert (
        from_ics("\r\n".join(["BEGIN:VCALENDAR", *events, "END:VCALENDAR"]), [2026, 2027])
        == expected
    )
