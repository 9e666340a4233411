"""Concurrent operations on one recurring task, by operators and a leader: each takes effect once,
none is lost.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial

from django_durable_tasks.choices import SpecialDay
from django_durable_tasks.exceptions import TransitionRefused
from django_durable_tasks.models import (
    Calendar,
    OccurrenceRecord,
    RecurringTask,
    Task,
)
from django_durable_tasks.schedules import calendars
from django_durable_tasks.store.clock import database_now
from tests.concurrency.racing import ROUNDS, no_errors, race
from tests.database.recurring.schedules import (
    DAILY,
    START,
    a_schedule,
    at,
    fire,
    fire_times,
    tomorrow,
)

OPERATORS = 4


def test_a_request_sent_several_times_at_once_runs_once() -> None:
    for number in range(ROUNDS):
        row = a_schedule(f"{number}", overlap="ALLOW")
        ask = [
            partial(RecurringTask.objects.get(pk=row.pk).trigger_now, request_id="deploy")
            for _ in range(OPERATORS)
        ]
        found = no_errors(race(ask))
        assert len({task.pk for task in found}) == 1
        assert Task.objects.filter(recurring_task=row).count() == 1
        assert OccurrenceRecord.objects.filter(recurring_task=row, outcome="MANUAL").count() == 1


def test_concurrent_manual_runs_share_one_overlap_key() -> None:
    for number in range(ROUNDS):
        row = a_schedule(f"{number}", overlap="SKIP")
        no_errors(
            race([RecurringTask.objects.get(pk=row.pk).trigger_now for _ in range(OPERATORS)])
        )
        mine = Task.objects.filter(recurring_task=row)
        assert (mine.count(), mine.waiting_for_overlap().count()) == (OPERATORS, OPERATORS - 1)


def test_concurrent_backfills_of_one_range_create_each_fire_once() -> None:
    for number in range(ROUNDS // 2):
        row = a_schedule(f"{number}", overlap="ALLOW")
        fill = [
            partial(RecurringTask.objects.get(pk=row.pk).backfill, START, at(600))
            for _ in range(OPERATORS)
        ]
        reports = no_errors(race(fill))
        assert sorted(report.created for report in reports) == [0, 0, 0, 11]
        assert fire_times(row) == [at(60 * minute) for minute in range(11)]
        assert Task.objects.filter(recurring_task=row).waiting_for_overlap().count() == 10


def _skip(row: RecurringTask, when: datetime) -> bool:
    """Skip a fire. Returns False if a leader was faster."""
    try:
        RecurringTask.objects.get(pk=row.pk).override(when, "SKIP")
    except TransitionRefused:
        return False
    return True


def test_a_fire_that_is_skipped_while_a_leader_reaches_it_runs_or_is_recorded_as_skipped() -> None:
    for number in range(ROUNDS):
        row = a_schedule(f"{number}", overlap="ALLOW")
        # A leader whose clock is ahead of the database's reaches a fire that for the operator
        # is still in the future.
        when = START + timedelta(days=365 * 50)
        RecurringTask.objects.unguarded().filter(pk=row.pk).update(
            watermark_at=when - timedelta(seconds=30), next_run_at=when
        )
        _, skipped = no_errors(race([partial(fire, when), partial(_skip, row, when)]))
        fire(when + timedelta(seconds=60))
        assert (when not in fire_times(row)) is skipped
        assert bool(RecurringTask.objects.get(pk=row.pk).overrides) is skipped
        line = OccurrenceRecord.objects.get(recurring_task=row, fire_time=when)
        assert line.outcome == ("OVERRIDDEN" if skipped else "DISPATCHED")


def test_concurrent_overrides_of_several_fires_all_apply() -> None:
    row = a_schedule(cron=DAILY)
    RecurringTask.objects.unguarded().update(watermark_at=database_now())
    days = [tomorrow(days=number) for number in range(OPERATORS)]
    assert all(no_errors(race([partial(_skip, row, day) for day in days])))
    row.refresh_from_db()
    assert row.next_run_at == tomorrow(days=OPERATORS)


def test_a_calendar_change_during_ticks_leaves_each_schedule_at_its_next_open_day() -> None:
    calendars.upsert("office")
    for number in range(ROUNDS // 2):
        begun = START + timedelta(days=7 * number)
        rows = [
            a_schedule(
                f"{number} {name}",
                cron="0 9 * * *",
                start_time=begun,
                calendar="office",
                overlap="ALLOW",
            )
            for name in range(5)
        ]
        tuesday, wednesday = begun + timedelta(days=1), begun + timedelta(days=2)
        shut = partial(calendars.upsert, "office", days=[SpecialDay(tuesday.date(), name="Strike")])
        no_errors(race([partial(fire, begun), partial(fire, begun), shut]))
        fire(begun)
        for row in rows:
            row.refresh_from_db()
            assert (fire_times(row), row.next_run_at) == ([begun], wednesday)


def test_concurrently_created_calendars_of_one_name_are_one() -> None:
    for number in range(ROUNDS):
        no_errors(race([partial(calendars.upsert, f"office {number}") for _ in range(OPERATORS)]))
    assert Calendar.objects.count() == ROUNDS
    assert set(Calendar.objects.values_list("revision", flat=True)) == {OPERATORS}
