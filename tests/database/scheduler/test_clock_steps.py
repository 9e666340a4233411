"""The leader notices that the database's clock was set, reports it, and corrects what would wait."""

from __future__ import annotations

import logging
import time
import uuid
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_durable_tasks.choices import Status
from django_durable_tasks.cluster import nodes
from django_durable_tasks.cluster.nodes import HeartbeatMonitor, NodeReport
from django_durable_tasks.contrib.callbacks import endpoints
from django_durable_tasks.contrib.callbacks.models import Endpoint
from django_durable_tasks.models import BatchMessage, Node, NodeKind, SchedulerLease, Task
from django_durable_tasks.scheduler.jobs import CorrectClockSteps
from django_durable_tasks.store import clock as clock_steps
from django_durable_tasks.store.clock import ClockStep, ClockStepDetector, database_now
from django_durable_tasks.tasks import batches
from tests.database.commands.durable_command import durable
from tests.factories import a_node, a_task

pytestmark = pytest.mark.django_db(transaction=True)
HOUR = timedelta(hours=1)
START = datetime.fromisoformat("2026-03-02T09:00:00+00:00")


class Clock:
    """Replaces the readings of the database's clock and of the time that has passed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passed = self.wrong = self.takes = 0.0
        monkeypatch.setattr(clock_steps, "elapsed", lambda: self.passed)
        monkeypatch.setattr(clock_steps, "database_now", self._read)

    def _read(self) -> datetime:
        self.passed += self.takes
        return START + timedelta(seconds=self.passed + self.wrong)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Return a clock that the test sets."""
    return Clock(monkeypatch)


@given(
    readings=st.lists(
        st.tuples(
            st.floats(0.1, 10_000),
            st.just(0.0) | st.floats(-1e5, 1e5),
            st.just(0.0) | st.floats(0, 3),
        ),
        max_size=20,
    )
)
def test_a_step_is_the_change_of_the_difference_between_two_readings(
    readings: list[tuple[float, float, float]],
) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        clock = Clock(monkeypatch)
        detector, expected = ClockStepDetector(), 0.0
        assert detector.read() is None
        for passes, step, takes in readings:
            clock.passed += passes
            clock.wrong += step
            clock.takes = takes
            expected += step
            found = detector.read()
            if takes > 1.0:
                assert found is None
            elif found is not None:
                assert found == pytest.approx(expected, abs=1.1)
                expected = 0.0


def _ahead(task: Task, **waits: timedelta) -> None:
    """Let columns of the task lie so far ahead of what a clock of an hour ahead has written."""
    written = database_now() + HOUR
    columns = {"updated_at": written, **{name: written + wait for name, wait in waits.items()}}
    Task.objects.unguarded().filter(pk=task.pk).update(**columns)


def _waits(task: Task) -> float:
    task.refresh_from_db()
    assert task.due_at is not None
    return (task.due_at - database_now()).total_seconds()


def _noticed(clock: Clock, seconds: float = 3_600.0) -> HeartbeatMonitor:
    """Let a leader notice that the clock was set back."""
    job, monitor = CorrectClockSteps(), HeartbeatMonitor()
    clock.wrong = seconds
    assert job(database_now(), monitor) == 0
    clock.wrong, clock.passed = 0.0, 1.0
    job(database_now(), monitor)
    assert monitor.clock_step is not None
    assert monitor.clock_step.seconds == pytest.approx(-seconds)
    return monitor


def test_waits_that_were_written_by_the_wrong_clock_go_on_from_now(clock: Clock) -> None:
    retry, chosen, older = (a_task(attempts=1, failures=1) for _ in range(3))
    _ahead(retry, due_at=timedelta(seconds=40))
    _ahead(chosen, run_at=2 * HOUR, due_at=2 * HOUR)
    Task.objects.unguarded().filter(pk=older.pk).update(due_at=database_now() + 2 * HOUR)
    created, zero = a_task(), timedelta(0)
    _ahead(created, created_at=zero, run_at=zero, due_at=zero)
    _noticed(clock)
    assert 30 < _waits(retry) <= 40
    assert _waits(created) <= 0
    assert _waits(chosen) > 3 * 3_500
    assert _waits(older) > 2 * 3_500


def test_published_messages_can_be_published_again_in_time(clock: Clock, settings: Any) -> None:
    settings.DURABLE_TASKS = {"REPUBLISH_AFTER": 9}
    task = a_task(Status.QUEUED, due=3_600)
    batches.reserve_messages([("test", "some.task")])
    BatchMessage.objects.update(due_at=database_now() + HOUR)
    _noticed(clock)
    assert 0 < _waits(task) <= 9
    due_at = BatchMessage.objects.get().due_at
    assert due_at is not None
    assert due_at <= database_now() + timedelta(seconds=9)


