"""Cron expressions: their meaning, and invalid ones with field and reason."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from croniter import croniter
from hypothesis import example, given, settings
from hypothesis import strategies as st

from django_durable_tasks.exceptions import InvalidSchedule
from django_durable_tasks.schedules.timetables.builder import checked, never_fires
from tests.repetitions import repetitions
from tests.unit.recurring.timetables.queries import built, fires, shown
from tests.unit.recurring.timetables.wall_clock_table import Diary, Expression

MEANINGS = [
    ("@daily", ["2026-01-01 00:00", "2026-01-02 00:00"]),
    ("@WEEKLY", ["2026-01-04 00:00", "2026-01-11 00:00"]),
    ("@yearly", ["2026-01-01 00:00", "2027-01-01 00:00"]),
    ("0 9 * * MON-FRI", ["2026-01-01 09:00", "2026-01-02 09:00", "2026-01-05 09:00"]),
    ("0 0 1 jan,Jul *", ["2026-01-01 00:00", "2026-07-01 00:00"]),
    (
        "50/4 0 * * *",
        ["2026-01-01 00:50", "2026-01-01 00:54", "2026-01-01 00:58", "2026-01-02 00:50"],
    ),
    ("59/15 * * * *", ["2026-01-01 00:59", "2026-01-01 01:59"]),
    ("17 23-23/24 * * *", ["2026-01-01 23:17", "2026-01-02 23:17"]),
    ("0 0 * JAN-jan 1-1", ["2026-01-05 00:00", "2026-01-12 00:00"]),
    (
        "0 22-2/2 * * *",
        ["2026-01-01 00:00", "2026-01-01 02:00", "2026-01-01 22:00", "2026-01-02 00:00"],
    ),
    (
        "0 0 * * FRI-MON",
        ["2026-01-02 00:00", "2026-01-03 00:00", "2026-01-04 00:00", "2026-01-05 00:00"],
    ),
    ("0 0 * * 7", ["2026-01-04 00:00", "2026-01-11 00:00"]),
    ("0 0 * * 6-7", ["2026-01-03 00:00", "2026-01-04 00:00", "2026-01-10 00:00"]),
    ("0 0 L * *", ["2026-01-31 00:00", "2026-02-28 00:00", "2026-03-31 00:00"]),
    ("0 0 15,L 2 *", ["2026-02-15 00:00", "2026-02-28 00:00"]),
    ("0 0 * * 5L", ["2026-01-30 00:00", "2026-02-27 00:00"]),
    ("0 0 * * L5", ["2026-01-30 00:00", "2026-02-27 00:00"]),
    ("0 0 * * friL", ["2026-01-30 00:00", "2026-02-27 00:00"]),
    ("0 0 * * 5#3", ["2026-01-16 00:00", "2026-02-20 00:00"]),
    ("0 0 * * tue#5", ["2026-03-31 00:00", "2026-06-30 00:00"]),
    ("0 0 15W * *", ["2026-01-15 00:00", "2026-02-16 00:00", "2026-03-16 00:00"]),
    ("0 0 1W * *", ["2026-01-01 00:00", "2026-02-02 00:00"]),
    ("0 0 31W 5,8 *", ["2026-05-29 00:00", "2026-08-31 00:00"]),
    ("0 0 ? * 1", ["2026-01-05 00:00"]),
    ("0 0 13 * ?", ["2026-01-13 00:00"]),
    ("0 0 29 2 *", ["2028-02-29 00:00", "2032-02-29 00:00"]),
    ("0 0 29 2 */7", ["2032-02-29 00:00", "2060-02-29 00:00"]),
    ("  5   4 * *\t* ", ["2026-01-01 04:05"]),
]

REFUSALS = [
    ("", "give five fields"),
    ("* * * *", "4 fields; five are needed"),
    ("* * * * * *", "If one of them is seconds, give its position"),
    ("* * * * * * *", "7 fields"),
    ("R * * * *", "R is another time on every node; write H"),
    ("0 R(2-4) * * *", "R is another time"),
    ("R/15 * * * *", "R is another time"),
    ("@reboot", "nothing reboots here"),
    ("@every 1h", "interval=3600"),
    ("@fortnightly", "known are @annually"),
    ("0 0 LW * *", "'day': 'last working'"),
    ("0 0 L-3 * *", "'day': -4"),
    ("0 0 1,15W * *", "W stands with one date"),
    ("0 0 32W * *", "W stands with one date"),
    ("60 * * * *", "minute '60' cannot be read"),
    ("0 24 * * *", "hour '24' cannot be read"),
    ("0 0 32 * *", "day of month '32' cannot be read"),
    ("0 0 1 13 *", "month '13' cannot be read"),
    ("0 0 * * 8", "day of week '8' cannot be read"),
    ("0 0 * * 5#6", "day of week '5#6' cannot be read"),
    ("*/0 * * * *", r"minute '\*/0' cannot be read"),
    ("1- * * * *", "minute '1-' cannot be read"),
    ("-1 * * * *", "minute '-1' cannot be read"),
    ("1,,2 * * * *", "minute '1,,2' cannot be read"),
    ("1-2-3 * * * *", "minute '1-2-3' cannot be read"),
    ("0 0 * foo *", "month 'foo' cannot be read"),
    ("0 0 * * *; rm", "only letters, digits"),
    ("\u0663 * * * *", "only letters, digits"),
    ("0 0 31 2 *", "can never fire.*pause it instead"),
    ("0 0 30 2 *", "can never fire"),
    ("0 0 31 4,6,9,11 *", "can never fire"),
    ("*" * 25_000, "25000 characters"),
    (",".join(["1"] * 5_000) + " * * * *", "5000 items"),
    (",".join(["1"] * 250) + " * * * *", "at most 1000 characters and 200 items"),
]


@pytest.mark.parametrize(("text", "expected"), MEANINGS)
def test_an_expression_means_what_its_manual_says(text: str, expected: list[str]) -> None:
    assert shown(built({"cron": text}), len(expected)) == expected


@pytest.mark.parametrize(("text", "why"), REFUSALS, ids=[text[:30] for text, _ in REFUSALS])
def test_an_invalid_expression_is_refused_with_its_reason(text: str, why: str) -> None:
    with pytest.raises(InvalidSchedule, match=why) as refusal:
        checked([{"cron": text}])
    assert len(str(refusal.value)) < 400


@pytest.mark.parametrize("text", [None, 5, b"0 0 * * *", ["0 0 * * *"]])
def test_a_value_that_is_not_a_string_is_refused(text: Any) -> None:
    with pytest.raises(InvalidSchedule, match="give five fields"):
        checked([{"cron": text}])


@given(st.text(alphabet="0123456789*/,-#?()LWHRlwhr monjanfe@\t", max_size=40))
def test_any_text_is_either_parsed_or_refused(text: str) -> None:
    try:
        parts = checked([{"cron": text}], seed="a", allow_never=True)
    except InvalidSchedule:
        return
    assert checked(parts, seed="a", allow_never=True) == parts
    assert bool(fires(built(*parts, seed="a"), 2)) if not never_fires(parts, seed="a") else True


def test_one_of_two_restricted_day_fields_suffices_and_a_star_means_both() -> None:
    assert shown(built({"cron": "0 0 13 * 5"}), 3) == [
        "2026-01-02 00:00",
        "2026-01-09 00:00",
        "2026-01-13 00:00",
    ]
    assert shown(built({"cron": "0 0 1 * 5#1"}), 3) == [
        "2026-01-01 00:00",
        "2026-01-02 00:00",
        "2026-02-01 00:00",
    ]
    assert shown(built({"cron": "0 0 */13 * 5"}), 2) == ["2026-02-27 00:00", "2026-03-27 00:00"]
    assert shown(built({"cron": "0 0 13 * */5"}), 2) == ["2026-02-13 00:00", "2026-03-13 00:00"]


def test_six_fields_are_accepted_with_seconds_first_or_last() -> None:
    last = built({"cron": "30 2 * * * */20", "seconds": "LAST"})
    first = built({"cron": "*/20 30 2 * * *", "seconds": "FIRST"})
    assert shown(last, 4) == [
        "2026-01-01 02:30",
        "2026-01-01 02:30:20",
        "2026-01-01 02:30:40",
        "2026-01-02 02:30",
    ]
    assert fires(first, 9) == fires(last, 9)
    for seconds in ("MIDDLE", ["LAST"], 1):
        with pytest.raises(InvalidSchedule, match="write FIRST or LAST"):
            checked([{"cron": "* * * * * *", "seconds": seconds}])


def test_h_is_derived_from_the_seed_and_stable() -> None:
    part = {"cron": "H H(1-5) H * *"}
    mine = [shown(built(part, seed=seed), 12) for seed in ("nightly", "nightly", "other")]
    assert mine[0] == mine[1] != mine[2]
    assert len(mine[0]) == len({moment[:7] for moment in mine[0]}) == 12
    assert all(1 <= int(moment[11:13]) <= 5 and int(moment[8:10]) <= 28 for moment in mine[0])


def test_a_nickname_is_not_hashed_if_there_is_a_seed() -> None:
    assert shown(built({"cron": "@daily"}, seed="nightly"), 1) == ["2026-01-01 00:00"]


def test_parts_are_stored_in_one_form() -> None:
    assert checked([{"cron": "  0 9   * * MON ", "seconds": ""}]) == [{"cron": "0 9 * * MON"}]


def _field(low: int, high: int) -> st.SearchStrategy[str]:
    number, step = st.integers(low, high), st.integers(2, 9)
    item = st.one_of(
        number.map(str),
        st.tuples(number, number).map(lambda two: f"{min(two)}-{max(two)}"),
        st.tuples(number, step).map(lambda two: f"{two[0]}/{two[1]}"),
    )
    stars = st.just("*") | step.map(lambda step: f"*/{step}")
    return stars | st.lists(item, min_size=1, max_size=3).map(",".join)


_fields = st.tuples(_field(0, 59), _field(0, 23), _field(1, 28), _field(1, 12), _field(0, 6)).map(
    " ".join
)


@settings(max_examples=repetitions(50), deadline=None)
@example("* * 3 * 1/6")
@given(_fields)
def test_any_expression_of_numbers_fires_as_the_table(text: str) -> None:
    expression = Expression(text)
    rule = built({"cron": text})
    first = fires(rule, 1)[0].nominal
    midnight = first.replace(hour=0, minute=0)
    expected = Diary("UTC", midnight, midnight + timedelta(days=2)).fires(expression)
    assert [fire.nominal for fire in fires(rule, len(expected))] == expected
    assert rule.count(
        midnight - timedelta(seconds=1), midnight + timedelta(days=2, seconds=-1)
    ).number == len(expected)


@settings(deadline=None)
@given(_fields, st.datetimes(datetime(2024, 1, 1), datetime(2030, 1, 1)))
def test_croniter_finds_the_same_next_wall_time(text: str, after: datetime) -> None:
    fire = built({"cron": text}).next(after.replace(tzinfo=UTC))
    assert fire is not None
    walker = croniter(re.sub(r"\b(\d+)-\1\b", r"\1", text), after, implement_cron_bug=True)
    assert fire.nominal.replace(tzinfo=None) == walker.get_next(datetime)
