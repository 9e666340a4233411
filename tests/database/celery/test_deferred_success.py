"""The success of a run in a prefork child is recorded together with the next start, or soon."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from billiard.exceptions import SoftTimeLimitExceeded
from celery import signals
from celery.exceptions import Ignore
from django.db import OperationalError, connection

from django_durable_tasks import durable_task
from django_durable_tasks.celery.execution import deferred_success, worker_node
from django_durable_tasks.celery.execution.deferred_success import DeferredSuccess
from django_durable_tasks.celery.execution.live_runs import process_runs
from django_durable_tasks.celery.task import DurableTask
from django_durable_tasks.engine import transitions
from django_durable_tasks.engine.db import direct
from django_durable_tasks.engine.tasks import attempts, next_run
from django_durable_tasks.models import Task
from django_durable_tasks.rules.states import Status
from django_durable_tasks.signals import tasks_transitioned
from tests.database.limits.limited_tasks import limit
from tests.database.transitions.transition_calls import CRASH, question
from tests.delivery import deliver
from tests.factories import a_task
from tests.project import tasks
from tests.waiting import until

pytestmark = [pytest.mark.postgresql, pytest.mark.django_db(transaction=True)]
_NEVER = 3_600.0


@pytest.fixture(autouse=True)
def deferred(monkeypatch: pytest.MonkeyPatch) -> Iterator[DeferredSuccess]:
    """Act as a child of a prefork pool whose thread records nothing."""
    monkeypatch.setattr(worker_node._ThisProcess, "is_pool_child", True)
    monkeypatch.setattr(direct, "_process", direct._Process())
    monkeypatch.setattr(deferred_success, "DELAY", _NEVER)
    found = DeferredSuccess()
    monkeypatch.setattr(deferred_success._OfProcess, "deferred", found)
    direct.use()
    yield found
    found.record()
    found._pause.set()


def _ended(row: Task) -> tuple[str, list[str]]:
    row.refresh_from_db()
    return row.status, list(row.executions.order_by("id").values_list("status", flat=True))


def _has_succeeded(row: Task) -> bool:
    return _ended(row)[0] == Status.SUCCESS


def _transaction_of(row: Task) -> str:
    """Return the transaction that wrote the task last."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT xmin FROM durable_tasks_task WHERE id = %s", [row.pk])
        return str(cursor.fetchone()[0])


def _two(*, reverse: bool = False) -> list[Task]:
    rows = [a_task(Status.QUEUED) for _ in range(2)]
    return sorted(rows, key=lambda row: row.pk.int, reverse=reverse)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_success_is_committed_with_the_next_start(
    reverse: bool, deferred: DeferredSuccess
) -> None:
    first, second = _two(reverse=reverse)
    deliver(first)
    assert _ended(first) == (Status.RUNNING, [])
    assert deferred._held is not None
    assert process_runs.leases.renews(deferred._held[0])
    deliver(second)
    assert _ended(first) == (Status.SUCCESS, ["SUCCESS"])
    assert _ended(second) == (Status.RUNNING, [])
    assert _transaction_of(first) == _transaction_of(second)
    assert [live.run.task_id for live in process_runs.leases._runs.values()] == [second.pk]


def test_the_thread_records_a_success_that_no_start_follows(
    monkeypatch: pytest.MonkeyPatch, deferred: DeferredSuccess
) -> None:
    monkeypatch.setattr(deferred_success, "DELAY", 0.01)
    for _ in range(2):
        row = a_task(Status.QUEUED)
        deliver(row)
        until(partial(_has_succeeded, row), within=10)
        until(lambda: deferred._held is None, within=10)


def test_the_thread_records_a_success_although_its_wake_up_is_lost(
    monkeypatch: pytest.MonkeyPatch, deferred: DeferredSuccess
) -> None:
    monkeypatch.setattr(deferred_success, "DELAY", 0.01)
    monkeypatch.setattr(deferred_success, "IDLE", 0.01)
    monkeypatch.setattr(deferred._wake, "set", lambda: None)
    row = a_task(Status.QUEUED)
    deliver(row)
    until(partial(_has_succeeded, row), within=10)
    until(lambda: deferred._held is None, within=10)


def test_the_exit_of_the_child_records_the_success() -> None:
    row = a_task(Status.QUEUED)
    deliver(row)
    signals.worker_process_shutdown.send(sender=None, pid=1, exitcode=0)
    assert _ended(row) == (Status.SUCCESS, ["SUCCESS"])


