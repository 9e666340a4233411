"""Parts of a schedule are validated one by one, stored in one form, combined by OR, and built once."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from django_durable_tasks.exceptions import DurableTasksError, InvalidSchedule
from django_durable_tasks.schedules.timetables.builder import checked, never_fires, timetable
from tests.repetitions import repetitions
from tests.unit.recurring.timetables.queries import START, TICK, built, fires, shown

PARTS: list[dict[str, Any]] = [
    {"interval": 5400},
    {"cron": "30 2 * * *"},
    {"cron": "*/15 1-3 * * *"},
    {"rrule": "FREQ=MONTHLY;BYDAY=-1FR"},
    {"solar": "sunset", "latitude": 51.5, "longitude": -0.1},
    {"every": "month", "day": "last working", "time": "17:00"},
    {
        "at": [
            "2026-03-08T07:00:00Z",
            datetime(2026, 3, 29, 1, tzinfo=UTC),
            "2026-03-08T08:00:00+01:00",
        ]
    },
]
ZONES = ["UTC", "America/New_York", "Australia/Lord_Howe", "Africa/Cairo"]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: next(iter(part)))
def test_a_validated_part_survives_json_and_a_second_validation(part: dict[str, Any]) -> None:
    parts = checked([part])
    assert json.loads(json.dumps(parts)) == parts
    assert checked(parts) == parts


@settings(deadline=None, max_examples=repetitions(100))
@given(
    st.lists(st.sampled_from(PARTS), min_size=1, max_size=4),
    st.sampled_from(ZONES),
    st.integers(0, 700 * 86_400_000_000),
)
def test_next_previous_and_count_agree_for_any_parts(
    parts: list[dict[str, Any]], zone: str, later: int
) -> None:
    rule = built(*parts, zone=zone)
    after = START + timedelta(microseconds=later)
    found = fires(rule, 25, after)
    if not found:
        assert rule.count(after, after + timedelta(days=3000)).number == 0
        return
    assert rule.count(after, found[-1].nominal).number == len(found)
    before = rule.previous(found[0].nominal)
    assert before is None or before.nominal <= after
    single = [built(part, zone=zone) for part in parts]
    nearest = [fire.nominal for one in single if (fire := one.next(after))]
    assert found[0].nominal == min(nearest)


def test_parts_that_fire_at_the_same_instant_fire_once_and_keep_their_remarks() -> None:
    day = datetime(2026, 3, 8, 5, tzinfo=UTC)
    rule = built({"cron": "30 2 * * *"}, {"at": ["2026-03-08T07:00:00Z"]}, zone="America/New_York")
    found = [fire for fire in fires(rule, 2, day) if fire.nominal < day + timedelta(hours=5)]
    assert len(found) == 1
    assert "02:30 does not exist" in found[0].remarks[0]
    assert rule.count(day, day + timedelta(hours=5)).number == 1


def test_a_long_range_of_several_parts_is_counted_as_at_least() -> None:
    rule = built({"cron": "* * * * *"}, {"interval": 60})
    count = rule.count(START, START + timedelta(days=365 * 20))
    assert (count.number, count.exact) == (365 * 20 * 1440, False)


def test_instants_are_stored_in_order_without_duplicates_and_in_utc() -> None:
    parts = checked([PARTS[-1]])
    assert parts == [{"at": ["2026-03-08T07:00:00Z", "2026-03-29T01:00:00Z"]}]
    rule = built(PARTS[-1])
    assert shown(rule, 5) == ["2026-03-08 07:00", "2026-03-29 01:00"]
    assert rule.previous(START) is None
    assert rule.count(START, START + timedelta(days=66, hours=7)).number == 1


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ([], "at least one part"),
        ("0 0 * * *", "list of at least one part"),
        ({"interval": 5}, "list of at least one part"),
        ([{}], "one of the keys interval, cron"),
        (["0 0 * * *"], "one of the keys"),
        ([{"cron": "0 0 * * *", "interval": 5}], "one of the keys"),
        ([{"interval": 5, "jitter": 3}], "jitter beside interval: nothing can stand there"),
        ([{"cron": "0 0 * * *", "minute": 3}], "minute beside cron: only seconds can"),
        ([{"interval": 5}] * 5_000, "5000 parts; a schedule can have 50"),
        ([{"interval": 5}, {"cron": "0 0 31 2 *"}], "0 0 31 2"),
        ([{"at": []}], "at least one instant"),
        ([{"at": "2026-01-01T00:00:00Z"}], "give a list"),
        ([{"at": ["2026-01-01T00:00:00"]}], "is naive"),
        ([{"at": ["2026-02-30T00:00:00Z"]}], "is no instant"),
        ([{"at": [5]}], "is no instant"),
        ([{"at": ["0001-01-01T00:00:00+14:00"]}], "is no instant"),
        ([{"at": ["2026-01-01T00:00:00Z"] * 20_000}], "can hold 10000"),
    ],
)
def test_an_invalid_schedule_is_refused(parts: Any, why: str) -> None:
    with pytest.raises(InvalidSchedule, match=why) as refusal:
        checked(parts)
    assert isinstance(refusal.value, DurableTasksError)
    assert isinstance(refusal.value, ValueError)
    assert len(str(refusal.value)) < 400


def test_a_schedule_that_never_fires_is_accepted_for_a_paused_row_only() -> None:
    parts = checked([{"cron": "0 0 31 2 *"}], allow_never=True)
    assert "can never fire" in never_fires(parts)
    assert never_fires([{"cron": "0 0 29 2 *"}]) == ""
    rule = timetable(parts, zone="UTC", anchor=START)
    assert rule.next(START) is None
    assert rule.previous(START) is None
    assert rule.count(START, START + timedelta(days=9_999)).number == 0


def test_the_same_parts_are_built_once() -> None:
    first, second = (timetable([{"cron": "5 4 * * *"}], zone="UTC", anchor=START) for _ in range(2))
    assert first is second
    assert timetable([{"cron": "5 4 * * *"}], zone="Europe/Berlin", anchor=START) is not first


def test_a_naive_instant_is_refused() -> None:
    naive = START.replace(tzinfo=None)
    with pytest.raises(InvalidSchedule, match="is naive"):
        timetable([{"interval": 60.0}], zone="UTC", anchor=naive)
    for question in (built({"cron": "0 0 * * *"}).next, built({"cron": "0 0 * * *"}).previous):
        with pytest.raises(ValueError, match="is naive"):
            question(naive)


def test_the_anchor_may_be_in_any_zone() -> None:
    anchor = datetime.fromisoformat("2026-01-01T02:00:00+02:00")
    assert fires(built({"interval": 3600}, anchor=anchor), 1, START - TICK)[0].nominal == START


def _of_two_schedules(part: dict[str, Any]) -> tuple[Any, Any]:
    """Return the timetables of two schedules that differ only in name and start."""
    first = timetable([part], zone="Europe/Berlin", anchor=START, seed="one")
    return first, timetable(
        [part], zone="Europe/Berlin", anchor=START + timedelta(days=1), seed="another"
    )


@pytest.mark.parametrize("text", ["30 2 * * *", "*/5 8-17 1,15 * *", "0 0 l * *"])
def test_schedules_with_the_same_cron_expression_share_one_timetable(text: str) -> None:
    first, second = _of_two_schedules({"cron": text})
    assert first is second


def test_schedules_whose_timetable_depends_on_their_name_or_start_have_their_own() -> None:
    for part in ({"cron": "H H * * *"}, {"interval": 90.0}, {"rrule": "FREQ=DAILY;COUNT=3"}):
        first, second = _of_two_schedules(part)
        assert first.next(START - TICK) != second.next(START - TICK)


def test_a_rule_that_fires_from_another_start_is_not_refused() -> None:
    odd = {"rrule": "FREQ=HOURLY;INTERVAL=2;BYHOUR=3"}
    assert checked([odd], anchor=datetime(2026, 1, 1, 4, tzinfo=UTC))
    assert "can never fire" in never_fires(
        [{"rrule": f"DTSTART:20260101T040000Z\nRRULE:{odd['rrule']}"}]
    )
