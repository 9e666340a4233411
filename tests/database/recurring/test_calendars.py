"""Schedules with calendars: fires on closed days are skipped or rolled, and a changed calendar
moves future fires.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_durable_tasks.choices import DayKind, SpecialDay
from django_durable_tasks.exceptions import InvalidCalendar, InvalidSchedule, TransitionRefused
from django_durable_tasks.models import Calendar, RecurringTask
from django_durable_tasks.schedules import calendars
from django_durable_tasks.schedules.business_days import from_holidays
from tests.database.recurring.schedules import a_schedule, fire, fire_times, ledger_of

pytestmark = pytest.mark.django_db

FRIDAY, SATURDAY, SUNDAY, MONDAY, TUESDAY = (
    datetime(2026, 3, day, 9, tzinfo=UTC) for day in (6, 7, 8, 9, 10)
)


def a_daily_schedule(
    name: str = "nightly", start: datetime = FRIDAY, **given: Any
) -> RecurringTask:
    """Declare a schedule at 09:00 UTC each day from Friday on, by default with the calendar
    `office`.
    """
    return a_schedule(
        name,
        cron="0 9 * * *",
        start_time=start,
        overlap="ALLOW",
        **{"calendar": "office", "misfire_grace": 1, **given},
    )


def test_a_closed_day_does_not_run_and_the_ledger_names_the_calendar() -> None:
    calendars.upsert("office")
    row = a_daily_schedule()
    assert [fire(day) for day in (FRIDAY, SATURDAY, SUNDAY, MONDAY)] == [1, 0, 0, 1]
    assert fire_times(row) == [FRIDAY, MONDAY]
    assert ledger_of(row)[1][:4] == ("SKIPPED_CALENDAR", SATURDAY, SUNDAY, 2)
    assert "'office' is closed" in ledger_of(row)[1][4]
    assert "did not run: calendar 'office' is closed: Saturday" in row.explain(SATURDAY)


@pytest.mark.parametrize(
    ("roll", "runs_at"),
    [("FOLLOWING", MONDAY), ("PRECEDING", FRIDAY), ("MODIFIED_FOLLOWING", MONDAY)],
)
def test_a_closed_day_is_rolled_once_and_keeps_its_fire_time(roll: str, runs_at: datetime) -> None:
    calendars.upsert("office")
    row = a_schedule(
        cron="0 9 7 * *", start_time=FRIDAY - timedelta(days=1), calendar="office", roll=roll
    )
    RecurringTask.objects.unguarded().update(next_run_at=runs_at)
    assert [fire(day) for day in (FRIDAY, MONDAY)] == ([0, 1] if runs_at == MONDAY else [1, 0])
    assert fire_times(row) == [SATURDAY]
    outcome, first, last, count, reason = ledger_of(row)[0]
    assert (outcome, first, last, count) == ("ROLLED", SATURDAY, None, 1)
    assert "rolled" in reason
    assert "was rolled" in row.explain(SATURDAY)
    assert "is no fire time" in row.explain(runs_at)
    assert "The fire time 2026-03-07T09:00:00Z was put there" in row.explain(runs_at)


def test_a_day_is_closed_if_any_of_several_calendars_closes_it() -> None:
    calendars.upsert("office")
    calendars.upsert("exchange", days=[SpecialDay(MONDAY.date(), name="Exchange day")])
    row = a_daily_schedule(calendar=["office", "exchange"])
    assert [fire(day) for day in (FRIDAY, MONDAY, TUESDAY)] == [1, 0, 1]
    assert fire_times(row) == [FRIDAY, TUESDAY]
    assert "Exchange day" in row.explain(MONDAY)


def test_a_half_day_runs_until_its_hour() -> None:
    calendars.upsert("office", days=[SpecialDay(FRIDAY.date(), DayKind.HALF, "Eve", time(12))])
    row = a_schedule(cron="0 9,15 * * *", start_time=FRIDAY, calendar="office", overlap="ALLOW")
    fire(FRIDAY)
    fire(FRIDAY + timedelta(hours=7))
    assert fire_times(row) == [FRIDAY]
    assert "after 12:00 on Eve (half day)" in row.explain(FRIDAY + timedelta(hours=6))


def test_a_calendar_change_moves_the_next_fire_of_all_its_schedules_in_one_statement() -> None:
    calendars.upsert("office")
    calendars.upsert("other")
    rows = [a_daily_schedule(f"daily {number}") for number in range(3)]
    other, paused = a_daily_schedule("other", calendar="other"), a_daily_schedule("paused")
    paused.pause()

    def change(*days: datetime) -> int:
        with CaptureQueriesContext(connection) as asked:
            calendars.upsert("office", days=[SpecialDay(day.date(), name="Strike") for day in days])
        return len(asked)

    few = change(FRIDAY)
    for row in rows:
        row.refresh_from_db()
        assert row.next_run_at == MONDAY
    other.refresh_from_db()
    paused.refresh_from_db()
    assert (other.next_run_at, paused.next_run_at) == (FRIDAY, None)
    for number in range(20):
        a_daily_schedule(f"more {number}")
    assert change(FRIDAY, MONDAY) == few
    assert set(
        RecurringTask.objects.active().exclude(name="other").values_list("next_run_at", flat=True)
    ) == {TUESDAY}


def test_a_change_without_other_days_reads_no_schedule() -> None:
    days = [SpecialDay(FRIDAY.date(), name="Strike")]
    calendars.upsert("office", days=days)
    a_daily_schedule()
    with CaptureQueriesContext(connection) as asked:
        calendars.upsert("office", description="of the office", days=days)
    assert not [one for one in asked if RecurringTask._meta.db_table in one["sql"]]
    assert Calendar.objects.get().description == "of the office"


def test_a_reopened_day_fires() -> None:
    calendars.upsert("office", days=[SpecialDay(FRIDAY.date())])
    row = a_daily_schedule()
    RecurringTask.objects.unguarded().update(next_run_at=MONDAY)
    calendars.upsert("office", days=[])
    assert fire(FRIDAY) == 1
    assert fire_times(row) == [FRIDAY]


def test_omitted_fields_stay_unchanged() -> None:
    calendars.upsert(
        "office",
        working_days=[1, 2],
        days=[SpecialDay(FRIDAY.date(), DayKind.OPEN)],
        origin="by hand",
    )
    found = calendars.upsert("office", description="Ours")
    assert (found.working_days, found.origin, found.description, found.revision) == (
        [1, 2],
        "by hand",
        "Ours",
        2,
    )
    assert [day.kind for day in found.special] == ["OPEN"]


def test_holidays_of_the_package_are_stored_as_a_snapshot() -> None:
    pytest.importorskip("holidays")
    found = calendars.upsert(
        "germany", days=from_holidays("DE", None, [2026]), origin="holidays:DE"
    )
    assert date(2026, 10, 3) in {day.day for day in found.special}


def test_a_calendar_without_a_working_day_is_refused_and_nothing_is_written() -> None:
    with pytest.raises(InvalidCalendar, match="'office' has no working day"):
        calendars.upsert("office", working_days=[])
    assert not Calendar.objects.exists()
    calendars.upsert("office", days=[SpecialDay(FRIDAY.date())])
    with pytest.raises(InvalidCalendar, match="has no working day"):
        calendars.upsert("office", working_days=[], days=[])
    office = Calendar.objects.get()
    assert (office.revision, len(office.days)) == (1, 1)


def test_a_change_that_leaves_a_schedule_without_a_day_is_refused_with_its_name() -> None:
    calendars.upsert("early", working_days=[1, 2, 3])
    calendars.upsert("late", working_days=[3, 4, 5])
    a_daily_schedule("both", calendar=["early", "late"])
    with pytest.raises(InvalidCalendar, match="recurring task 'both' has no day left"):
        calendars.upsert("late", working_days=[4, 5])
    a_schedule("once", at=[FRIDAY + timedelta(days=700)], calendar="late")
    with pytest.raises(InvalidCalendar, match="leave recurring task 'once' no fire"):
        calendars.upsert("late", days=[SpecialDay((FRIDAY + timedelta(days=700)).date())])
    assert Calendar.objects.get(name="late").revision == 1


def test_a_calendar_in_use_cannot_be_deleted_and_others_can() -> None:
    calendars.upsert("office", days=[SpecialDay(FRIDAY.date())])
    row = a_daily_schedule()
    row.pause()
    with pytest.raises(TransitionRefused, match="'office' is named by 1 recurring tasks: nightly"):
        Calendar.objects.remove("office")
    row.cancel()
    assert Calendar.objects.remove("office") is True
    assert Calendar.objects.remove("office") is False
    assert "there is no calendar 'office'" in row.explain(FRIDAY)


def test_a_schedule_with_an_unknown_calendar_is_refused() -> None:
    with pytest.raises(InvalidSchedule, match="there is no calendar 'office'"):
        a_daily_schedule()


def test_a_rolled_back_change_leaves_nothing_in_the_cache() -> None:
    calendars.upsert("office")
    row = a_daily_schedule()
    with transaction.atomic():
        calendars.upsert("office", days=[SpecialDay(FRIDAY.date())])
        assert row.next_fire_times(1, after=FRIDAY - timedelta(hours=1))[0].nominal == MONDAY
        transaction.set_rollback(True)
    calendars.upsert("office", days=[SpecialDay(MONDAY.date())])
    assert [fire.nominal for fire in row.next_fire_times(2, after=FRIDAY - timedelta(hours=1))] == [
        FRIDAY,
        TUESDAY,
    ]
