"""An attempt starts with the epoch of its message and ends once: accepted, fenced or lost."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from django_durable_tasks import registry
from django_durable_tasks.choices import LogStatus, Status
from django_durable_tasks.cluster import queues
from django_durable_tasks.exceptions import InvalidArguments
from django_durable_tasks.models import Node, Task
from django_durable_tasks.registry import Registered
from django_durable_tasks.scheduler import reap_dead_nodes
from django_durable_tasks.scheduler.reap_dead_nodes import leases
from django_durable_tasks.states.machine import EndingKind, Outcome
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.task_values import Run
from django_durable_tasks.tasks import attempts, operator_actions
from django_durable_tasks.tasks.attempts import Refusal
from django_durable_tasks.tasks.options import Schedule, task_options
from django_durable_tasks.workflows import runs
from tests.database.transitions.transition_calls import (
    CRASH,
    FAILURE,
    HOPELESS,
    PLACE,
    end,
    heartbeat,
    question,
)
from tests.factories import QUEUE, a_node, a_run, a_task, a_tenant, many_tasks
from tests.project import tasks

pytestmark = pytest.mark.django_db
WORKER = "worker@host"


def _open(row: Task, epoch: int | None = None) -> Run | Refusal:
    return attempts.open_run(
        row.pk, row.epoch if epoch is None else epoch, PLACE, "celery-id", None
    )


def _now(row: Task) -> Task:
    found: Task = Task.objects.get(pk=row.pk)
    return found


# Starts -------------------------------------------------------------------------------------------


def test_a_run_contains_what_its_body_needs() -> None:
    tenant = a_tenant()
    given: dict[str, Any] = {"args": [1, "ü"], "kwargs": {"a": None}, "options": {"lease": 9.0}}
    given |= {"tenant_id": tenant.pk, "failures": 1, "crashes": 1, "max_attempts": 7}
    row = a_task(Status.QUEUED, attempts=2, idempotency_key="i", **given)
    run = _open(row)
    assert isinstance(run, Run)
    assert {name: getattr(run, name) for name in given} == given
    assert (run.epoch, run.attempt, run.idempotency_key) == (2, 3, "i")
    assert (run.node, run.celery_id, run.run_at) == (PLACE.node, "celery-id", row.run_at)
    assert run.started_at.tzinfo is not None


def test_the_id_is_the_idempotency_key_of_a_task_without_one() -> None:
    run = _open(row := a_task(Status.QUEUED))
    assert isinstance(run, Run)
    assert run.idempotency_key == str(row.pk)


def test_a_message_for_a_deleted_task_is_refused() -> None:
    assert attempts.open_run(uuid.uuid4(), 1, PLACE, "id", None) == Refusal.MISSING


@pytest.mark.parametrize("status", set(Status) - {Status.QUEUED})
def test_a_message_for_a_task_in_another_status_is_refused(status: Status) -> None:
    row = a_task(status)
    assert _open(row) == (Refusal.STALE if row.is_open else Refusal.TERMINAL)


def test_a_message_of_another_epoch_is_refused() -> None:
    row = a_task(Status.QUEUED, epoch=5)
    assert [_open(row, epoch) for epoch in (4, 6)] == [Refusal.STALE] * 2


def test_a_late_message_expires_its_task() -> None:
    row = a_task(Status.QUEUED, expires_at=database_now() - timedelta(seconds=1))
    assert _open(row) == Refusal.EXPIRED
    assert (_now(row).status, _now(row).attempts) == (Status.EXPIRED, 0)


# Heartbeats ---------------------------------------------------------------------------------------


def test_one_heartbeat_renews_every_run_and_returns_those_to_cancel() -> None:
    rows = [a_task(Status.RUNNING, due=1, epoch=epoch) for epoch in (2, 2, 7)]
    Task.objects.unguarded().filter(pk=rows[2].pk).update(cancel_requested_at=database_now())
    beats: list[Any] = [(row.pk, row.epoch, row.run_id, 30.0) for row in rows]
    gone = (uuid.uuid4(), 2, uuid.uuid4(), 30.0)
    owned = attempts.heartbeat([*beats, gone])
    assert owned == {rows[0].run_id: False, rows[1].run_id: False, rows[2].run_id: True}
    for row in rows:
        assert (_now(row).lease_until - database_now()).total_seconds() == pytest.approx(30, abs=20)  # type: ignore[operator]


def test_progress_is_written_for_runs_that_own_their_tasks() -> None:
    rows = [a_task(Status.RUNNING, epoch=epoch) for epoch in (2, 7)]
    progress: list[Any] = [(row.pk, row.epoch, row.run_id, '{"done": 1}') for row in rows]
    other = a_task(Status.RUNNING, progress={"done": 3})
    stale = (other.pk, other.epoch, uuid.uuid4(), '{"done": 9}')
    assert attempts.write_progress([*progress, stale]) == {row.run_id for row in rows}
    assert [_now(row).progress for row in (*rows, other)] == [{"done": 1}, {"done": 1}, {"done": 3}]


def test_a_heartbeat_without_progress_keeps_the_stored_progress() -> None:
    row = a_task(Status.RUNNING, progress={"done": 3})
    assert heartbeat(row) == {row.run_id: False}
    assert _now(row).progress == {"done": 3}


# Endings ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("result", [None, "3", '"text"', "[1, {}]", '{"a": null}', "false", "1.5"])
def test_a_success_stores_its_result_and_its_log_entry(result: str | None) -> None:
    row = a_task(Status.RUNNING, key="k", unique_key="u")
    run = a_run(row)
    assert attempts.succeed(run, result, WORKER)
    row = _now(row)
    assert row.status == Status.SUCCESS
    assert row.result == (None if result is None else json.loads(result))
    assert (row.open_key, row.open_unique_key, row.lease_until) == (None, None, None)
    log = row.executions.get()
    assert (log.status, log.attempt_number, log.worker) == (LogStatus.SUCCESS, 1, WORKER)
    assert (log.node, log.started_at) == (row.node, row.started_at)
    assert (log.run_id, log.celery_id) == (run.run_id, run.celery_id)
    assert log.duration is not None
    assert log.duration >= 0


def test_a_success_recorded_twice_is_accepted_and_written_once() -> None:
    run = a_run(row := a_task(Status.RUNNING))
    assert runs.succeed(run, None, WORKER, [Schedule(tasks.noop)])
    assert runs.succeed(run, None, WORKER, [Schedule(tasks.noop)])
    assert row.executions.count() == 1
    assert Task.objects.count() == 2


def test_a_failure_recorded_twice_is_counted_once() -> None:
    run = a_run(row := a_task(Status.RUNNING))
    first, second = attempts.fail(run, FAILURE, WORKER), attempts.fail(run, FAILURE, WORKER)
    assert first == second
    assert (_now(row).failures, row.executions.count()) == (1, 1)


def test_follow_ups_are_created_with_the_success() -> None:
    tenant = a_tenant()
    row = a_task(Status.RUNNING, tenant_id=tenant.pk)
    later = database_now() + timedelta(hours=1)
    followups = [
        Schedule(tasks.add, (1, 2), run_at=later),
        Schedule("tests.project.tasks.noop", options={"queue": QUEUE, "priority": 8}),
    ]
    assert runs.succeed(a_run(row), None, WORKER, followups)
    created = Task.objects.exclude(pk=row.pk).order_by("name")
    assert [(task.name, task.args, task.tenant_id, task.priority) for task in created] == [
        ("tests.project.tasks.add", [1, 2], tenant.pk, 0),
        ("tests.project.tasks.noop", [], tenant.pk, 8),
    ]
    assert created[0].run_at == later


def test_a_refused_follow_up_rolls_back_the_success_and_the_other_follow_ups() -> None:
    row = a_task(Status.RUNNING)
    with pytest.raises(InvalidArguments):
        runs.succeed(
            a_run(row), None, WORKER, [Schedule(tasks.noop), Schedule(tasks.add, (1, 2, 3))]
        )
    assert _now(row).status == Status.RUNNING
    assert Task.objects.count() == 1
    assert not row.executions.exists()


def test_a_fenced_success_creates_no_follow_up() -> None:
    row = a_task(Status.RUNNING)
    run = a_run(row)
    end(row, outcome=CRASH)
    assert not runs.succeed(run, None, WORKER, [Schedule(tasks.noop)])
    assert Task.objects.count() == 1
    attempts.fence(run, WORKER, "late")
    assert row.executions.filter(status=LogStatus.FENCED, run_id=run.run_id).count() == 1


def test_a_run_whose_task_was_force_completed_is_fenced() -> None:
    run = a_run(row := a_task(Status.RUNNING))
    operator_actions.force_complete(question(row), by="bob")
    assert not attempts.succeed(run, "1", WORKER)
    assert attempts.fail(run, FAILURE, WORKER) is None
    assert _now(row).result is None


def test_the_log_entry_of_a_failure_describes_the_error() -> None:
    row = a_task(Status.RUNNING)
    end(row, outcome=FAILURE)
    log = row.executions.get()
    assert (log.status, log.error_message) == (LogStatus.RETRY, FAILURE.error)
    assert log.traceback == FAILURE.traceback
    assert log.celery_id == f"{row.pk}.{row.epoch - 1}.{row.publish_count}"


@pytest.mark.parametrize("wait", ["nonsense", -1, float("nan"), 1e300, None])
def test_a_failing_backoff_callable_does_not_lose_the_outcome(wait: Any) -> None:
    known = registry.get("tests.project.tasks.noop")
    odd = Registered(
        task_options("odd", {"backoff": lambda _: wait}), known.signature, known.function
    )
    registry.add(odd)
    try:
        row = a_task(Status.RUNNING, name="odd")
        end(row, outcome=Outcome(kind=EndingKind.FAILED, error="Broken", error_type="Broken"))
    finally:
        del registry._tasks["odd"]
    assert _now(row).status == Status.PENDING


def test_a_retry_too_far_in_the_future_is_limited_to_the_longest_delay() -> None:
    row = a_task(Status.RUNNING)
    end(row, outcome=Outcome(kind=EndingKind.RETRY_ASKED, error="later", delay=3_000_000_000.0))
    assert _now(row).due_at < database_now() + timedelta(days=366)  # type: ignore[operator]


@pytest.mark.parametrize("asked", [True, False])
def test_a_cancel_request_decides_the_status_after_a_failure(asked: bool) -> None:
    row = a_task(Status.RUNNING, cancel_requested_at=database_now() if asked else None)
    end(row, outcome=HOPELESS)
    assert _now(row).status == (Status.CANCELLED if asked else Status.FAILED)


def test_a_batch_of_outcomes_is_recorded_individually() -> None:
    rows = [
        a_task(Status.RUNNING),
        a_task(Status.RUNNING, failures=4),
        a_task(Status.RUNNING, cancel_requested_at=database_now(), epoch=9),
    ]
    end(*rows, outcome=FAILURE)
    assert [_now(row).status for row in rows] == [Status.PENDING, Status.FAILED, Status.CANCELLED]
    assert [_now(row).epoch - row.epoch for row in rows] == [1, 1, 1]


# Lost runs ----------------------------------------------------------------------------------------


def test_a_run_whose_lease_has_expired_is_lost_and_runs_again_at_once() -> None:
    over, held = a_task(Status.RUNNING, due=-1), a_task(Status.RUNNING, due=5)
    expired = {over.pk: leases()[over.pk]}
    assert reap_dead_nodes.mark_lost(expired, reap_dead_nodes.LEASE_EXPIRED) == {over.pk}
    row = _now(over)
    assert (row.status, row.crashes, row.failures) == (Status.PENDING, 1, 0)
    assert row.due_at is not None
    assert row.due_at <= database_now()
    assert "lease" in row.last_error
    log = row.executions.get()
    assert (log.status, log.run_id) == (LogStatus.LOST, over.run_id)
    assert log.started_at == over.started_at
    assert _now(held).status == Status.RUNNING


def test_crashes_end_in_a_dead_letter_when_their_budget_is_spent() -> None:
    row = a_task(Status.QUEUED, max_crashes=2, max_attempts=1)
    for _ in range(2):
        Task.objects.unguarded().filter(pk=row.pk, status=Status.PENDING).update(
            status=Status.QUEUED
        )
        assert isinstance(_open(_now(row)), Run)
        assert reap_dead_nodes.mark_lost(leases(), reap_dead_nodes.LEASE_EXPIRED) == {row.pk}
    row = _now(row)
    assert (row.status, row.reason) == (Status.FAILED, "CRASHED")
    assert (row.crashes, row.failures, row.attempts) == (2, 0, 2)
    assert row.dead_letters.get().reason == "CRASHED"


def test_only_the_runs_that_still_have_these_leases_are_lost() -> None:
    lost, renewed, ended = many_tasks(3, Status.RUNNING)
    seen = leases()
    Task.objects.unguarded().filter(pk=renewed.pk).update(
        lease_until=database_now() + timedelta(seconds=90)
    )
    end(ended, outcome=FAILURE)
    assert reap_dead_nodes.mark_lost(seen, reap_dead_nodes.NODE_DEAD) == {lost.pk}
    assert reap_dead_nodes.mark_lost({}, reap_dead_nodes.NODE_DEAD) == set()
    assert _now(renewed).status == Status.RUNNING


def test_a_node_that_signed_off_counts_as_departed_after_some_seconds() -> None:
    left, just_left, dead, idle = (a_node(stopped=seconds) for seconds in (6, 1, 0, 6))
    Node.objects.filter(pk=dead.pk).update(declared_dead=True)
    for node in (left, just_left, dead):
        a_task(Status.RUNNING, node=node.pk)
    assert reap_dead_nodes.nodes_with_orphaned_runs(database_now()) == {
        left.pk: False,
        dead.pk: True,
    }
    assert idle.pk not in reap_dead_nodes.nodes_with_orphaned_runs(database_now())


def test_a_killed_child_process_is_lost_by_the_epoch_of_its_message_on_its_own_node() -> None:
    row = a_task(Status.RUNNING, node=PLACE.node)
    for epoch, node in ((row.epoch, PLACE.node), (row.epoch - 1, uuid.uuid4())):
        elsewhere = replace(PLACE, node=node)
        assert not attempts.end_run_of_dead_child(row.pk, epoch, elsewhere, CRASH, "id")
    assert attempts.end_run_of_dead_child(row.pk, row.epoch - 1, PLACE, CRASH, "id")
    assert _now(row).status == Status.PENDING


def test_a_child_process_that_died_before_the_start_counts_as_an_attempt_once() -> None:
    row = a_task(Status.QUEUED)
    ends = [attempts.end_run_of_dead_child(row.pk, row.epoch, PLACE, CRASH, "id") for _ in range(2)]
    assert ends == [True, False]
    found = _now(row)
    assert (found.status, found.attempts, found.crashes) == (Status.PENDING, 1, 1)
    assert [log.status for log in found.executions.all()] == ["LOST"]


def test_a_message_from_another_queue_starts_nothing_and_is_counted() -> None:
    row = a_task(Status.QUEUED, queue="cards")
    elsewhere = replace(PLACE, queues=("mails", "mail"))
    for _ in range(2):
        assert attempts.open_run(row.pk, row.epoch, elsewhere, "id", None) == Refusal.MISROUTED
    assert attempts.open_run(row.pk, row.epoch, elsewhere, "id", 3600) == Refusal.MISROUTED
    row.refresh_from_db()
    assert (row.status, row.attempts) == (Status.QUEUED, 0)
    (depth,) = [found for found in queues.depths(database_now()) if found.queue == "cards"]
    assert (depth.misrouted, depth.misrouted_from) == (3, "mails")
    assert depth.paused_at is None
    assert isinstance(
        attempts.open_run(row.pk, row.epoch, replace(PLACE, queues=("mails", "cards")), "id", None),
        Run,
    )


def test_a_message_of_an_unknown_queue_starts_its_task() -> None:
    row = a_task(Status.QUEUED, queue="cards")
    assert isinstance(attempts.open_run(row.pk, row.epoch, PLACE, "id", None), Run)
