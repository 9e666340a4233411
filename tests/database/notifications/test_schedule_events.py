"""Missed and late fire times of schedules are events, recorded with the ledger."""

from __future__ import annotations

import pytest
from django.db import connection, transaction

from django_durable_tasks.contrib.notifications.models import NotificationEvent
from django_durable_tasks.models import OccurrenceRecord, Task
from tests.database.notifications.sending import a_setting, events, types
from tests.database.recurring.schedules import a_schedule, at, fire
from tests.factories import a_tenant

pytestmark = pytest.mark.django_db(transaction=True)


def test_missed_fire_times_are_one_event_and_the_late_one_another() -> None:
    a_setting(on_failure=False, on_missed=True, on_late=True, schedule="night*")
    row = a_schedule(interval=3_600)
    a_schedule("hourly", interval=3_600)
    fire(at(3 * 3_600 + 600))
    missed, late = events()
    assert (missed.type, late.type) == ("schedule.missed", "schedule.late")
    assert missed.data["schedule_id"] == str(row.pk)
    assert (
        missed.data["count"]
        == OccurrenceRecord.objects.get(recurring_task=row, outcome="MISSED").count
    )
    assert late.data["task_id"] == str(Task.objects.get(recurring_task=row).pk)


def test_a_fire_time_within_the_grace_is_no_event() -> None:
    a_setting(on_failure=False, on_missed=True, on_late=True)
    a_schedule()
    fire(at(5))
    assert types() == []


def test_schedules_of_another_tenant_are_no_event() -> None:
    a_setting(on_failure=False, on_missed=True, tenant=a_tenant())
    a_schedule(interval=3_600, catch_up_mode="SKIP_MISSED")
    fire(at(36_000))
    assert types() == []


def test_a_tick_that_is_rolled_back_leaves_no_event() -> None:
    a_setting(on_failure=False, on_missed=True)
    a_schedule(interval=3_600, catch_up_mode="SKIP_MISSED")
    with transaction.atomic():
        fire(at(36_000))
        assert types() == ["schedule.missed"]
        transaction.set_rollback(True)
    assert types() == []


def test_an_error_of_the_capture_stops_no_schedule() -> None:
    a_setting(on_failure=False, on_missed=True)
    a_schedule(interval=3_600)
    with connection.schema_editor() as editor:
        editor.delete_model(NotificationEvent)
    try:
        assert fire(at(36_000 + 600)) == 1
    finally:
        with connection.schema_editor() as editor:
            editor.create_model(NotificationEvent)
