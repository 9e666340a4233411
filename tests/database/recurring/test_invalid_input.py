"""Invalid schedules are refused on save with the field and a remedy, and nothing is written."""

from __future__ import annotations

from typing import Any

import pytest

from django_durable_tasks.exceptions import DurableTasksError, InvalidSchedule
from django_durable_tasks.models import Calendar, OccurrenceRecord, RecurringTask
from tests.database.recurring.schedules import START, a_schedule, at, begin, fire, ledger_of
from tests.project import tasks

pytestmark = pytest.mark.django_db
DAILY = {"cron": "0 3 * * *"}

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "an impossible date": ({"cron": "0 0 31 2 *"}, "'0 0 31 2 *' can never fire"),
    "an impossible date of a list": ({"cron": ["0 3 * * *", "0 0 30 2 *"]}, "can never fire"),
    "a field beyond its range": ({"cron": "99 3 * * *"}, "99"),
    "reboot": ({"cron": "@reboot"}, "@reboot"),
    "R": ({"cron": "R R * * *"}, "R"),
    "an expression of 25 kB": ({"cron": "*" * 25_000}, "25000 characters"),
    "a list of 5,000 parts": ({"cron": ",".join(["1"] * 5_000) + " * * * *"}, "5000 items"),
    "5,000 crons": ({"cron": ["0 3 * * *"] * 5_000}, "5000 parts"),
    "an interval of zero": ({"interval": 0}, "interval=0"),
    "a negative interval": ({"interval": -60}, "interval=-60"),
    "an endless interval": ({"interval": float("inf")}, "interval=inf"),
    "an interval that is no number": ({"interval": float("nan")}, "interval=nan"),
    "an unknown zone": ({**DAILY, "timezone": "Mars/Olympus"}, "Mars/Olympus"),
    "right/UTC": ({**DAILY, "timezone": "right/UTC"}, "right/UTC"),
    "localtime": ({**DAILY, "timezone": "localtime"}, "localtime"),
    "an end before the start": ({**DAILY, "start_time": at(60), "end_time": START}, "end_time"),
    "an end that is past": ({**DAILY, "start_time": START, "end_time": at(60)}, "would never fire"),
    "instants that are all past": ({"at": [START]}, "would never fire"),
    "a naive instant": ({"at": ["2026-03-08T07:00:00"]}, "naive"),
    "a rule that never fires": ({"rrule": "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30"}, "never"),
    "a calendar that is not there": ({**DAILY, "calendar": "nowhere"}, "nowhere"),
    "a calendar without a working day": ({**DAILY, "calendar": "always closed"}, "no working day"),
    "a jitter of more than all": ({**DAILY, "jitter": "200%"}, "200%"),
    "no runs": ({**DAILY, "max_runs": 0}, "max_runs"),
    "no time at all": ({}, "needs one of"),
    "an option that is none": ({**DAILY, "crom": 1}, "Did you mean 'cron'"),
}


@pytest.mark.parametrize(("given", "named"), BAD.values(), ids=BAD.keys())
def test_an_invalid_schedule_is_refused_with_its_field_and_nothing_is_written(
    given: dict[str, Any], named: str
) -> None:
    Calendar.objects.unguarded().create(name="always closed", working_days=[])
    with pytest.raises(DurableTasksError) as refused:
        RecurringTask.objects.upsert(name="bad", task=tasks.noop, **given)
    assert named in str(refused.value)
    assert len(str(refused.value)) < 1_000
    assert not RecurringTask.objects.exists()


# An edit without a schedule argument changes no fire time.
EDITS = {what: given for what, (given, _) in BAD.items() if given}


@pytest.mark.parametrize("given", EDITS.values(), ids=EDITS.keys())
def test_an_invalid_edit_leaves_the_schedule_unchanged(given: dict[str, Any]) -> None:
    Calendar.objects.unguarded().create(name="always closed", working_days=[])
    row = a_schedule("good")
    before = RecurringTask.objects.filter(pk=row.pk).values().get()
    with pytest.raises(DurableTasksError):
        RecurringTask.objects.upsert(name="good", task=tasks.noop, **given)
    assert RecurringTask.objects.filter(pk=row.pk).values().get() == before


def test_a_cron_that_never_fires_is_accepted_on_a_paused_row_only() -> None:
    row = RecurringTask.objects.upsert(name="off", task=tasks.noop, cron="0 0 31 2 *", paused=True)
    assert (row.status, row.next_run_at) == ("PAUSED", None)
    again: dict[str, Any] = {
        "name": "off",
        "task": tasks.noop,
        "cron": "0 0 31 2 *",
        "paused": True,
    }
    assert RecurringTask.objects.upsert(**again).revision == row.revision
    with pytest.raises(InvalidSchedule, match="never fire"):
        row.resume()
    row.refresh_from_db()
    assert (row.status, row.next_run_at) == ("PAUSED", None)
    assert not OccurrenceRecord.objects.exists()
    RecurringTask.objects.upsert(name="off", task=tasks.noop, interval=60)
    row.resume()
    with pytest.raises(InvalidSchedule, match="would never fire"):
        RecurringTask.objects.upsert(**again)
    assert RecurringTask.objects.get().timetable == [{"interval": 60.0}]


def test_a_calendar_without_working_days_quarantines_only_its_own_schedules() -> None:
    calendar = Calendar.objects.unguarded().create(name="office")
    shut, other = a_schedule("shut", calendar="office"), a_schedule("other")
    Calendar.objects.unguarded().filter(pk=calendar.pk).update(working_days=[], revision=1)
    assert fire(START) == 1
    shut.refresh_from_db()
    assert (shut.status, shut.status_reason) == ("PAUSED", "QUARANTINED")
    assert "no working day" in shut.error
    assert ledger_of(other)


@pytest.mark.parametrize("mode", ["RUN_ALL_MISSED", "RUN_ONE_NOW", "SKIP_MISSED"])
@pytest.mark.parametrize("calendar", ["", "office"])
def test_ten_million_missed_fires_are_a_few_entries(mode: str, calendar: str) -> None:
    Calendar.objects.unguarded().create(name="office")
    named = {"calendar": calendar} if calendar else {}
    row = RecurringTask.objects.upsert(
        name="each second",
        task=tasks.noop,
        cron="* * * * * *",
        seconds="FIRST",
        overlap="ALLOW",
        catch_up_mode=mode,
        misfire_grace=0.5,
        max_catchup_runs=3,
        **named,
    )
    begin(row, START)
    now = at(10_000_000 + 7 * 3_600 + 0.7)  # a Friday, during the hours of the office calendar
    assert fire(now) == {"RUN_ALL_MISSED": 3, "RUN_ONE_NOW": 1, "SKIP_MISSED": 0}[mode]
    lines = ledger_of(row)
    assert sum(line[3] for line in lines) == 10_000_000 + 7 * 3_600 + 1
    assert len(lines) <= 5
    row.refresh_from_db()
    assert row.next_run_at == at(10_000_000 + 7 * 3_600 + 1)
