"""``durable`` on recurring tasks and calendars: list, show, trigger, pause, override, explain."""

from __future__ import annotations

import getpass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from django_durable_tasks.models import Calendar, OccurrenceRecord, RecurringTask, Task, Tenant
from django_durable_tasks.schedules import calendars
from django_durable_tasks.store.clock import database_now
from tests.database.commands.durable_command import durable, json_of
from tests.database.recurring.schedules import (
    DAILY,
    START,
    a_schedule,
    at,
    fire,
    fire_times,
    tomorrow,
)

pytestmark = pytest.mark.django_db


def iso(instant: datetime) -> str:
    """Return an instant in the format of the command."""
    return instant.isoformat()


def a_daily_schedule() -> RecurringTask:
    """Declare a schedule that fires once a day and whose ledger is complete up to now."""
    row = a_schedule(cron=DAILY)
    RecurringTask.objects.unguarded().update(watermark_at=database_now(), next_run_at=tomorrow())
    return row


# Lists --------------------------------------------------------------------------------------------


def test_recurring_tasks_are_listed_with_their_schedule_in_words() -> None:
    a_schedule("first")
    a_schedule("second", cron="30 2 * * *", timezone="Europe/Berlin").pause("deploy")
    second, first = json_of("list", "recurring")
    assert (first["name"], first["status"], first["next_run_at"]) == (
        "first",
        "ACTIVE",
        "2026-03-02T09:00:00Z",
    )
    assert "02:30" in second["schedule"]
    assert [row["name"] for row in json_of("list", "recurring", "--status", "PAUSED")] == ["second"]
    assert json_of("list", "recurring", "--queue", "nowhere") == []
    page = json_of("list", "recurring", "--after", second["id"], "--limit", 1)
    assert [row["name"] for row in page] == ["first"]
    assert "second" in durable("list", "recurring").out


def test_a_recurring_task_is_shown_with_its_next_fires_its_ledger_and_no_secrets() -> None:
    row = a_schedule(kwargs={"password": "hunter2"}, task="tests.project.tasks.echo")
    fire(START)
    row.refresh_from_db()
    shown = json_of("show", "nightly")
    assert shown == json_of("show", row.pk)
    assert shown["ledger"][0]["outcome"] == "DISPATCHED"
    assert len(shown["next_fires"]) == 5
    assert "hunter2" not in str(shown)
    text = durable("show", "nightly").out
    assert "next fires:" in text
    assert "last ledger entries:" in text


def test_a_corrupted_schedule_is_shown_with_its_error() -> None:
    a_schedule()
    RecurringTask.objects.unguarded().update(time_zone="Moon/Crater", revision=99)
    shown = json_of("show", "nightly")
    assert "Moon/Crater" in shown["problem"]
    assert shown["next_fires"] == []


def test_a_name_that_two_tenants_have_needs_the_tenant() -> None:
    a_schedule()
    other = Tenant.objects.create(slug="other", name="Other")
    a_schedule(tenant=other)
    assert "add --tenant" in durable("run-now", "nightly").err
    assert json_of("run-now", "nightly", "--tenant", "other")["status"] in ("PENDING", "QUEUED")
    assert Task.objects.get().tenant_id == other.pk


# Triggering ---------------------------------------------------------------------------------------


def test_a_manual_trigger_records_the_user_and_runs_once_per_request() -> None:
    a_schedule()
    first = json_of("run-now", "nightly", "--request-id", "deploy-17")
    assert json_of("run-now", "nightly", "--request-id", "deploy-17")["task"] == first["task"]
    assert OccurrenceRecord.objects.get().reason == f"by {getpass.getuser()}"
    assert json_of("run-now", "nightly")["held"] is True
    assert "waiting until earlier runs" in durable("run-now", "nightly").out


def test_a_backfill_is_shown_and_then_executed() -> None:
    row = a_schedule(catch_up_mode="SKIP_MISSED", misfire_grace=1)
    fire(at(150))
    span = ("backfill", "nightly", iso(START), iso(at(120)))
    would = json_of(*span, "--dry-run")
    assert (would["created"], would["dry_run"], fire_times(row)) == (3, True, [])
    assert "would be: 3 created, 0 replayed, 0 left" in durable(*span, "--dry-run").out
    done = json_of(*span, "--concurrency", 3, "--order", "NEWEST")
    assert [step["action"] for step in done["steps"]] == ["CREATED"] * 3
    assert fire_times(row) == [START, at(60), at(120)]
    assert json_of(*span, "--reprocess", "ALL")["left"] == 3
    assert (
        "nightly has no fire time from"
        in durable("backfill", "nightly", iso(at(1)), iso(at(2))).out
    )


