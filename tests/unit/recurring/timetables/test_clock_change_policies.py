"""The effect of gaps and repetitions of the wall clock on a fire, under each policy, with the
remarks about it.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from django_durable_tasks.exceptions import InvalidSchedule
from django_durable_tasks.schedules.timetables.builder import timetable
from django_durable_tasks.schedules.timetables.types import DstGap, DstOverlap, Fire
from tests.unit.recurring.timetables.queries import START, built, fires

NEW_YORK = "America/New_York"
SPRING, AUTUMN = (
    datetime(2026, 3, 8, 5, tzinfo=UTC),
    datetime(2026, 11, 1, 4, tzinfo=UTC),
)  # midnight in New York


def _of_the_day(text: str, day: datetime, zone: str = NEW_YORK, **policies: Any) -> list[Fire]:
    rule = built({"cron": text}, zone=zone, **policies)
    return [
        fire
        for fire in fires(rule, 100, day - timedelta(microseconds=1))
        if fire.nominal < day + timedelta(days=1)
    ]


def _times(found: list[Fire]) -> list[str]:
    return [f"{fire.nominal:%H:%M}" for fire in found]


def test_a_skipped_time_fires_once_right_after_the_gap_with_a_remark() -> None:
    (fire,) = _of_the_day("30 2 * * *", SPRING)
    assert fire.nominal == datetime(2026, 3, 8, 7, tzinfo=UTC)
    assert fire.remarks == (
        (
            "DST gap: 02:30 does not exist on 2026-03-08 in America/New_York; fires right after it,"
            " at 03:00"
        ),
    )


def test_several_times_in_one_gap_fire_once_and_a_fire_at_its_end_is_the_same() -> None:
    (fire,) = _of_the_day("15,30,45 2 * * *", SPRING)
    assert "02:15 to 02:45 do not exist" in fire.remarks[0]
    assert _times(_of_the_day("30 2-3 * * *", SPRING)) == ["07:00", "07:30"]
    assert _times(_of_the_day("0 2-3 * * *", SPRING)) == ["07:00"]
    assert (
        built({"cron": "0 2-3 * * *"}, zone=NEW_YORK)
        .count(SPRING, SPRING + timedelta(hours=5))
        .number
        == 1
    )


def test_a_skipped_time_does_not_fire_if_the_policy_says_so() -> None:
    assert _of_the_day("30 2 * * *", SPRING, dst_gap="SKIP") == []


@pytest.mark.parametrize(
    ("policy", "times"), [("FIRST", ["05:30"]), ("LAST", ["06:30"]), ("BOTH", ["05:30", "06:30"])]
)
def test_a_repeated_time_fires_in_the_occurrence_that_the_policy_names(
    policy: str, times: list[str]
) -> None:
    found = _of_the_day("30 1 * * *", AUTUMN, dst_overlap=policy)
    assert _times(found) == times
    passes = {"05:30": "first", "06:30": "second"}
    assert [fire.remarks for fire in found] == [
        (
            (
                "DST overlap: 01:30 comes twice on 2026-11-01 in America/New_York; this is the"
                f" {passes[time]} pass"
            ),
        )
        for time in times
    ]


def test_the_second_occurrence_is_not_in_the_past() -> None:
    fire = built({"cron": "30 1 * * *"}, zone=NEW_YORK).next(
        datetime(2026, 11, 1, 6, 2, tzinfo=UTC)
    )
    assert fire == Fire(datetime(2026, 11, 2, 6, 30, tzinfo=UTC))


def test_a_wildcard_job_follows_the_real_clock_under_all_policies() -> None:
    for policies in ({}, {"dst_gap": "RUN_AFTER", "dst_overlap": "LAST"}):
        assert len(_of_the_day("*/15 * * * *", SPRING, **policies)) == 96
        assert len(_of_the_day("0 * * * *", AUTUMN, **policies)) == 24
        assert _times(_of_the_day("*/30 2 * * *", SPRING, **policies)) == []
        assert _times(_of_the_day("*/30 1 * * *", AUTUMN, **policies)) == [
            "05:00",
            "05:30",
            "06:00",
            "06:30",
        ]


def test_half_an_hour_lost_and_gained_on_lord_howe() -> None:
    spring, autumn = datetime(2026, 10, 3, 13, 30, tzinfo=UTC), datetime(2026, 4, 4, 13, tzinfo=UTC)
    assert _times(_of_the_day("0 * * * *", spring, "Australia/Lord_Howe"))[:3] == [
        "13:30",
        "14:30",
        "16:00",
    ]
    assert _times(_of_the_day("15 2 * * *", spring, "Australia/Lord_Howe")) == ["15:30"]
    assert _times(_of_the_day("30 2 * * *", spring, "Australia/Lord_Howe")) == ["15:30"]
    assert _times(_of_the_day("45 1 * * *", autumn, "Australia/Lord_Howe")) == ["14:45"]


def test_a_midnight_that_does_not_exist_fires_at_one() -> None:
    fire = _of_the_day("0 0 * * *", datetime(2026, 9, 6, 4, tzinfo=UTC), "America/Santiago")[0]
    assert fire.nominal == datetime(2026, 9, 6, 4, tzinfo=UTC)
    assert "00:00 does not exist on 2026-09-06" in fire.remarks[0]


def test_a_skipped_day_is_a_gap_like_any_other() -> None:
    rule = built({"cron": "30 2 * * *"}, zone="Pacific/Apia")
    found = fires(rule, 3, datetime(2011, 12, 29, tzinfo=UTC))
    assert [f"{fire.nominal:%d %H:%M}" for fire in found] == ["29 12:30", "30 10:00", "30 12:30"]
    assert found[1].remarks == (
        (
            "DST gap: 02:30 does not exist on 2011-12-30 in Pacific/Apia; fires right after it, at"
            " 2011-12-31 00:00"
        ),
    )


def test_ten_million_missed_fires_are_counted_exactly() -> None:
    for text, step in (("* * * * *", timedelta(minutes=1)), ("* * * * * *", timedelta(seconds=1))):
        part = {"cron": text} if len(text) < 10 else {"cron": text, "seconds": "LAST"}
        count = built(part, zone=NEW_YORK).count(START, START + 10_000_000 * step)
        assert (count.number, count.exact) == (10_000_000, True)


def test_fires_and_counts_end_at_the_maximum_datetime() -> None:
    rule = built({"cron": "* * * * *"}, zone=NEW_YORK)
    assert rule.next(datetime(9999, 6, 1, tzinfo=UTC)) is None
    assert rule.previous(datetime(1, 6, 1, tzinfo=UTC)) is None
    count = rule.count(START, datetime(9999, 1, 1, tzinfo=UTC))
    assert not count.exact
    assert count.number > 100 * 365 * 1440


def test_the_arguments_may_be_in_any_zone() -> None:
    rule = built({"cron": "30 2 * * *"}, zone=NEW_YORK)
    from_tokyo = datetime(2026, 3, 8, 16, tzinfo=timezone(timedelta(hours=9)))
    assert rule.next(from_tokyo) == rule.next(from_tokyo.astimezone(UTC))
    assert rule.previous(from_tokyo) == rule.previous(from_tokyo.astimezone(UTC))


@pytest.mark.parametrize("policies", [{"dst_gap": "LATER"}, {"dst_overlap": "NEVER"}])
def test_an_unknown_policy_is_refused_with_its_name(policies: dict[str, Any]) -> None:
    with pytest.raises(InvalidSchedule, match=r"dst_(gap='LATER'|overlap='NEVER'): give"):
        timetable([{"cron": "0 0 * * *"}], zone="UTC", anchor=START, **policies)


def test_policies_are_values_or_their_names() -> None:
    named = timetable(
        [{"cron": "0 0 * * *"}], zone="UTC", anchor=START, dst_gap="SKIP", dst_overlap="BOTH"
    )
    valued = timetable(
        [{"cron": "0 0 * * *"}],
        zone="UTC",
        anchor=START,
        dst_gap=DstGap.SKIP,
        dst_overlap=DstOverlap.BOTH,
    )
    assert named is valued
