"""The guards of batches. Another process changes a task at the one moment at which only the guard
prevents a second start, a second ending or a second message.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models import F

from django_durable_tasks.choices import Status
from django_durable_tasks.models import BatchMessage, Task, TaskExecutionLog
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.task_values import Run, RunLocation
from django_durable_tasks.tasks import attempts, batches, claim
from tests.concurrency.racing import (
    a_transaction_waits_for_a_lock,
    no_errors,
    on_another_connection,
    race,
)
from tests.database.limits.limited_tasks import limit
from tests.database.transitions.transition_calls import CRASH, FAILURE, PLACE
from tests.factories import NOOP, QUEUE, a_task, many_tasks, take_batch
from tests.messages import claim_due
from tests.waiting import until

ELSEWHERE = RunLocation(node=uuid.UUID(int=2), worker="other@host", lease=60.0)
PAIR = (QUEUE, NOOP)


def _success(run: Run) -> batches.Success:
    return batches.Success(run=run, result="1", wait=0.0)


def _start_again(run: Run) -> Run:
    """Return the task of the run to PENDING, and start it in a batch of another process."""
    assert batches.return_uncalled([run], "w") == 1
    (second,) = take_batch(1, ELSEWHERE)
    assert second.task_id == run.task_id
    return second


def _while_it_waits(change: Callable[[], Any], act: Callable[[], Any]) -> Any:
    """Change a row in a transaction that is committed when ``act`` waits for the row's lock."""
    changed = threading.Event()

    def change_slowly() -> None:
        with transaction.atomic():
            change()
            changed.set()
            until(a_transaction_waits_for_a_lock, within=30)

    def wait_for_it() -> Any:
        assert changed.wait(30)
        return act()

    return no_errors(race([change_slowly, wait_for_it]))[1]


@contextmanager
def _after_the_read(change: Callable[[], Any]) -> Iterator[None]:
    """Change a row by another connection between the first read of due tasks and their lock."""
    pending = [change]

    def changing(
        execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any
    ) -> Any:
        answer = execute(sql, params, many, context)
        if pending and "priority" in sql and sql.lstrip("( ").startswith("SELECT"):
            on_another_connection(pending.pop())
        return answer

    with connection.execute_wrapper(changing):
        yield
    assert not pending, "the due tasks were not read"


# The owner of a start that is undone --------------------------------------------------------------


def test_a_task_that_another_process_has_started_again_is_not_returned() -> None:
    many_tasks(2, in_batch=True)
    first, other = take_batch(10, PLACE)
    second = _start_again(first)
    assert batches.return_uncalled([first, other], "w") == 1
    row = Task.objects.get(pk=first.task_id)
    assert (row.status, row.run_id, row.node) == (Status.RUNNING, second.run_id, ELSEWHERE.node)
    assert Task.objects.get(pk=other.task_id).status == Status.PENDING


@pytest.mark.postgresql
def test_a_task_that_is_started_again_while_its_return_waits_is_not_returned() -> None:
    a_task(in_batch=True)
    (first,) = take_batch(10, PLACE)
    returned = _while_it_waits(
        lambda: _start_again(first), lambda: batches.return_uncalled([first], "w")
    )
    assert returned == 0
    row = Task.objects.get()
    assert (row.status, row.node) == (Status.RUNNING, ELSEWHERE.node)


# The owner of a success ---------------------------------------------------------------------------

# A run whose start has been undone or lost differs from the task's current run in both tokens. If the
# database lost a commit in a fail-over, they may differ in one of them, so each must be enough.
TOKENS: dict[str, dict[str, Any]] = {
    "epoch": {"epoch": F("epoch") + 1},
    "run_id": {"run_id": uuid.UUID(int=7)},
}


def _change(run: Run, token: str) -> None:
    Task.objects.unguarded().filter(pk=run.task_id).update(**TOKENS[token])


def _assert_refused(run: Run) -> None:
    row = Task.objects.get(pk=run.task_id)
    assert (row.status, row.result) == (Status.RUNNING, None)
    assert not TaskExecutionLog.objects.filter(task_id=run.task_id, status="SUCCESS").exists()


def test_a_success_is_refused_if_another_process_has_started_the_task_again() -> None:
    many_tasks(2, in_batch=True)
    first, other = take_batch(10, PLACE)
    second = _start_again(first)
    assert batches.succeed([_success(first), _success(other)], "w") == {other.run_id}
    _assert_refused(first)
    assert batches.succeed([_success(second)], "w") == {second.run_id}


