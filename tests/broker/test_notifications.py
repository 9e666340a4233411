"""A task that is due soon wakes schedulers at once, by PostgreSQL or Redis; otherwise the state
gives the reason.
"""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, connections, transaction

from django_durable_tasks import ports
from django_durable_tasks.models import RecurringTask, Task
from django_durable_tasks.scheduler import notifier
from django_durable_tasks.scheduler.notifier import (
    CHANNEL,
    Listeners,
    Notification,
    NotificationKind,
)
from django_durable_tasks.states import endings
from tests.broker.listening_schedulers import (
    BY_BOTH,
    BY_POSTGRESQL,
    Recorder,
    notifying_unlimited,
    recorder,
    soon,
)
from tests.broker.test_redis_away import frozen, url
from tests.processes.cluster import SHORT
from tests.project import bodies
from tests.waiting import until

__all__ = ["recorder", "url"]


def test_a_task_due_soon_sends_a_notification_and_a_later_one_does_not(
    recorder: Callable[..., Recorder],
) -> None:
    sleeper, later, at = recorder(), soon(60), soon()
    assert re.fullmatch(r"PostgreSQL \(self-test passed \d+ s ago\)", sleeper.wakeups.source_state)
    bodies.add.schedule(1, 2, run_at=later)
    bodies.add.schedule(1, 2, run_at=at)
    until(lambda: sleeper.received(at), within=20)
    assert not sleeper.received(later)
    assert sleeper.wakeups.listening


def test_a_task_due_now_that_was_not_published_sends_a_notification(
    recorder: Callable[..., Recorder],
) -> None:
    sleeper = recorder()
    bodies.add.schedule_many([(1, 2), (3, 4)])
    until(lambda: sleeper.saw and sleeper.saw[-1] == 2, within=20)


def test_a_published_task_sends_no_notification(recorder: Callable[..., Recorder]) -> None:
    sleeper, at = recorder(FAST_PATH=True), soon()
    published: Task = bodies.add.schedule(1, 2)
    assert Task.objects.get(pk=published.pk).status == "QUEUED"
    bodies.add.schedule(1, 2, run_at=at)
    until(lambda: sleeper.received(at), within=20)
    assert all(woken >= at - timedelta(milliseconds=1) for woken in sleeper.woken)


def test_rescheduling_to_soon_sends_a_notification(recorder: Callable[..., Recorder]) -> None:
    sleeper, at = recorder(), soon()
    bodies.add.using(key="report", run_at=soon(600)).schedule(1, 2)
    Task.objects.reschedule("report", at)
    until(lambda: sleeper.received(at), within=20)


def test_a_rolled_back_task_sends_no_notification(recorder: Callable[..., Recorder]) -> None:
    sleeper, never, inner, at = recorder(), soon(0.1), soon(0.2), soon()
    with transaction.atomic():
        bodies.add.schedule(1, 2, run_at=never)
        transaction.set_rollback(True)
    with transaction.atomic():
        bodies.add.schedule(1, 2, run_at=at)
        with transaction.atomic():
            bodies.add.schedule(1, 2, run_at=inner)
            transaction.set_rollback(True)
        assert not sleeper.woken
    until(lambda: sleeper.received(at), within=20)
    assert not sleeper.received(never)
    assert not sleeper.received(inner)


def test_a_transaction_of_many_tasks_sends_one_notification_for_the_first(
    recorder: Callable[..., Recorder],
) -> None:
    sleeper, first = recorder(), soon(0.2)
    with transaction.atomic():
        for number in range(50):
            bodies.add.schedule(number, 1, run_at=first + timedelta(milliseconds=49 - number))
        assert (
            len(
                [
                    hook
                    for _, hook, *_ in connection.run_on_commit
                    if isinstance(hook, notifier._Batch)
                ]
            )
            == 1
        )
    until(lambda: sleeper.received(first), within=20)


