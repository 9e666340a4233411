"""``durable preview``, ``simulate``, ``dst-report`` and ``tzdata`` of stored schedules report and
change nothing.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_durable_tasks.choices import SpecialDay
from django_durable_tasks.models import Calendar, RecurringTask
from django_durable_tasks.schedules.agenda import Override
from django_durable_tasks.schedules.timetables.zones import tzdata_version
from tests.database.commands.durable_command import durable, json_of
from tests.database.recurring.schedules import a_schedule, override_directly
from tests.factories import a_tenant

pytestmark = pytest.mark.django_db

NIGHTLY: dict[str, Any] = {"cron": "30 2 * * *", "timezone": "America/New_York"}
MARCH = datetime(2026, 3, 1, tzinfo=UTC)
WEEKEND = ("--start", "2026-03-06T00:00:00Z", "--count", 3)
OUTAGE = ("--outage", "2026-03-07T00:00:00Z", "2026-03-10T12:00:00Z")


def _effective(fires: list[dict[str, Any]]) -> list[str]:
    return [fire["effective"] for fire in fires]


def test_a_stored_schedule_is_previewed_by_its_name() -> None:
    a_schedule("nightly", **NIGHTLY, start_time=MARCH)
    assert _effective(json_of("preview", "nightly", *WEEKEND)) == [
        "2026-03-06T07:30:00Z",
        "2026-03-07T07:30:00Z",
        "2026-03-08T07:00:00Z",
    ]


def test_an_edit_is_shown_beside_the_stored_schedule() -> None:
    a_schedule("nightly", **NIGHTLY, start_time=MARCH)
    words = ("preview", "nightly", "--cron", "30 2,14 * * *", *WEEKEND)
    found = json_of(*words)
    assert _effective(found["before"]) == [
        "2026-03-06T07:30:00Z",
        "2026-03-07T07:30:00Z",
        "2026-03-08T07:00:00Z",
    ]
    assert _effective(found["after"]) == [
        "2026-03-06T07:30:00Z",
        "2026-03-06T19:30:00Z",
        "2026-03-07T07:30:00Z",
    ]
    lines = durable(*words).out.splitlines()
    assert [line.split()[0] for line in lines[:5]] == ["CHANGE", "same", "new", "same", "gone"]
    assert RecurringTask.objects.get().timetable == [{"cron": "30 2 * * *"}]


def test_an_edit_keeps_the_stored_calendar_and_overrides_by_default() -> None:
    Calendar.objects.upsert("office", days=[SpecialDay(date(2026, 3, 9), name="Inventory")])
    row = a_schedule("daily", cron="0 9 * * *", start_time=MARCH, calendar=["office"])
    override_directly(
        row, Override(datetime(2026, 3, 10, 10, tzinfo=UTC), "SKIP", None, "moved house")
    )
    found = json_of("preview", "daily", "--cron", "0 10 * * *", *WEEKEND)
    assert _effective(found["before"]) == [
        "2026-03-06T09:00:00Z",
        "2026-03-10T09:00:00Z",
        "2026-03-11T09:00:00Z",
    ]
    assert _effective(found["after"]) == [
        "2026-03-06T10:00:00Z",
        "2026-03-11T10:00:00Z",
        "2026-03-12T10:00:00Z",
    ]
    answer = durable("preview", "daily", "--start", "2026-03-06T00:00:00Z", "--count", 2)
    assert (
        "left out: 3 from 2026-03-07T09:00:00Z to 2026-03-09T09:00:00Z: calendar 'office' is closed"
        in answer.err
    )


def test_the_preview_of_a_paused_schedule_says_so() -> None:
    a_schedule("nightly", **NIGHTLY, start_time=MARCH).pause("the vendor is closed")
    answer = durable("preview", "nightly", *WEEKEND)
    assert "nightly is PAUSED: it does not fire. the vendor is closed" in answer.err
    assert "2026-03-06 07:30:00Z" in answer.out


def test_names_are_looked_up_by_tenant() -> None:
    other = a_tenant()
    a_schedule("nightly", **NIGHTLY, start_time=MARCH)
    a_schedule("nightly", cron="0 5 * * *", start_time=MARCH, tenant=other)
    assert "Several tenants" in durable("preview", "nightly").err
    assert (
        _effective(json_of("preview", "nightly", *WEEKEND, "--tenant", other.slug))[0]
        == "2026-03-06T05:00:00Z"
    )
    assert "no recurring task 'daily'" in durable("preview", "daily").err
    assert (
        "--anchor goes with a description"
        in durable(
            "preview", "nightly", "--tenant", other.slug, "--anchor", "2026-01-01T00:00:00Z"
        ).err
    )


def test_an_outage_is_caught_up_by_one_run() -> None:
    a_schedule("nightly", **NIGHTLY, start_time=MARCH)
    found = json_of("simulate", "nightly", *OUTAGE)["schedule"]
    assert found["due"] == {"count": 4, "exact": True}
    (run,) = found["runs"]
    assert (run["nominal"], run["starts"], run["caught_up"]) == (
        "2026-03-10T06:30:00Z",
        "2026-03-10T12:00:00Z",
        True,
    )
    (gone,) = found["left_out"]
    assert (gone["outcome"], gone["count"], gone["reason"]) == ("MISSED", 3, "COALESCED")
    assert (gone["first"], gone["last"]) == ("2026-03-07T07:30:00Z", "2026-03-09T06:30:00Z")
    assert found["next"]["effective"] == "2026-03-11T06:30:00Z"
    assert found["complete"] is True


def test_catch_up_after_an_edit_is_shown_beside_the_stored_one() -> None:
    a_schedule("nightly", **NIGHTLY, start_time=MARCH)
    edit = ("--catch-up-mode", "RUN_ALL_MISSED", "--catchup-pace", 60)
    found = json_of("simulate", "nightly", *OUTAGE, *edit)
    assert [len(found[when]["runs"]) for when in ("before", "after")] == [1, 4]
    assert [run["starts"] for run in found["after"]["runs"]] == [
        f"2026-03-10T12:0{minute}:00Z" for minute in range(4)
    ]
    text = durable("simulate", "nightly", *OUTAGE, *edit).out
    assert "before: nightly, RUN_ONE_NOW, grace 60 s, overlap SKIP" in text
    assert "after: nightly, RUN_ALL_MISSED" in text
    assert RecurringTask.objects.get().catch_up_mode == "RUN_ONE_NOW"


def test_fires_that_are_too_late_or_on_closed_days_are_left_out() -> None:
    words = (
        "simulate",
        "--cron",
        "0 9 * * *",
        "--calendar",
        "weekdays",
        *OUTAGE,
        "--expires-in",
        3600,
    )
    found = json_of(*words)["schedule"]
    assert found["runs"] == []
    assert {(gone["outcome"], gone["count"]) for gone in found["left_out"]} == {
        ("SKIPPED_CALENDAR", 2),
        ("MISSED", 1),
        ("EXPIRED", 1),
    }


def test_ten_million_missed_fires_are_simulated_at_once() -> None:
    outage = ("--outage", "2026-01-01T00:00:00Z", "2026-07-01T00:00:00Z")
    found = json_of(
        "simulate", "--every", 1, *outage, "--catch-up-mode", "SKIP_MISSED", "--misfire-grace", 10
    )["schedule"]
    assert found["due"] == {"count": 181 * 86_400 + 1, "exact": True}
    assert sum(gone["count"] for gone in found["left_out"]) + len(found["runs"]) == 181 * 86_400 + 1


def test_schedules_affected_by_a_clock_change_are_reported() -> None:
    a_schedule("nightly", **NIGHTLY, start_time=MARCH)
    a_schedule("skips", **NIGHTLY, dst_gap="SKIP", start_time=MARCH)
    a_schedule("later", cron="0 9 * * *", timezone="America/New_York", start_time=MARCH)
    a_schedule("elsewhere", cron="30 2 * * *", timezone="Asia/Tokyo", start_time=MARCH)
    a_schedule("elapsed", interval=1800, start_time=MARCH)
    spring = json_of("dst-report", "--start", "2026-03-01T00:00:00Z", "--weeks", 2)
    assert [(row["name"], row["runs"], row["dst"]) for row in spring] == [
        ("nightly", True, "GAP"),
        ("skips", False, "GAP"),
    ]
    assert {row["change"] for row in spring} == {"2026-03-08T07:00:00Z +60 min"}
    assert json_of("dst-report", "--start", "2026-03-09T00:00:00Z", "--weeks", 4) == []
    assert (
        durable("dst-report", "--start", "2026-03-09T00:00:00Z", "--weeks", 4).out.strip()
        == "no schedule is touched"
    )


def test_a_repeated_hour_is_reported_with_the_occurrence_that_runs() -> None:
    autumn = ("--start", "2026-10-20T00:00:00Z", "--weeks", 3)
    for overlap, runs in (
        ("FIRST", [True, False]),
        ("LAST", [False, True]),
        ("BOTH", [True, True]),
    ):
        a_schedule(
            "nightly",
            cron="30 1 * * *",
            timezone="America/New_York",
            dst_overlap=overlap,
            start_time=MARCH,
        )
        found = json_of("dst-report", *autumn)
        assert [row["local"] for row in found] == [
            "2026-11-01T01:30:00-04:00",
            "2026-11-01T01:30:00-05:00",
        ]
        assert [row["runs"] for row in found] == runs
    assert "DST overlap: 01:30 comes twice" in durable("dst-report", *autumn).out


def test_schedules_of_zones_without_clock_changes_need_no_statement() -> None:
    spring = ("dst-report", "--start", "2026-03-01T00:00:00Z", "--weeks", 2, "--format", "json")
    counts = []
    for number in range(4):
        a_schedule(
            f"elsewhere-{number}", cron="30 2 * * *", timezone="Asia/Tokyo", start_time=MARCH
        )
        with CaptureQueriesContext(connection) as statements:
            durable(*spring)
        counts.append(len(statements))
    assert set(counts) == {counts[0]}


def test_a_change_of_the_zone_tables_is_listed() -> None:
    moves, stays = a_schedule("moves"), a_schedule("stays")
    assert moves.next_run_at is not None
    wrong = moves.next_run_at + timedelta(hours=1)
    RecurringTask.objects.unguarded().filter(pk=moves.pk).update(
        tzdata_version="2020a", next_run_at=wrong
    )
    RecurringTask.objects.unguarded().filter(pk=stays.pk).update(tzdata_version="2020a")
    found = json_of("tzdata")
    assert found["tzdata"] == tzdata_version()
    assert [(row["name"], row["by"]) for row in found["moved"]] == [("moves", "2020a")]
    assert "moves" in durable("tzdata").out
    RecurringTask.objects.unguarded().update(tzdata_version=tzdata_version())
    assert "no stored fire moves" in durable("tzdata").out