@pytest.mark.parametrize("token", TOKENS)
def test_a_success_is_refused_if_one_of_epoch_and_run_id_differs(token: str) -> None:
    many_tasks(2, in_batch=True)
    first, other = take_batch(10, PLACE)
    _change(first, token)
    assert batches.succeed([_success(first), _success(other)], "w") == {other.run_id}
    _assert_refused(first)


@pytest.mark.postgresql
@pytest.mark.parametrize("token", TOKENS)
def test_a_success_is_refused_if_epoch_or_run_id_changes_while_it_waits(token: str) -> None:
    many_tasks(2, in_batch=True)
    first, other = take_batch(10, PLACE)
    accepted = _while_it_waits(
        lambda: _change(first, token),
        lambda: batches.succeed([_success(first), _success(other)], "w"),
    )
    assert accepted == {other.run_id}
    _assert_refused(first)


# The lane of a task -------------------------------------------------------------------------------


def _lose() -> None:
    """Start the task in a batch whose process dies. It is due again, alone."""
    (run,) = take_batch(10, ELSEWHERE)
    attempts.end_runs(Task.objects.filter(pk=run.task_id), lambda _: CRASH)
    Task.objects.unguarded().filter(pk=run.task_id).update(due_at=database_now())


def _fail() -> None:
    """Start the task in a batch where it fails. It is due again after its delay."""
    (run,) = take_batch(10, ELSEWHERE)
    attempts.fail(run, FAILURE, "w")


def test_a_task_that_runs_alone_after_a_crash_is_not_taken_into_a_batch() -> None:
    a_task(in_batch=True)
    _lose()
    assert take_batch(10, PLACE) == []
    (message,) = claim_due(QUEUE, database_now(), 10, PLACE.node)
    assert message.task_id == Task.objects.get().pk


@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has one writer")
@pytest.mark.parametrize("change", [_lose, _fail])
def test_a_task_that_changes_between_the_read_and_the_lock_of_a_limited_batch_is_not_taken(
    change: Callable[[], None],
) -> None:
    limit(f"task:{NOOP}", 5)
    task = a_task(in_batch=True)
    with _after_the_read(change):
        assert take_batch(10, PLACE) == []
    row = Task.objects.get(pk=task.pk)
    assert (row.status, row.attempts) == (Status.PENDING, 1)


def test_a_claim_by_id_leaves_a_task_that_runs_in_batches() -> None:
    task = a_task()
    Task.objects.unguarded().filter(pk=task.pk).update(in_batch=True)  # as an edit by its key does
    assert claim.claim_these([task.pk], database_now(), PLACE.node) == []
    (run,) = take_batch(10, PLACE)
    assert run.task_id == task.pk


# One message --------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [False, True])
def test_processes_that_reserve_a_batch_message_at_once_publish_one(known: bool) -> None:
    if known:
        batches.reserve_messages([PAIR])
        batches.message_received(*PAIR, number=1)
    for number in range(1 + known, 4 + known):
        reserved = no_errors(race([lambda: batches.reserve_messages([PAIR])] * 4))
        assert sorted(reserved) == [[], [], [], [(*PAIR, number, 1)]]
        assert batches.reserve_messages([PAIR]) == []
        batches.message_received(*PAIR, number=number)


@pytest.mark.postgresql
@pytest.mark.parametrize("known", [False, True])
def test_a_message_that_is_reserved_while_another_process_waits_is_published_once(
    known: bool,
) -> None:
    if known:
        batches.reserve_messages([PAIR])
        batches.message_received(*PAIR, number=1)
    reserved = list[Any]()
    second = _while_it_waits(
        lambda: reserved.append(batches.reserve_messages([PAIR])),
        lambda: batches.reserve_messages([PAIR]),
    )
    assert (reserved, second) == ([[(*PAIR, 1 + known, 1)]], [])
    assert BatchMessage.objects.get().publish_count == 1


@pytest.mark.postgresql
@pytest.mark.mariadb
def test_a_call_does_not_lock_the_record_of_an_outstanding_message() -> None:
    batches.reserve_messages([PAIR])
    with transaction.atomic():
        BatchMessage.objects.select_for_update().get()
        assert on_another_connection(lambda: batches.reserve_messages([PAIR])) == []
