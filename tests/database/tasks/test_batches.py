"""Batches in the database: many tasks start together, each with its own guard, and end together."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_durable_tasks.choices import LogStatus, Status
from django_durable_tasks.cluster import queues
from django_durable_tasks.limits import config
from django_durable_tasks.models import EndingEvent, Task, TaskExecutionLog
from django_durable_tasks.models.fields import DatabaseNow
from django_durable_tasks.states import batches as batch_transitions
from django_durable_tasks.states import claims
from django_durable_tasks.states.batches import Success
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.task_values import Run
from django_durable_tasks.tasks import attempts, batches, claim, operator_actions
from tests.database.transitions.transition_calls import CRASH, FAILURE, PLACE, question
from tests.factories import NOOP, QUEUE, a_task, many_tasks, take_batch
from tests.messages import claim_due

pytestmark = pytest.mark.django_db


def _success(run: Run, result: str | None = "null", wait: float = 0.0) -> Success:
    return Success(run=run, result=result, wait=wait)


def _statements(act: Callable[[], Any]) -> int:
    with CaptureQueriesContext(connection) as captured:
        act()
    return len(captured)


def _expected(run: Run) -> tuple[Any, ...]:
    return (run.task_id, Status.RUNNING, run.epoch, run.run_id, run.attempt, run.node)


# Starts -------------------------------------------------------------------------------------------


def test_a_batch_starts_each_task_with_its_own_epoch_and_run_id() -> None:
    rows = [*many_tasks(3, in_batch=True, args=[1]), a_task(in_batch=True, epoch=7, attempts=2)]
    runs = take_batch(10, PLACE)
    assert {run.task_id for run in runs} == {row.pk for row in rows}
    assert len({run.run_id for run in runs}) == 4
    assert sorted((run.attempt, run.epoch) for run in runs) == [(1, 1)] * 3 + [(3, 8)]
    columns = ("pk", "status", "epoch", "run_id", "attempts", "node")
    assert sorted(map(_expected, runs)) == sorted(Task.objects.values_list(*columns))
    assert {run.celery_id for run in runs} == {f"{run.task_id}.{run.epoch - 1}.0" for run in runs}


def test_a_batch_takes_the_most_urgent_tasks_first_and_no_more_than_asked() -> None:
    rows = {
        (priority, late): a_task(due=-late, priority=priority, in_batch=True)
        for priority in (0, 9)
        for late in (1, 9, 5)
    }
    order = [(9, 9), (9, 5), (9, 1), (0, 9)]
    assert [run.task_id for run in take_batch(4, PLACE)] == [rows[key].pk for key in order]
    assert Task.objects.pending().count() == 2


def test_a_batch_takes_only_due_tasks_of_its_name_and_queue() -> None:
    due = a_task(in_batch=True)
    a_task(in_batch=True, queue="other")
    a_task(in_batch=True, name="other")
    a_task(in_batch=True, due=60)
    a_task()
    assert [run.task_id for run in take_batch(10, PLACE)] == [due.pk]


def test_a_batch_of_a_paused_queue_starts_nothing() -> None:
    a_task(in_batch=True)
    queues.pause(QUEUE, by="bob", reason="")
    assert take_batch(10, PLACE) == []
    queues.resume(QUEUE, by="bob", reason="")
    assert len(take_batch(10, PLACE)) == 1


def test_expired_tasks_of_a_batch_become_expired() -> None:
    now = database_now()
    late = a_task(in_batch=True, expires_at=now - timedelta(seconds=1))
    row = a_task(in_batch=True, expires_at=now + timedelta(seconds=60))
    assert [run.task_id for run in take_batch(10, PLACE)] == [row.pk]
    late.refresh_from_db()
    assert (late.status, late.epoch, late.attempts) == (Status.EXPIRED, 1, 0)


def test_claims_leave_tasks_of_batches_and_batches_leave_claimed_tasks() -> None:
    row = a_task(in_batch=True)
    assert claim_due(QUEUE, database_now(), 10, PLACE.node) == []
    assert claim.claim_these([row.pk], database_now(), PLACE.node) == []
    alone = a_task()
    (message,) = claim_due(QUEUE, database_now(), 10, PLACE.node)
    assert [run.task_id for run in take_batch(10, PLACE)] == [row.pk]
    assert message.task_id == alone.pk


def test_an_old_message_does_not_start_a_task_that_a_batch_has_started() -> None:
    row = a_task(Status.QUEUED, in_batch=True)
    claim.return_unknown_task(row.pk, row.epoch)
    Task.objects.unguarded().filter(pk=row.pk).update(due_at=DatabaseNow())
    (run,) = take_batch(10, PLACE)
    refused = attempts.open_run(row.pk, row.epoch, PLACE, "", None)
    assert refused is attempts.Refusal.STALE
    assert Task.objects.get(pk=row.pk).run_id == run.run_id


def test_runs_whose_start_had_no_reply_are_read_back() -> None:
    many_tasks(3, in_batch=True)
    run_ids = batches.run_ids_of(os.urandom(batches.TOKEN_BYTES), 2)
    started = batches.take(QUEUE, NOOP, run_ids, PLACE)
    found = batches.taken(run_ids, PLACE)
    assert sorted(map(_expected, found)) == sorted(map(_expected, started))
    assert len(take_batch(10, PLACE)) == 1


def test_a_batch_costs_the_same_statements_for_one_task_and_for_fifty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = []
    monkeypatch.setattr(config, "FRESH", float("inf"))  # the limits are read once a second
    take_batch(1, PLACE)
    for number in (1, 50):
        many_tasks(number, in_batch=True)
        counts.append([_statements(lambda: take_batch(50, PLACE))])
        runs = _runs()
        counts[-1].append(_statements(lambda: batch_transitions.undo_starts(runs)))  # noqa: B023
        runs = take_batch(50, PLACE)
        assert len(runs) == number
        successes = [_success(run) for run in runs]
        counts[-1].append(_statements(lambda: batches.succeed(successes, "w")))  # noqa: B023
    assert counts[0] == counts[1]
    if connection.vendor == "postgresql":
        assert (counts[0][0], counts[0][2]) == (1, 1)


def _runs() -> list[Run]:
    return claims.started_runs(Task.objects.running())


# Endings ------------------------------------------------------------------------------------------


def test_successes_are_recorded_together_with_result_and_log_entry() -> None:
    many_tasks(2, in_batch=True)
    first, second = take_batch(10, PLACE)
    accepted = batches.succeed([_success(first, "[1]", 2.0), _success(second, None)], "w1")
    assert accepted == {first.run_id, second.run_id}
    row = Task.objects.get(pk=first.task_id)
    assert (row.status, row.epoch, row.result) == (Status.SUCCESS, first.epoch + 1, [1])
    assert row.started_at == first.started_at + timedelta(seconds=2)
    assert (row.lease_until, row.due_at) == (None, None)
    assert Task.objects.get(pk=second.task_id).result is None
    log = TaskExecutionLog.objects.get(task_id=first.task_id)
    assert (log.status, log.attempt_number, log.run_id) == (LogStatus.SUCCESS, 1, first.run_id)
    assert (log.worker, log.celery_id, log.node) == ("w1", first.celery_id, PLACE.node)
    assert log.started_at == row.started_at


def test_a_success_in_a_graph_leaves_its_ending_event() -> None:
    a_task(in_batch=True, has_dependents=True)
    a_task(in_batch=True)
    runs = take_batch(10, PLACE)
    batches.succeed([_success(run) for run in runs], "w")
    event = EndingEvent.objects.get()
    assert (event.status, event.resolved) == (Status.SUCCESS, False)


@pytest.mark.parametrize("changed", ["epoch", "run_id", "lost"])
def test_a_fenced_success_changes_nothing_and_the_others_are_recorded(changed: str) -> None:
    many_tasks(2, in_batch=True)
    first, second = take_batch(10, PLACE)
    if changed == "epoch":
        fenced = first._replace(epoch=first.epoch + 1)
    elif changed == "run_id":
        fenced = first._replace(run_id=uuid.uuid4())
    else:
        fenced = first
        attempts.end_runs(Task.objects.filter(pk=first.task_id), lambda _: CRASH)
    before = Task.objects.filter(pk=first.task_id).values().get()
    accepted = batches.succeed([_success(fenced), _success(second)], "w")
    assert accepted == {second.run_id}
    assert Task.objects.filter(pk=first.task_id).values().get() == before
    assert not TaskExecutionLog.objects.filter(
        task_id=first.task_id, status=LogStatus.SUCCESS
    ).exists()


def test_a_success_whose_reply_was_lost_is_found_in_the_log() -> None:
    many_tasks(2, in_batch=True)
    successes = [_success(run) for run in take_batch(10, PLACE)]
    accepted = batches.succeed(successes, "w")
    assert batches.succeed(successes, "w") == accepted
    assert TaskExecutionLog.objects.count() == 2


def test_a_failed_task_of_a_batch_is_retried_in_a_batch() -> None:
    a_task(in_batch=True)
    (run,) = take_batch(10, PLACE)
    attempts.fail(run, FAILURE, "w")
    row = Task.objects.get(pk=run.task_id)
    assert (row.status, row.failures, row.in_batch) == (Status.PENDING, 1, True)


# Not called ---------------------------------------------------------------------------------------


def test_tasks_that_were_not_called_return_without_a_counted_failure() -> None:
    rows = many_tasks(2, in_batch=True)
    runs = take_batch(10, PLACE)
    assert batches.return_uncalled(runs, "w") == 2
    for before in rows:
        row = Task.objects.get(pk=before.pk)
        assert (row.status, row.attempts, row.epoch) == (Status.PENDING, 1, before.epoch + 2)
        assert (row.failures, row.crashes) == (0, 0)
        assert (row.due_at, row.node, row.lease_until) == (before.due_at, None, None)
    assert len(take_batch(10, PLACE)) == 2
    assert batches.return_uncalled(runs, "w") == 0
    assert batches.succeed([_success(run) for run in runs], "w") == set()
    assert not TaskExecutionLog.objects.exists()


def test_a_cancelled_task_that_was_not_called_does_not_return() -> None:
    many_tasks(2, in_batch=True)
    first, second = runs = take_batch(10, PLACE)
    operator_actions.cancel(Task.objects.filter(pk=first.task_id), reason="no")
    assert batches.return_uncalled(runs, "w") == 1
    assert Task.objects.get(pk=first.task_id).status == Status.CANCELLED
    assert Task.objects.get(pk=second.task_id).status == Status.PENDING


def test_a_lost_task_of_a_batch_uses_no_crash_budget_and_runs_alone() -> None:
    a_task(in_batch=True, max_crashes=1)
    assert len(take_batch(10, PLACE)) == 1
    attempts.end_runs(question(Task.objects.get()), lambda _: CRASH)
    row = Task.objects.get()
    assert (row.status, row.crashes, row.in_batch) == (Status.PENDING, 0, False)
    assert TaskExecutionLog.objects.get().status == LogStatus.LOST
    assert take_batch(10, PLACE) == []
    (message,) = claim_due(QUEUE, database_now(), 10, PLACE.node)
    attempts.open_run(message.task_id, message.epoch, PLACE, "", None)
    attempts.end_runs(question(row), lambda _: CRASH)
    row.refresh_from_db()
    assert (row.status, row.crashes) == (Status.FAILED, 1)


def test_the_runs_of_a_dead_child_are_found_by_its_message() -> None:
    many_tasks(4, in_batch=True)
    message = os.urandom(batches.TOKEN_BYTES)
    mine = batches.take(QUEUE, NOOP, batches.run_ids_of(message, 2), PLACE)
    others = take_batch(10, PLACE)
    batches.succeed([_success(mine[0])], "w")
    assert batches.end_runs_of_dead_child(message, PLACE.node, "killed", "w") == 1
    assert Task.objects.get(pk=mine[1].task_id).status == Status.PENDING
    assert _statuses(others) == {Status.RUNNING}


def _statuses(runs: Sequence[Run]) -> set[str]:
    ids = [run.task_id for run in runs]
    return set(Task.objects.filter(pk__in=ids).values_list("status", flat=True))
