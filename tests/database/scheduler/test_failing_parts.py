"""No exception ends a scheduler or one of its threads, and the dispatching thread waits for none of
them. The failing part is postponed, counted and shown.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import pairwise
from typing import Any

import pytest
from django.db import OperationalError, connection, connections

from django_durable_tasks.celery.worker_node import NodeBeat
from django_durable_tasks.choices import Status
from django_durable_tasks.cluster.nodes import NodeReport
from django_durable_tasks.limits import release
from django_durable_tasks.models import Node, NodeKind, Task
from django_durable_tasks.models.tasks import NEVER
from django_durable_tasks.scheduler.jobs import JobSchedule
from django_durable_tasks.scheduler.leader import Leader
from django_durable_tasks.scheduler.loop import Scheduler
from django_durable_tasks.scheduler.notifier import Listener, Notification
from django_durable_tasks.scheduler.threads import Steps
from tests.database.commands.durable_command import durable
from tests.factories import a_task, many_tasks
from tests.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)
CLASSES = [ValueError, UnicodeDecodeError, MemoryError]


def _error(kind: type[Exception]) -> Exception:
    return (
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "odd")
        if kind is UnicodeDecodeError
        else kind("odd")
    )


# Each method and each class once: all exceptions take the same path.
@pytest.mark.parametrize(
    ("method", "kind"),
    [("pop_due", ValueError), ("next_at", UnicodeDecodeError), ("add", MemoryError)],
)
def test_tasks_are_dispatched_by_polls_and_maintenance_continues_beside_a_failing_index(
    method: str,
    kind: type[Exception],
    leader: Scheduler,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    settings: Any,
) -> None:
    settings.DURABLE_TASKS = {"REPUBLISH_AFTER": 1}

    def broken(*_: Any) -> Any:
        raise _error(kind)

    monkeypatch.setattr(leader.dispatching.index, method, broken)
    soon, due = a_task(due=1), a_task()
    unanswered, failed = a_task(Status.QUEUED, due=-1, publish_count=1), list[Any]()

    def dispatched() -> bool:
        assert leader.round() <= 1
        leader.maintenance.round()
        leader.republishing.round()
        unanswered.refresh_from_db()
        # A step succeeds again when no task is left for the failing method.
        failed.extend(leader.steps.failing())
        both = len(Task.objects.queued().filter(pk__in=[soon.pk, due.pk])) == 2
        return both and bool(failed) and unanswered.publish_count > 1

    until(dispatched, within=30)
    assert caplog.text.count(". The other parts of the scheduler continue.") == 1
    assert {step["error"] for step in failed} == {kind.__name__}


def test_a_failure_is_logged_once_postponed_longer_each_time_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    steps, calls, broken = Steps(), list[float](), [True]

    def act() -> int:
        calls.append(time.monotonic())
        if broken:
            raise ZeroDivisionError
        return 5

    until(lambda: steps.attempt("It", act, 0, 1.0) or len(calls) == 4, within=30)
    waits = [after - before for before, after in pairwise(calls)]
    assert all(wait >= least for wait, least in zip(waits, (0.09, 0.19, 0.39), strict=True))
    shown = {"what": "It", "error": "ZeroDivisionError", "number": 4, "since": 0}
    assert steps.failing()[0] | {"since": 0} == shown
    broken.clear()
    until(lambda: steps.attempt("It", act, 0, 1.0) == 5, within=30)
    assert steps.failing() == []
    text = "It failed (ZeroDivisionError). The other parts of the scheduler continue."
    assert caplog.text.count(text) == 1
    assert caplog.text.count("It works again after 4 failures.") == 1


def _fail() -> int:
    raise OperationalError("away")


def test_a_database_error_is_raised_if_the_caller_handles_outages() -> None:
    steps = Steps()
    with pytest.raises(OperationalError):
        steps.attempt("It", _fail, 0, outages=True)
    assert steps.attempt("It", _fail, 0) == 0


def test_status_shows_a_failing_part_until_it_works_again(scheduler: Scheduler) -> None:
    scheduler.steps.attempt("Job prune", _fail, 0)
    scheduler._beat._beat()
    assert "Node one: Job prune failed 1 times in a row in" in durable("status").out
    scheduler.steps._failing["Job prune"].again_at = 0.0
    scheduler.steps.attempt("Job prune", lambda: 0, 0)
    scheduler._beat._beat()
    assert "Job prune" not in durable("status").out


def test_a_node_whose_report_raises_keeps_sending_heartbeats(
    settings: Any, transactional_db: None, caplog: pytest.LogCaptureFixture
) -> None:
    settings.DURABLE_TASKS = {"NODE_HEARTBEAT": 0.05}

    def report() -> NodeReport:
        raise KeyError("odd")

    beat = NodeBeat(uuid.uuid4(), "one", NodeKind.SCHEDULER, report)
    beat.start()
    try:
        until(lambda: Node.objects.filter(pk=beat.node, beats__gt=3).exists(), within=30)
    finally:
        beat.leave()
    assert caplog.text.count("Collecting the report of this node failed") == 1


def test_the_thread_of_the_leader_survives_a_receiver_that_raises(settings: Any) -> None:
    settings.DURABLE_TASKS = {"LEADER_LEASE": 1}
    called = threading.Event()

    def on_lead() -> None:
        called.set()
        raise LookupError("odd")

    leader = Leader(uuid.uuid4(), on_lead)
    leader.start()
    try:
        assert called.wait(30)
        trusted = leader._trusted_until
        until(lambda: leader._trusted_until > trusted, within=30, message="it renews")
        assert leader.leading()
    finally:
        leader.stop()


class FailingTransport:
    """A transport whose every method raises, including ``close``."""

    name, failure_cause = "an odd way", ""

    def __init__(self) -> None:
        self.opened = 0

    def open(self) -> None:
        """Open; raises on each second call."""
        self.opened += 1
        if self.opened % 2:
            raise _error(CLASSES[self.opened % len(CLASSES)])

    def wait(self, seconds: float) -> Sequence[str]:
        """Raise."""
        raise _error(CLASSES[self.opened % len(CLASSES)])

    def send(self, notification: Notification) -> bool:
        """Pretend to send."""
        return True

    def doubtful(self) -> bool:
        """Return that no connection is suspect."""
        return False

    def close(self) -> None:
        """Raise, as a broken connection may."""
        raise OSError("odd")


def test_a_listener_survives_whatever_its_transport_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_durable_tasks.scheduler.notifier._LONGEST_PAUSE", 0.02)
    way = FailingTransport()
    listener = Listener(way, lambda at: None, lambda: None)
    listener._pause = 0.02
    listener.start()
    until(lambda: way.opened > 10, within=30)
    assert listener.is_alive()
    listener.stop(10)
    assert not listener.is_alive()


_WAITING = """
SELECT pid, query_start FROM pg_stat_activity
 WHERE datname = current_database() AND wait_event_type = 'Lock' ORDER BY pid
