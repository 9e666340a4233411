"""An operator in a real browser creates a schedule after a preview of its next fires, and asks why
it did not run.
"""

from datetime import UTC, datetime
from typing import Any

import pytest

from django_durable_tasks.models import Calendar, RecurringTask
from tests.browser.conftest import Visit
from tests.browser.test_admin import APP
from tests.database.recurring.schedules import a_schedule, at, fire
from tests.project import tasks
from tests.waiting import until

pytestmark = pytest.mark.timeout(300)

LIST = f"{APP}recurringtask/"


def _choose(visit: Visit, field: str, value: str) -> None:
    visit.find(f"select[name='{field}'] option[value='{value}']").click()


def test_an_operator_creates_a_schedule_after_a_preview_of_its_next_fires(visit: Visit) -> None:
    visit.log_in()
    visit.go(LIST)
    visit.press("Add recurring task")
    visit.shows("Saving never runs past fire times")
    visit.write("name", "report")
    _choose(visit, "task", "tests.project.tasks.noop")
    _choose(visit, "timezone", "Europe/Berlin")
    visit.write("cron", "0 0 31 2 *")
    visit.press("Show the next fire times")
    visit.shows("can never fire")
    visit.write("cron", "30 2 * * *")
    visit.press("Show the next fire times")
    visit.shows("Saved now, it would fire at")
    assert "02:30:00" in visit.text()
    assert not RecurringTask.objects.exists()
    visit.press("Save")
    visit.shows("Schedule report is saved. Past fire times do not fire.")
    row = RecurringTask.objects.get()
    assert (row.timetable, row.time_zone) == ([{"cron": "30 2 * * *"}], "Europe/Berlin")
    assert "every day at 02:30" in visit.text()


def test_an_operator_pauses_a_schedule_reads_the_explanation_and_resumes_it(visit: Visit) -> None:
    row = a_schedule()
    fire(at(3600 + 30))
    visit.log_in()
    visit.go(LIST)
    visit.shows("every minute")
    visit.follow("nightly")
    visit.shows("Next fire times in time zone UTC")
    visit.press("Pause schedule…")
    visit.shows("It does not fire until it is resumed. Missed fire times are recorded as PAUSED.")
    visit.write("reason", "deploy")
    visit.find("[type='submit'][value='Pause schedule']").click()
    visit.shows("Paused until it is resumed.")
    visit.write("at", "2026-03-02 09:30")
    visit.press("Ask")
    visit.shows(row.explain(at(1800)))
    visit.press("Resume schedule…")
    visit.find("[type='submit'][value='Resume schedule']").click()
    until(lambda: RecurringTask.objects.get().status == "ACTIVE", within=20)
    visit.shows("Missed runs of the pause are not caught up.")


@pytest.mark.parametrize("use_tz", [True, False], ids=["USE_TZ", "no USE_TZ"])
def test_an_operator_pauses_until_a_wall_time_of_the_schedule(
    visit: Visit, settings: Any, use_tz: bool
) -> None:
    settings.TIME_ZONE, settings.USE_TZ = "Europe/Berlin", use_tz
    row = a_schedule(timezone="America/New_York")
    visit.log_in()
    visit.go(f"{LIST}{row.pk}/change/")
    visit.press("Pause schedule…")
    visit.write("reason", "deploy")
    visit.write("until", "2031-07-01 12:30")
    visit.find("[type='submit'][value='Pause schedule']").click()
    visit.shows("It resumes at 2031-07-01 18:30:00.")
    row.refresh_from_db()
    assert row.paused_until == datetime(2031, 7, 1, 16, 30, tzinfo=UTC)


def test_an_operator_skips_the_next_fire_time_from_the_table_and_restores_it(visit: Visit) -> None:
    row = RecurringTask.objects.upsert(name="daily", task=tasks.noop, cron="0 9 * * *")
    visit.log_in()
    visit.go(f"{LIST}{row.pk}/change/")
    visit.press("Skip…")
    visit.shows("Skip one fire time, move it, or add one")
    visit.write("reason", "holiday")
    visit.find("[type='submit'].default").click()
    visit.shows("Overridden fire times")
    assert [one["action"] for one in RecurringTask.objects.get().overrides] == ["SKIP"]
    visit.press("Remove…")
    visit.shows("The fire time follows the schedule again.")
    visit.find("[type='submit'].default").click()
    visit.shows("Override removed")
    assert RecurringTask.objects.get().overrides == []


def test_an_operator_imports_holidays_previews_the_year_and_saves_the_calendar(
    visit: Visit,
) -> None:
    visit.log_in()
    visit.go("/admin/django_durable_tasks/calendar/")
    visit.press("Add calendar")
    visit.shows("Import dates")
    visit.write("name", "bavaria")
    visit.write("country", "DE")
    visit.write("subdivision", "BY")
    visit.write("first_year", "2026")
    visit.write("last_year", "2026")
    visit.press("Import without saving")
    visit.shows("Imported, not saved yet")
    assert "Epiphany" in visit.text()
    assert not Calendar.objects.exists()
    visit.press("Save")
    visit.shows("Calendar bavaria is saved.")
    visit.go(f"/admin/django_durable_tasks/calendar/{Calendar.objects.get().pk}/change/?year=2026")
    assert "Epiphany" in visit.find("td.durable-day-closed[title*='Epiphany']").get_attribute(
        "title"
    )