def test_a_refused_message_does_not_prevent_the_success() -> None:
    first, second = _two()
    deliver(first)
    with pytest.raises(Ignore, match="STALE"):
        deliver(second, epoch=7)
    assert _ended(first) == (Status.SUCCESS, ["SUCCESS"])
    assert _ended(second) == (Status.QUEUED, [])


def test_a_success_that_is_refused_does_not_prevent_the_start() -> None:
    first, second = _two()
    deliver(first)
    attempts.end_runs(question(first), lambda _: CRASH)
    deliver(second)
    assert _ended(first) == (Status.PENDING, ["LOST", "FENCED"])
    assert _ended(second)[0] == Status.RUNNING


@pytest.mark.parametrize("is_committed", [False, True])
def test_after_an_error_of_their_transaction_both_are_committed_once(
    monkeypatch: pytest.MonkeyPatch, is_committed: bool
) -> None:
    first, second = _two()
    deliver(first)
    act = transitions.succeed_and_start

    def fail(*given: Any) -> Any:
        if is_committed:
            act(*given)
        raise OperationalError("The connection was lost.")

    monkeypatch.setattr(transitions, "succeed_and_start", fail)
    deliver(second)
    deferred_success.of_process().record()
    for row in (first, second):
        assert _ended(row) == (Status.SUCCESS, ["SUCCESS"])
        assert row.attempts == 1


def test_a_time_limit_of_the_next_message_does_not_lose_the_success(
    monkeypatch: pytest.MonkeyPatch, deferred: DeferredSuccess
) -> None:
    first, second = _two()
    deliver(first)

    def interrupt(*_: Any, **__: Any) -> Any:
        raise SoftTimeLimitExceeded

    monkeypatch.setattr(next_run, "succeed_and_open", interrupt)
    with pytest.raises(SoftTimeLimitExceeded):
        deliver(second)
    assert deferred._held is not None
    assert process_runs.leases.renews(deferred._held[0])
    deferred.record()
    assert _ended(first) == (Status.SUCCESS, ["SUCCESS"])


def test_a_time_limit_after_the_function_returned_does_not_make_it_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    defer = DeferredSuccess.defer

    def interrupted(self: DeferredSuccess, *given: Any) -> None:
        defer(self, *given)
        raise SoftTimeLimitExceeded

    monkeypatch.setattr(DeferredSuccess, "defer", interrupted)
    row = a_task(Status.QUEUED)
    assert deliver(row) is None
    deferred_success.of_process().record()
    assert _ended(row) == (Status.SUCCESS, ["SUCCESS"])


def _with_dependents() -> Task:
    return a_task(Status.QUEUED, has_dependents=True)


def _limited() -> Task:
    limit("tenant:1", 5)
    return a_task(Status.QUEUED)


def _hooked() -> Task:
    return a_task(Status.QUEUED, name=hooked.name)


class _Hooked(DurableTask):
    abstract = True

    def on_success(self, *_: Any) -> None:
        """Do nothing; its presence counts."""


@durable_task(name="tests.deferred.hooked", base=_Hooked)
def hooked() -> None:
    """Have a hook."""


@pytest.mark.parametrize("make", [_with_dependents, _limited, _hooked])
def test_a_success_that_something_depends_on_is_recorded_at_once(
    make: Callable[[], Task],
) -> None:
    deliver(a_task(Status.QUEUED))
    row = make()
    deliver(row)
    assert _ended(row)[0] == Status.SUCCESS


def test_a_success_is_recorded_at_once_if_signals_have_receivers() -> None:
    def receive(**_: Any) -> None:
        pass

    for signal in (signals.task_success, signals.task_postrun, tasks_transitioned):
        row = a_task(Status.QUEUED)
        signal.connect(receive, weak=False)
        try:
            deliver(row)
        finally:
            signal.disconnect(receive)
        assert _ended(row)[0] == Status.SUCCESS


def test_another_start_records_the_success_before() -> None:
    first = a_task(Status.QUEUED)
    second = a_task(Status.QUEUED, name=tasks.unique_for_an_hour.name, args=["x"])
    deliver(first)
    deliver(second)
    assert _ended(first) == (Status.SUCCESS, ["SUCCESS"])


def test_a_plain_celery_task_starts_after_the_success_is_recorded() -> None:
    row = a_task(Status.QUEUED)
    deliver(row)
    signals.task_prerun.send(sender=object(), task_id=str(uuid.uuid4()))
    assert _ended(row) == (Status.SUCCESS, ["SUCCESS"])