"""


@contextmanager
def _running() -> Iterator[Scheduler]:
    scheduler = Scheduler("one")
    thread = threading.Thread(target=scheduler.run)
    thread.start()
    try:
        until(scheduler.leader.leading, within=30)
        yield scheduler
    finally:
        scheduler.stop()
        thread.join(60)
    assert not thread.is_alive()


@contextmanager
def _locked(table: str) -> Iterator[None]:
    other = connections.create_connection("default")
    try:
        other.set_autocommit(False)
        with other.cursor() as cursor:
            cursor.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
        yield
        other.rollback()
    finally:
        other.close()


def _waiting() -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(_WAITING)
        return list(cursor.fetchall())


@pytest.mark.postgresql
@pytest.mark.parametrize(
    "table",
    ["durable_tasks_dead_letter", "durable_tasks_recurring_task", "durable_tasks_ending_event"],
)
def test_tasks_are_dispatched_while_a_job_or_the_firing_waits_for_a_lock(table: str) -> None:
    """A waiting thread gives up after 5 s, so the wait that began before the task must be the one
    after it.
    """

    def dispatched_meanwhile() -> bool:
        before = until(_waiting, within=30, message="a thread waits for the table")
        row = a_task()
        until(
            lambda: Task.objects.queued().filter(pk=row.pk).exists(),
            within=30,
            message="dispatched",
        )
        return bool(set(before) & set(_waiting()))

    with _running(), _locked(table):
        assert any(dispatched_meanwhile() for _ in range(5))


def test_tasks_are_dispatched_while_a_release_of_limits_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, over = threading.Event(), threading.Event()
    original = release.release_waiting

    def slow(now: datetime, limit: int) -> int:
        begun.set()
        over.wait(60)
        return original(now, limit)

    with _running():
        monkeypatch.setattr(release, "release_waiting", slow)
        waiting = a_task(due_at=NEVER, waiting_for_limit="tenant:1")
        assert begun.wait(30)
        try:
            row = a_task()
            until(lambda: Task.objects.queued().filter(pk=row.pk).exists(), within=30)
        finally:
            over.set()
        until(lambda: Task.objects.queued().filter(pk=waiting.pk).exists(), within=30)


def test_a_scheduler_runs_its_jobs_and_dispatches_until_it_is_stopped(settings: Any) -> None:
    settings.DURABLE_TASKS = {"RETENTION": {"CANCELLED": 0.001}, "POLL": 0.2}
    many_tasks(30, Status.CANCELLED)
    with _running() as scheduler:
        row = a_task(due=0.5)
        unanswered = a_task(Status.QUEUED, due=-1, publish_count=1)
        until(lambda: Task.objects.queued().filter(pk=row.pk).exists(), within=30)
        until(lambda: Task.objects.get(pk=unanswered.pk).publish_count == 2, within=30)
        until(lambda: not Task.objects.filter(status=Status.CANCELLED).exists(), within=30)
        assert scheduler.steps.failing() == []
    assert not scheduler.maintenance.is_alive()
    assert not scheduler.triggering.is_alive()
    assert not scheduler.releasing.is_alive()


def test_a_step_of_any_thread_that_takes_too_long_ends_leadership(scheduler: Scheduler) -> None:
    leader = scheduler.leader
    leader.step()
    begun, over = threading.Event(), threading.Event()

    def stuck() -> None:
        leader.watch(0.0)
        begun.set()
        over.wait(60)
        leader.watch(None)

    thread = threading.Thread(target=stuck)
    thread.start()
    assert begun.wait(30)
    leader.watch(30.0)
    leader.watch(None)

    def resigned() -> bool:
        leader.step()
        return leader.term is None

    until(resigned, within=30)
    leader.step()
    assert not leader.leading(), "while the step is stuck it does not lead again"
    over.set()
    thread.join(30)
    leader.step()
    assert leader.leading()
    leader.resign()


def test_a_job_that_changed_something_runs_again_soon_and_another_after_its_interval() -> None:
    schedule = JobSchedule()
    due = {job.name: job for job in schedule.take_due()}
    assert schedule.take_due() == []
    schedule.finished(due["prune"], 0, 0.2)
    schedule.finished(due["age_priorities"], 3, 0.0)
    assert [job.name for job in schedule.take_due()] == ["age_priorities"]
    schedule.finished(due["prune"], 500, 0.001)
    until(lambda: "prune" in {job.name for job in schedule.take_due()}, within=30)
    schedule.endings_recorded()
    assert {"resolve_dependents", "count_endings"} <= {job.name for job in schedule.take_due()}
    assert schedule.next_in() <= 0.2