def test_a_task_suppressed_by_the_rate_limiter_is_covered_by_an_echo(
    recorder: Callable[..., Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fifty tasks in fifty transactions: the last is seen although no notification was sent for it."""
    sent: list[Notification] = []
    really = notifier.send

    def counted(notification: Notification) -> bool:
        sent.append(notification)
        return really(notification)

    monkeypatch.setattr(notifier, "send", counted)
    monkeypatch.setattr(notifier, "INTERVAL", 1.0)
    monkeypatch.setattr(notifier, "_ECHO", 1.2)
    notifying_unlimited(monkeypatch)
    sleeper = recorder()
    for number in range(50):
        bodies.add.schedule(number, 1, run_at=soon())
    until(lambda: sleeper.saw and sleeper.saw[-1] == 50, within=20)
    assert len(sent) < 25


def test_maintenance_of_the_leader_is_woken(recorder: Callable[..., Recorder]) -> None:
    sleeper = recorder()
    with transaction.atomic():
        ports.due.leader_work()
        ports.due.leader_work()
        assert not sleeper.leader_work.is_set()
    until(sleeper.leader_work.is_set, within=20)


def test_maintenance_suppressed_by_the_rate_limiter_is_covered_by_an_echo(
    recorder: Callable[..., Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifier, "INTERVAL", 1.0)
    monkeypatch.setattr(notifier, "_ECHO", 1.2)
    notifying_unlimited(monkeypatch)
    sleeper = recorder()
    ports.due.leader_work()
    until(sleeper.leader_work.is_set, within=20)
    sleeper.leader_work.clear()
    ports.due.leader_work()
    until(sleeper.leader_work.is_set, within=20)


def test_a_schedule_wakes_the_leader_if_it_fires_soon(
    recorder: Callable[..., Recorder],
) -> None:
    sleeper, at = recorder(), soon()
    RecurringTask.objects.upsert(name="later", task=bodies.add, args=[1, 2], at=[soon(86_400)])
    bodies.add.schedule(1, 2, run_at=at)
    until(lambda: sleeper.received(at), within=20)
    assert not sleeper.leader_work.is_set()
    RecurringTask.objects.upsert(name="soon", task=bodies.add, args=[1, 2], at=[soon(1)])
    until(sleeper.leader_work.is_set, within=20)


def test_only_an_ending_with_dependents_wakes_the_leader(
    recorder: Callable[..., Recorder],
) -> None:
    sleeper, at = recorder(), soon()
    first = bodies.add.using(key="alone", run_at=soon(600)).schedule(1, 2)
    Task.objects.cancel("alone")
    bodies.add.schedule(1, 2, run_at=at)
    until(lambda: sleeper.received(at), within=20)
    assert (Task.objects.get(pk=first.pk).status, sleeper.leader_work.is_set()) == (
        "CANCELLED",
        False,
    )
    upstream = bodies.add.using(run_at=soon(600)).schedule(1, 2)
    bodies.add.using(depends_on=[upstream]).schedule(1, 2)
    with transaction.atomic():
        endings.cancel(Task.objects.filter(pk=upstream.pk), "a test")
    until(sleeper.leader_work.is_set, within=20)


def test_a_listener_whose_backend_was_terminated_listens_again(
    recorder: Callable[..., Recorder],
) -> None:
    sleeper, at = recorder(), soon()
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query = %s AND datname ="
            " current_database()",
            [f"LISTEN {CHANNEL}"],
        )
        assert cursor.rowcount == 1
    until(lambda: not sleeper.wakeups.listening, within=20)
    assert "PostgreSQL does not serve" in sleeper.wakeups.state
    until(lambda: sleeper.wakeups.state == BY_POSTGRESQL, within=20)
    bodies.add.schedule(1, 2, run_at=at)
    until(lambda: sleeper.received(at), within=20)


def test_missing_notifications_are_detected(
    recorder: Callable[..., Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listener in another database receives as little as one behind a transaction pooler."""
    monkeypatch.setattr(notifier, "_TEST_WITHIN", 0.3)
    monkeypatch.setattr(notifier, "_FAILED_TEST_PAUSE", 0.3)
    deaf = {**connections.settings["default"], "NAME": "postgres"}
    monkeypatch.setitem(connections.settings, "deaf", deaf)
    sleeper = recorder(
        "polling every 0.2 s (a notification to itself did not come", LISTEN_DATABASE="deaf"
    )
    assert not sleeper.wakeups.listening
    assert sleeper.wakeups.source_state.startswith(
        "polling every 0.2 s: PostgreSQL: a notification to itself did not come"
    )
    monkeypatch.setitem(
        connections.settings, "deaf", {**deaf, "NAME": connections.settings["default"]["NAME"]}
    )
    until(lambda: sleeper.wakeups.state == BY_POSTGRESQL, within=20)


def test_with_djangos_pooler_setting_no_listener_starts(
    rows: None, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connection.settings_dict, "DISABLE_SERVER_SIDE_CURSORS", True)
    assert "LISTEN_DATABASE may name a direct connection" in Listeners(lambda at: None).state
    settings.DURABLE_TASKS = {**SHORT, "LISTEN_DATABASE": "default"}
    assert "not tested yet" in Listeners(lambda at: None).state
    assert "polling" not in Listeners(lambda at: None).source_state


def test_notifications_of_another_region_and_invalid_ones_wake_no_scheduler(
    recorder: Callable[..., Recorder], settings: Any
) -> None:
    sleeper, at = recorder(REGION="eu"), soon()
    with connection.cursor() as cursor:
        for payload in (
            "us|rows|1|x",
            "",
            "eu|rows|1e999|x",
            "eu|rows|" + "9" * 40,
            "eu|nothing|1|",
            "eu|rows",
        ):
            cursor.execute("SELECT pg_notify(%s, %s)", [CHANNEL, payload])
    notifier.send_by_postgresql(Notification(NotificationKind.ROWS, at))
    until(lambda: sleeper.received(at), within=20)
    assert all(woken >= at for woken in sleeper.woken)


def test_a_listener_stops_at_once_and_leaves_no_connection(
    recorder: Callable[..., Recorder],
) -> None:
    sleeper = recorder()
    sleeper.wakeups.stop(10)
    assert not any(listener.is_alive() for listener in sleeper.wakeups._listeners)
    until(
        lambda: _listening() == 0,
        within=20,
        message="the server has ended the connection that was closed",
    )


def _listening() -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE query = %s AND datname ="
            " current_database()",
            [f"LISTEN {CHANNEL}"],
        )
        return int(cursor.fetchone()[0])


def test_notifications_are_sent_by_redis_and_by_postgresql_while_it_is_frozen(
    recorder: Callable[..., Recorder], url: str
) -> None:
    sleeper, first, second = recorder(BY_BOTH, REDIS_URL=url), soon(), soon(0.5)
    bodies.add.schedule(1, 2, run_at=first)
    # Its repetition shows that this process may send the next one.
    until(lambda: sleeper.received(first) and len(sleeper.woken) > 1, within=20)
    with frozen(url):
        bodies.add.schedule(1, 2, run_at=second)
        until(lambda: sleeper.received(second), within=20)
        until(lambda: sleeper.wakeups.state == BY_POSTGRESQL, within=20)
    until(lambda: sleeper.wakeups.state == BY_BOTH, within=30)
