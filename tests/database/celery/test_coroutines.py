"""Async functions run on one event loop, and start, end and are cancelled as plain functions are."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from celery.exceptions import Ignore
from celery.exceptions import Retry as CeleryRetry
from django.contrib.auth.models import Group

from django_durable_tasks.celery import event_loop
from django_durable_tasks.celery.live_runs import process_runs
from django_durable_tasks.choices import Status
from django_durable_tasks.models import Task, TaskExecutionLog
from django_durable_tasks.store import connections
from django_durable_tasks.tasks import operator_actions
from tests.delivery import deliver, run_task
from tests.factories import a_task
from tests.project import coroutines
from tests.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def no_notes() -> Iterator[None]:
    """Forget what other tests have noted."""
    coroutines.cancelled.clear()
    coroutines.meetings.clear()
    yield
    event_loop._loop.is_stopping = False


def _row(task: Any, *args: Any, **fields: Any) -> Task:
    most = task.durable_options.max_attempts
    return a_task(Status.QUEUED, name=task.name, args=list(args), max_attempts=most, **fields)


def _logged(row: Task) -> list[str]:
    log = TaskExecutionLog.objects.filter(task=row).order_by("pk")
    return list(log.values_list("status", flat=True))


def _raised_by(row: Task) -> BaseException | None:
    try:
        deliver(row)
    except BaseException as error:  # noqa: BLE001 - examined by the tests
        return error
    return None


def test_the_value_of_a_coroutine_is_the_result_of_its_task() -> None:
    row = run_task(coroutines.add, 1, 2)
    assert (row.status, row.result, _logged(row)) == ("SUCCESS", 3, ["SUCCESS"])


def test_a_step_runs_in_the_thread_of_the_function_and_not_in_the_event_loop() -> None:
    row = run_task(coroutines.add_in_a_step, 1, 2)
    assert row.result is not None
    assert row.result[0] == 3
    assert "sync_to_async(self.durable.step)" in row.result[1]
    assert row.position == {"add": {"result": 3}}


def test_a_direct_call_returns_the_coroutine() -> None:
    coroutine = coroutines.add(1, 2)
    assert inspect.iscoroutine(coroutine)
    assert asyncio.run(coroutine) == 3


def test_request_run_and_current_task_are_those_of_the_coroutine_in_every_part_of_it() -> None:
    row = run_task(coroutines.show)
    expected = [str(row.pk), 1, coroutines.show.name, str(row.pk)]
    assert row.result is not None
    assert row.result["function"] == row.result["child"] == row.result["sync"] == expected
    assert row.result["other thread"] == expected[:2]


def test_coroutines_that_run_at_once_see_their_own_request() -> None:
    rows = [_row(coroutines.meet, "here", 3) for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(deliver, rows))
    expected = [[str(row.pk), 1, coroutines.meet.name, str(row.pk)] for row in rows]
    assert results == expected


@pytest.mark.parametrize(
    ("task", "error", "reasons"),
    [
        (coroutines.over_soft_limit, "SoftTimeLimitExceeded", ["SoftTimeLimitExceeded"]),
        (coroutines.over_hard_limit, "RunOutOfTime", ["time limit of 0.2 s"]),
        (coroutines.slow_to_end, "RunOutOfTime", ["SoftTimeLimitExceeded", "time limit of 0.3 s"]),
        (coroutines.cancel_itself, "BodyFailed", []),
        (coroutines.leave, "SystemExit", []),
    ],
)
def test_a_coroutine_that_is_interrupted_fails_with_the_reason(
    task: Any, error: str, reasons: list[str]
) -> None:
    row = _row(task)
    raised = _raised_by(row)
    row.refresh_from_db()
    assert (row.status, row.reason, _logged(row)) == ("FAILED", "EXHAUSTED", ["FAILED"])
    assert error in row.last_error
    assert isinstance(raised, SystemExit) == (error == "SystemExit")
    assert len(coroutines.cancelled) == len(reasons)
    assert all(map(str.__contains__, coroutines.cancelled, reasons))


def test_a_value_that_is_returned_after_the_soft_limit_counts() -> None:
    row = run_task(coroutines.keep_what_is_done)
    assert (row.status, row.result) == ("SUCCESS", "half")


def test_the_event_loop_survives_an_exit_in_a_task_of_a_coroutine() -> None:
    assert run_task(coroutines.leave_beside).result == 1
    assert run_task(coroutines.add, 1, 2).result == 3


@pytest.fixture
def beside() -> Iterator[ThreadPoolExecutor]:
    """A thread that delivers messages."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