# Pausing ------------------------------------------------------------------------------------------


def test_a_resume_catches_up_at_a_pace_on_request() -> None:
    row = a_schedule(catch_up_mode="RUN_ALL_MISSED", max_catchup_runs=2, overlap="ALLOW")
    durable("pause", "--recurring", "nightly")
    json_of("resume", "--recurring", "nightly", "--run-missed", "--pace", "30")
    assert fire(database_now()) >= 2
    row.refresh_from_db()
    assert row.catchup_pace == 30


def test_fire_times_are_overridden_and_restored() -> None:
    a_daily_schedule()
    day = timedelta(days=1)
    one = json_of("override", "nightly", iso(tomorrow()), "--skip", "--reason", "holiday")
    assert one["next_run_at"] == iso(tomorrow() + day).replace("+00:00", "Z")
    assert (
        "will not run: skipped by hand: holiday"
        in durable("explain", "nightly", iso(tomorrow())).out
    )
    assert (
        json_of(
            "override", "nightly", iso(tomorrow()), "--move", iso(tomorrow() + timedelta(hours=1))
        )["action"]
        == "MOVE"
    )
    assert (
        json_of("override", "nightly", iso(tomorrow() + timedelta(hours=2)), "--add")["action"]
        == "ADD"
    )
    assert [row["action"] for row in json_of("show", "nightly")["overrides"]] == ["MOVE", "ADD"]
    assert json_of("override", "nightly", iso(tomorrow()), "--remove")["removed"] is True
    answer = durable("override", "nightly", iso(tomorrow()), "--remove")
    assert (answer.code, "There was no override" in answer.out) == (2, True)


# Explaining ---------------------------------------------------------------------------------------


def test_an_instant_is_explained_and_the_ledger_is_paged() -> None:
    row = a_schedule(overlap="ALLOW")
    for minute in range(3):
        fire(at(60 * minute))
    assert json_of("explain", "nightly", iso(START))["account"] == row.explain(START)
    lines = json_of("ledger", "nightly", "--limit", 2)
    assert [line["fire_time"] for line in lines] == ["2026-03-02T09:02:00Z", "2026-03-02T09:01:00Z"]
    answer = durable("ledger", "nightly", "--limit", 2)
    assert "--before 2026-03-02T09:01:00+00:00" in answer.err
    rest = json_of("ledger", "nightly", "--before", "2026-03-02T09:01:00+00:00")
    assert [line["fire_time"] for line in rest] == ["2026-03-02T09:00:00Z"]
    assert json_of("ledger", "nightly", "--outcome", "MISSED") == []


# Calendars ----------------------------------------------------------------------------------------

_ICS = """BEGIN:VCALENDAR
BEGIN:VEVENT
UID:1
DTSTART;VALUE=DATE:20260309
SUMMARY:Works outing
END:VEVENT
END:VCALENDAR
"""


def test_a_calendar_file_is_imported_and_moves_the_schedules_of_the_calendar(
    tmp_path: Path,
) -> None:
    (tmp_path / "office.ics").write_text(_ICS)
    calendars.upsert("office")
    row = a_schedule(cron="0 9 * * *", start_time=START + timedelta(days=7), calendar="office")
    done = json_of(
        "calendars",
        "import",
        tmp_path / "office.ics",
        "--name",
        "office",
        "--year",
        2026,
        "--years",
        1,
    )
    assert (done["dates"], done["revision"]) == (1, 2)
    row.refresh_from_db()
    assert row.next_run_at == START + timedelta(days=8)
    (listed,) = json_of("calendars")
    assert (listed["name"], listed["dates"], listed["origin"]) == (
        "office",
        1,
        str(tmp_path / "office.ics"),
    )
    answer = durable("calendars", "delete", "--name", "office")
    assert (answer.code, "is named by 1 recurring tasks" in answer.err) == (2, True)


def test_holidays_are_imported_for_a_tenant_and_deleted() -> None:
    Tenant.objects.create(slug="other", name="Other")
    words: Any = ("--name", "germany", "--tenant", "other")
    json_of(
        "calendars",
        "import",
        "holidays:DE",
        *words,
        "--year",
        2026,
        "--working-days",
        "1,2,3,4,5,6",
    )
    made = Calendar.objects.get(tenant__slug="other")
    assert made.working_days == [1, 2, 3, 4, 5, 6]
    assert json_of("calendars", "--tenant", "other")[0]["name"] == "germany"
    assert json_of("calendars", "delete", *words)["deleted"] is True
    assert durable("calendars", "delete", *words).code == 2
