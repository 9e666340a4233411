"""No exception ends a scheduler or one of its threads. The failing part is postponed, counted and
shown.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any

import pytest
from django.db import OperationalError

from django_durable_tasks.celery import broker_outage
from django_durable_tasks.celery.worker_node import NodeBeat
from django_durable_tasks.choices import Status
from django_durable_tasks.cluster.nodes import NodeReport
from django_durable_tasks.models import Node, NodeKind, Task
from django_durable_tasks.scheduler.due_index import DueIndex
from django_durable_tasks.scheduler.leader import Leader
from django_durable_tasks.scheduler.listener import Listener
from django_durable_tasks.scheduler.loop import Scheduler
from django_durable_tasks.scheduler.notify_on_commit import Notification
from django_durable_tasks.scheduler.threads import Steps
from tests.database.commands.durable_command import durable
from tests.factories import QUEUE, a_task
from tests.messages import take_task_messages
from tests.process_state import new_process_state
from tests.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)
CLASSES = [ValueError, UnicodeDecodeError, MemoryError]


def _error(kind: type[Exception]) -> Exception:
    return (
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "odd")
        if kind is UnicodeDecodeError
        else kind("odd")
    )


class BrokenIndex(DueIndex):
    """An index one of whose methods raises."""

    def __init__(self, method: str, error: Exception) -> None:
        super().__init__()

        def broken(*_: Any) -> Any:
            raise error

        setattr(self, method, broken)


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("method", ["pop_due", "next_at", "add"])
def test_tasks_are_dispatched_by_polls_and_maintenance_continues_beside_a_failing_index(
    method: str, kind: type[Exception], caplog: pytest.LogCaptureFixture, settings: Any
) -> None:
    settings.DURABLE_TASKS = {"REPUBLISH_AFTER": 1}
    new_process_state()
    broker_outage.breaker.succeeded()
    take_task_messages(QUEUE)
    scheduler = Scheduler("one")
    scheduler.dispatching.index = BrokenIndex(method, _error(kind))
    scheduler.leader.step()
    soon, due = a_task(due=3), a_task()
    unanswered, failed = a_task(Status.QUEUED, due=-1, publish_count=1), list[Any]()

    def dispatched() -> bool:
        assert scheduler.round() <= 1
        scheduler.maintenance.round()
        scheduler.republishing.round()
        unanswered.refresh_from_db()
        # A step succeeds again when no task is left for the failing method.
        failed.extend(scheduler.steps.failing())
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

    until(lambda: steps.attempt("It", act, 1.0) or len(calls) == 4, within=30)
    waits = [after - before for before, after in pairwise(calls)]
    assert all(wait >= least for wait, least in zip(waits, (0.09, 0.19, 0.39), strict=True))
    assert steps.failing()[0] | {"since": 0} == {
        "what": "It",
        "error": "ZeroDivisionError",
        "number": 4,
        "since": 0,
    }
    broken.clear()
    until(lambda: steps.attempt("It", act, 1.0) == 5, within=30)
    assert steps.failing() == []
    assert (
        caplog.text.count(
            "It failed (ZeroDivisionError). The other parts of the scheduler continue."
        )
        == 1
    )
    assert caplog.text.count("It works again after 4 failures.") == 1


def test_a_database_error_is_raised_if_the_caller_handles_outages() -> None:
    def act() -> int:
        raise OperationalError("away")

    steps = Steps()
    with pytest.raises(OperationalError):
        steps.attempt("It", act, outages=True)
    assert steps.attempt("It", act) == 0


def test_status_shows_a_failing_part_until_it_works_again() -> None:
    scheduler = Scheduler("one")

    def act() -> int:
        raise TypeError

    scheduler.steps.attempt("Job prune", act)
    scheduler._beat._beat()
    assert "Node one: Job prune failed 1 times in a row in" in durable("status").out
    scheduler.steps._failing["Job prune"].again_at = 0.0
    scheduler.steps.attempt("Job prune", lambda: 0)
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
    settings.DURABLE_TASKS = {"LEADER_RENEW": 0.05, "LEADER_LEASE": 5}
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


def _no_wake(at: datetime) -> None:
    """Do nothing."""


def test_a_listener_survives_whatever_its_transport_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_durable_tasks.scheduler.listener._LONGEST_PAUSE", 0.02)
    way = FailingTransport()
    listener = Listener(way, _no_wake, lambda: None)
    listener._pause = 0.02
    listener.start()
    until(lambda: way.opened > 10, within=30)
    assert listener.is_alive()
    listener.stop(10)
    assert not listener.is_alive()