def test_the_pause_of_an_endpoint_ends(
    clock: Clock, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DURABLE_TASKS = {"HTTP_BREAKER_FAILURES": 1}
    monkeypatch.setattr(endpoints, "PAUSE", 7_200)
    for key in ("ahead", "right"):
        endpoints.failed(key, 1, "refused")
    now = database_now()
    Endpoint.objects.unguarded().filter(key="ahead").update(
        open_until=now + 3 * HOUR, probe_until=now + HOUR, updated_at=now + HOUR
    )
    _noticed(clock)
    ahead, right = (Endpoint.objects.get(key=key) for key in ("ahead", "right"))
    assert ahead.open_until is not None
    assert (ahead.open_until <= database_now(), ahead.probe_until) == (True, None)
    assert right.open_until is not None
    assert right.open_until > now + HOUR


def test_a_lease_that_expires_too_late_can_be_taken() -> None:
    first, second = uuid.uuid4(), uuid.uuid4()
    term = nodes.take_lease(first, 4.0)
    assert term is not None

    def taken(expires_in: float, seconds: float = 4.0) -> int | None:
        expires_at = database_now() + timedelta(seconds=expires_in)
        SchedulerLease.objects.update(expires_at=expires_at)
        return nodes.take_lease(second, seconds)

    assert taken(4) is None
    assert taken(58) is None
    assert taken(62, seconds=25.0) is None  # leases of this duration can expire so late
    assert taken(62) == term + 1
    assert not nodes.renew_lease(first, term, 4.0)


def test_a_leader_renews_its_own_lease_that_expires_too_late() -> None:
    holder = uuid.uuid4()
    term = nodes.take_lease(holder, 4.0)
    assert term is not None
    SchedulerLease.objects.update(expires_at=database_now() + HOUR)
    assert nodes.renew_lease(holder, term, 4.0)
    assert SchedulerLease.objects.get().expires_at < database_now() + timedelta(seconds=5)


def test_a_new_leader_notices_a_step_that_only_an_earlier_one_saw(clock: Clock) -> None:
    node = a_node()
    Node.objects.filter(pk=node.pk).update(last_seen_at=database_now() + HOUR)
    retry, monitor = a_task(attempts=1, failures=1), HeartbeatMonitor()
    _ahead(retry, due_at=timedelta(seconds=20))
    CorrectClockSteps()(database_now(), monitor)
    assert monitor.clock_step is not None
    assert monitor.clock_step.seconds == pytest.approx(-3_600, abs=30)
    assert _waits(retry) <= 20


def test_corrections_are_repeated_for_processes_that_still_use_the_wrong_time(clock: Clock) -> None:
    at = [100.0]
    job, monitor = CorrectClockSteps(lambda: at[0]), HeartbeatMonitor()
    for wrong in (3_600.0, 0.0):
        clock.wrong = wrong
        job(database_now(), monitor)
    for later, corrected in ((20.0, True), (110.0, True), (130.0, False)):
        at[0] = 100.0 + later
        task = a_task(attempts=1, failures=1)
        _ahead(task, due_at=timedelta(seconds=20))
        job(database_now(), monitor)
        assert (_waits(task) <= 20) == corrected


@pytest.mark.parametrize(("seconds", "way"), [(3_600.0, "forward"), (-5_000.0, "back")])
def test_a_step_is_logged_once_and_reported_for_an_hour(
    clock: Clock, caplog: pytest.LogCaptureFixture, seconds: float, way: str
) -> None:
    job, monitor = CorrectClockSteps(), HeartbeatMonitor()
    caplog.set_level(logging.ERROR, "django_durable_tasks.scheduler")
    job(database_now(), monitor)
    clock.wrong = seconds
    for _ in range(5):
        clock.passed += 1.0
        job(database_now(), monitor)
    assert [way in record.message for record in caplog.records] == [True]
    node = uuid.uuid4()
    nodes.register(node, "scheduler@host", NodeKind.SCHEDULER)
    nodes.beat(node, NodeReport(clock_step=monitor.clock_step))
    assert f"clock was set {way} by {abs(seconds):,.1f} s" in _problems()
    Node.objects.filter(pk=node).update(clock_step_at=database_now() - 1.1 * HOUR)
    assert "clock was set" not in _problems()


@pytest.mark.parametrize("seconds", [1.5, -1.5])
def test_a_small_step_is_not_reported(clock: Clock, seconds: float) -> None:
    job, monitor = CorrectClockSteps(), HeartbeatMonitor()
    job(database_now(), monitor)
    clock.wrong = seconds
    assert job(database_now(), monitor) == 0
    assert monitor.clock_step is None


def test_a_node_that_was_last_seen_in_the_future_is_not_alive() -> None:
    node = a_node()
    Node.objects.filter(pk=node.pk).update(last_seen_at=database_now() + HOUR)
    assert "No scheduler is alive" in _problems()


def test_the_report_of_a_step_keeps_its_time() -> None:
    node = a_node()
    step = ClockStep(-60.0, time.monotonic() - 600.0)
    for _ in range(2):
        nodes.beat(node.pk, NodeReport(clock_step=step))
        node.refresh_from_db()
        assert node.clock_step_at is not None
        since = (database_now() - node.clock_step_at).total_seconds()
        assert since == pytest.approx(600, abs=30)


def _problems() -> str:
    return " ".join(durable("status", "--format", "json").data["problems"])
