"""A row that is due soon wakes schedulers at once: by PostgreSQL, by Redis, or the state says why
it does not.
"""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, connections, transaction

from django_durable_tasks import ports
from django_durable_tasks.engine import transitions
from django_durable_tasks.models import RecurringTask, Task
from django_durable_tasks.notifier import listener, notify_on_commit
from django_durable_tasks.notifier.listener import Listeners
from django_durable_tasks.notifier.message import CHANNEL, Notification, NotificationKind
from tests.broker.listening_schedulers import BY_POSTGRESQL, Sleeper, sleeping, soon, telling_fresh
from tests.processes.fleet import SHORT
from tests.project import bodies
from tests.waiting import until

__all__ = ["sleeping"]


def test_a_row_that_is_due_soon_wakes_and_a_later_one_does_not(
    sleeping: Callable[..., Sleeper],
) -> None:
    sleeper, later, at = sleeping(), soon(60), soon()
    assert re.fullmatch(r"PostgreSQL \(self-test passed \d+ s ago\)", sleeper.wakeups.source_state)
    bodies.add.schedule(1, 2, run_at=later)
    bodies.add.schedule(1, 2, run_at=at)
    until(lambda: sleeper.heard(at), within=20)
    assert not sleeper.heard(later)
    assert sleeper.wakeups.listening


def test_a_row_that_is_due_now_and_was_not_rung_wakes(sleeping: Callable[..., Sleeper]) -> None:
    sleeper = sleeping()
    bodies.add.schedule_many([(1, 2), (3, 4)])
    until(lambda: sleeper.saw and sleeper.saw[-1] == 2, within=20)


def test_a_row_that_was_rung_wakes_nobody(sleeping: Callable[..., Sleeper]) -> None:
    sleeper, at = sleeping(FAST_PATH=True), soon()
    rung: Task = bodies.add.schedule(1, 2)
    assert Task.objects.get(pk=rung.pk).status == "QUEUED"
    bodies.add.schedule(1, 2, run_at=at)
    until(lambda: sleeper.heard(at), within=20)
    assert all(woken >= at - timedelta(milliseconds=1) for woken in sleeper.woken)


def test_a_row_that_is_moved_to_soon_wakes(sleeping: Callable[..., Sleeper]) -> None:
    sleeper, at = sleeping(), soon()
    bodies.add.using(key="report", run_at=soon(600)).schedule(1, 2)
    Task.objects.reschedule("report", at)
    until(lambda: sleeper.heard(at), within=20)


def test_nothing_is_told_of_what_was_rolled_back(sleeping: Callable[..., Sleeper]) -> None:
    sleeper, never, inner, at = sleeping(), soon(0.1), soon(0.2), soon()
    with transaction.atomic():
        bodies.add.schedule(1, 2, run_at=never)
        transaction.set_rollback(True)
    with transaction.atomic():
        bodies.add.schedule(1, 2, run_at=at)
        with transaction.atomic():
            bodies.add.schedule(1, 2, run_at=inner)
            transaction.set_rollback(True)
        assert not sleeper.woken
    until(lambda: sleeper.heard(at), within=20)
    assert not sleeper.heard(never)
    assert not sleeper.heard(inner)


def test_a_transaction_of_many_rows_tells_once_for_the_first(
    sleeping: Callable[..., Sleeper],
) -> None:
    sleeper, first = sleeping(), soon(0.2)
    with transaction.atomic():
        for number in range(50):
            bodies.add.schedule(number, 1, run_at=first + timedelta(milliseconds=49 - number))
        assert (
            len(
                [
                    hook
                    for _, hook, *_ in connection.run_on_commit
                    if isinstance(hook, notify_on_commit._Batch)
                ]
            )
            == 1
        )
    until(lambda: sleeper.heard(first), within=20)