def _delivered(row: Task, pool: ThreadPoolExecutor) -> Future[BaseException | None]:
    """Deliver the message in another thread, and return when the coroutine waits."""
    message = f"{row.pk}.{row.epoch}.{row.publish_count}"

    def is_waiting() -> bool:
        live = process_runs.find(message)
        return live is not None and live.interrupt is not None

    future = pool.submit(_raised_by, row)
    until(is_waiting, within=20)
    row.refresh_from_db()
    return future


def test_a_cancelled_task_ends_with_the_next_heartbeat(
    beside: ThreadPoolExecutor,
) -> None:
    row = _row(coroutines.hold)
    future = _delivered(row, beside)
    operator_actions.cancel(Task.objects.filter(pk=row.pk), reason="CANCELLED")
    process_runs.leases.renew()
    raised = future.result(20)
    row.refresh_from_db()
    assert (row.status, _logged(row)) == ("CANCELLED", ["CANCELLED"])
    assert isinstance(raised, Ignore)
    assert coroutines.cancelled == ["The cancellation of this run was requested."]


def test_a_lost_run_is_cancelled_and_its_ending_is_fenced(
    beside: ThreadPoolExecutor,
) -> None:
    row = _row(coroutines.hold)
    future = _delivered(row, beside)
    Task.objects.unguarded().filter(pk=row.pk).update(epoch=row.epoch + 1)
    process_runs.leases.renew()
    raised = future.result(20)
    assert _logged(row) == ["FENCED"]
    assert "does not own its task anymore" in coroutines.cancelled[0]
    assert isinstance(raised, Ignore)


def test_the_shutdown_of_a_worker_returns_the_task_without_charging_it(
    beside: ThreadPoolExecutor,
) -> None:
    row = _row(coroutines.hold)
    future = _delivered(row, beside)
    event_loop._loop.stop()
    raised = future.result(20)
    row.refresh_from_db()
    assert (row.status, row.failures, row.crashes, row.attempts) == ("PENDING", 0, 0, 1)
    assert (_logged(row), type(raised)) == (["RETRY"], CeleryRetry)
    assert coroutines.cancelled == ["The worker is shutting down."]
    # With autoretry_for=(Exception,) Celery would count the end of the worker as a failure.
    for task, args in ((coroutines.add, (1, 2)), (coroutines.autoretry, (0,))):
        with pytest.raises(CeleryRetry):
            deliver(later := _row(task, *args))
        later.refresh_from_db()
        assert (later.status, later.failures) == ("PENDING", 0)


def test_retries_are_those_of_plain_functions() -> None:
    with pytest.raises(CeleryRetry):
        deliver(row := _row(coroutines.celery_retry, 1))
    with pytest.raises(CeleryRetry):
        deliver(other := _row(coroutines.autoretry, 1))
    with pytest.raises(CeleryRetry):
        deliver(third := _row(coroutines.fail, "no"))
    for one in (row, other, third):
        one.refresh_from_db()
        assert (one.status, one.failures, _logged(one)) == ("PENDING", 1, ["RETRY"])
    assert third.last_error == "ValueError: no"


def test_queries_run_in_the_thread_of_the_run() -> None:
    assert run_task(coroutines.create_group, "staff").result == 1
    assert run_task(coroutines.threads_of_queries).result is True


def test_the_connection_of_a_query_is_closed_while_the_coroutine_waits() -> None:
    if connections.has_one_connection():
        pytest.skip("SQLite in memory never closes its connection")
    assert run_task(coroutines.wait_without_connection).result is True


def test_an_atomic_coroutine_commits_with_its_success_or_rolls_back() -> None:
    assert run_task(coroutines.create_and_fail, "kept", "").status == "SUCCESS"
    assert run_task(coroutines.create_and_fail, "left", "no", max_attempts=1).status == "FAILED"
    assert list(Group.objects.values_list("name", flat=True)) == ["kept"]


def test_an_overridden_call_may_be_async_and_tasks_may_call_each_other() -> None:
    assert run_task(coroutines.wrapped, 7).result == ["wrapped", [7, 1]]
    assert run_task(coroutines.call_others).result == [3, 7, False]


def test_coroutines_run_in_batches() -> None:
    row = run_task(coroutines.in_batch, 5)
    assert (row.status, row.result) == ("SUCCESS", 5)
