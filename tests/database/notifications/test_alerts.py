"""Alerts: one event when a condition begins and one when it ends, whichever process is leader."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from django_durable_tasks.contrib.notifications import deliveries
from django_durable_tasks.contrib.notifications.models import Alert, NotificationSetting
from django_durable_tasks.contrib.notifications.task import watch_alerts
from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.models import DeadLetter, Node, RecurringTask, Task
from django_durable_tasks.store.clock import database_now
from tests.database.notifications.sending import SETTINGS, a_setting, events, types
from tests.factories import QUEUE, a_node, a_paused_queue, a_task, a_tenant, many_tasks
from tests.project.tasks import noop

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def operator() -> None:
    """A setting of the operator."""
    a_setting(on_failure=False, on_alert=True)


def _details() -> list[str]:
    return [event.data["detail"] for event in events()]


def _later(seconds: float = 61.0) -> datetime:
    return database_now() + timedelta(seconds=seconds)


def test_open_dead_letters_are_one_alert_until_they_are_closed(settings: Any) -> None:
    settings.DURABLE_TASKS = {**SETTINGS, "DEAD_LETTERS_MAX": 2}
    many_tasks(2, "FAILED")
    assert deliveries.watch_alerts(database_now()) == 0
    many_tasks(1, "FAILED")
    assert deliveries.watch_alerts(database_now()) == 1
    many_tasks(5, "FAILED")
    assert deliveries.watch_alerts(_later()) == 0
    DeadLetter.objects.discard(by="anna", reason="old")
    assert deliveries.watch_alerts(_later(90)) == 0
    assert deliveries.watch_alerts(_later(200)) == 1
    assert types() == ["alert.began", "alert.ended"]
    assert "3 dead letters are open" in _details()[0]
    assert not Alert.objects.exists()


def test_a_condition_that_comes_and_goes_is_one_alert() -> None:
    many_tasks(1, "FAILED")
    now = database_now()
    for second in range(0, 600, 20):
        deliveries.watch_alerts(now + timedelta(seconds=second))
        if second % 40:
            many_tasks(1, "FAILED")
        else:
            DeadLetter.objects.discard(by="anna", reason="old")
    assert types() == ["alert.began"]


def test_a_queue_with_due_tasks_and_without_a_worker_is_an_alert() -> None:
    a_task(due=-120)
    deliveries.watch_alerts(database_now())
    assert _details() == [f"Queue {QUEUE} has due tasks and no worker"]
    a_node(queues=[QUEUE], concurrency=1)
    deliveries.watch_alerts(_later())
    assert types() == ["alert.began", "alert.ended"]


def test_a_paused_queue_and_a_recent_task_are_no_alert() -> None:
    a_task(due=-5)
    deliveries.watch_alerts(database_now())
    a_task(due=-120)
    a_paused_queue()
    deliveries.watch_alerts(database_now())
    assert types() == []


def test_a_schedule_that_does_not_fire_is_an_alert() -> None:
    row = RecurringTask.objects.upsert(name="nightly", task=noop, cron="0 2 * * *")
    due = database_now() - timedelta(seconds=30)
    rows = RecurringTask.objects.unguarded().filter(pk=row.pk)
    rows.update(next_run_at=due)
    assert deliveries.watch_alerts(database_now()) == 0
    rows.update(next_run_at=due - timedelta(seconds=60))
    assert deliveries.watch_alerts(database_now()) == 1
    assert "Schedule nightly has not fired since" in _details()[0]


def test_a_wrong_clock_is_one_alert_for_its_host() -> None:
    a_node(skew=-30.0, host="blue")
    a_node(skew=-29.0, host="blue")
    a_node(skew=0.5, host="green")
    deliveries.watch_alerts(database_now())
    assert _details() == ["The clock of blue is 30.0 s behind that of the database"]
    Node.objects.update(skew=0.1)
    deliveries.watch_alerts(_later())
    assert types()[-1] == "alert.ended"


def test_nothing_is_watched_while_no_setting_asks_for_it() -> None:
    NotificationSetting.objects.unguarded().update(on_alert=False)
    many_tasks(1, "FAILED")
    watch_alerts(database_now(), None)  # type: ignore[arg-type]
    assert not Alert.objects.exists()


def test_alerts_go_to_settings_of_the_default_tenant_only() -> None:
    with pytest.raises(InvalidOption, match="on_alert"):
        a_setting("spy", on_alert=True, tenant=a_tenant())


def test_many_conditions_of_a_kind_are_bounded() -> None:
    for number in range(120):
        a_node(skew=9.0, host=f"host{number:03}")
    assert deliveries.watch_alerts(database_now()) == 100
    assert deliveries.watch_alerts(database_now()) == 0
    assert Task.objects.count() == 0