def test_what_the_limiter_holds_back_is_seen_by_an_echo(
    sleeping: Callable[..., Sleeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fifty births in fifty transactions: the last of them is seen though nobody told of it."""
    sent: list[Notification] = []
    really = notify_on_commit.send

    def counted(notification: Notification) -> bool:
        sent.append(notification)
        return really(notification)

    monkeypatch.setattr(notify_on_commit, "send", counted)
    monkeypatch.setattr(notify_on_commit, "INTERVAL", 1.0)
    monkeypatch.setattr(listener, "_ECHO", 1.2)
    telling_fresh(monkeypatch)
    sleeper = sleeping()
    for number in range(50):
        bodies.add.schedule(number, 1, run_at=soon())
    until(lambda: sleeper.saw and sleeper.saw[-1] == 50, within=20)
    assert len(sent) < 25


def test_the_duties_of_the_leader_are_woken(sleeping: Callable[..., Sleeper]) -> None:
    sleeper = sleeping()
    with transaction.atomic():
        ports.due.leader_work()
        ports.due.leader_work()
        assert not sleeper.leader_work.is_set()
    until(sleeper.leader_work.is_set, within=20)


def test_duties_that_the_limiter_holds_back_are_seen_by_an_echo(
    sleeping: Callable[..., Sleeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify_on_commit, "INTERVAL", 1.0)
    monkeypatch.setattr(listener, "_ECHO", 1.2)
    telling_fresh(monkeypatch)
    sleeper = sleeping()
    ports.due.leader_work()
    until(sleeper.leader_work.is_set, within=20)
    sleeper.leader_work.clear()
    ports.due.leader_work()
    until(sleeper.leader_work.is_set, within=20)


def test_a_schedule_wakes_the_leader_when_it_fires_soon_and_not_when_it_fires_later(
    sleeping: Callable[..., Sleeper],
) -> None:
    sleeper, at = sleeping(), soon()
    RecurringTask.objects.upsert(name="later", task=bodies.add, args=[1, 2], at=[soon(86_400)])
    bodies.add.schedule(1, 2, run_at=at)
    until(lambda: sleeper.heard(at), within=20)
    assert not sleeper.leader_work.is_set()
    RecurringTask.objects.upsert(name="soon", task=bodies.add, args=[1, 2], at=[soon(1)])
    until(sleeper.leader_work.is_set, within=20)


def test_an_ending_that_others_wait_for_wakes_the_leader_and_any_other_does_not(
    sleeping: Callable[..., Sleeper],
) -> None:
    sleeper, at = sleeping(), soon()
    first = bodies.add.using(key="alone", run_at=soon(600)).schedule(1, 2)
    Task.objects.cancel("alone")
    bodies.add.schedule(1, 2, run_at=at)
    until(lambda: sleeper.heard(at), within=20)
    assert (Task.objects.get(pk=first.pk).status, sleeper.leader_work.is_set()) == (
        "CANCELLED",
        False,
    )
    upstream = bodies.add.using(run_at=soon(600)).schedule(1, 2)
    bodies.add.using(depends_on=[upstream]).schedule(1, 2)
    with transaction.atomic():
        transitions.cancel(Task.objects.filter(pk=upstream.pk), "a test")
    until(sleeper.leader_work.is_set, within=20)


def test_a_listener_whose_backend_was_ended_listens_again(sleeping: Callable[..., Sleeper]) -> None:
    sleeper, at = sleeping(), soon()
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
    until(lambda: sleeper.heard(at), within=20)


def test_notifications_that_do_not_arrive_are_found_out(
    sleeping: Callable[..., Sleeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listener in another database hears as little as one behind a transaction pooler."""
    monkeypatch.setattr(listener, "_TEST_WITHIN", 0.3)
    monkeypatch.setattr(listener, "_FAILED_TEST_PAUSE", 0.3)
    deaf = {**connections.settings["default"], "NAME": "postgres"}
    monkeypatch.setitem(connections.settings, "deaf", deaf)
    sleeper = sleeping(
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


def test_behind_a_pooler_by_djangos_own_mark_nobody_listens(
    rows: None, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connection.settings_dict, "DISABLE_SERVER_SIDE_CURSORS", True)
    assert "LISTEN_DATABASE may name a direct connection" in Listeners(lambda at: None).state
    settings.DURABLE_TASKS = {**SHORT, "LISTEN_DATABASE": "default"}
    assert "not tested yet" in Listeners(lambda at: None).state
    assert "polling" not in Listeners(lambda at: None).source_state


def test_notes_of_another_region_and_noise_wake_nobody(
    sleeping: Callable[..., Sleeper], settings: Any
) -> None:
    sleeper, at = sleeping(REGION="eu"), soon()
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
    notify_on_commit.send_by_postgresql(Notification(NotificationKind.ROWS, at))
    until(lambda: sleeper.heard(at), within=20)
    assert all(woken >= at for woken in sleeper.woken)


def test_a_listener_stops_at_once_and_leaves_no_connection(
    sleeping: Callable[..., Sleeper],
) -> None:
    sleeper = sleeping()
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
