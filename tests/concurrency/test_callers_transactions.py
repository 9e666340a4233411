"""A caller's open transaction about a RUNNING task blocks neither its heartbeat nor its ending."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from django_durable_tasks import Workflow
from django_durable_tasks.choices import Status
from django_durable_tasks.cluster.nodes import HeartbeatMonitor
from django_durable_tasks.dependencies import edit
from django_durable_tasks.dependencies.rules import edges_to
from django_durable_tasks.exceptions import TransitionRefused
from django_durable_tasks.models import Task, TaskDependency, TaskRequest, WorkflowRun
from django_durable_tasks.scheduler.jobs import apply_requests
from django_durable_tasks.task_values import Run
from django_durable_tasks.tasks import attempts, operator_actions, requests
from django_durable_tasks.workflows import operations
from tests.concurrency.racing import no_errors, on_another_connection, race
from tests.database.dependencies.worker_and_leader import (
    HOPELESS,
    begin,
    recount,
    resolve_all,
    statuses,
)
from tests.database.transitions.transition_calls import FAILURE, question
from tests.factories import QUEUE, a_run, a_task
from tests.project.tasks import noop, unique_latest

# SQLite has one writer at a time: a transaction that has written blocks all others (docs: limits).
pytestmark = [pytest.mark.postgresql, pytest.mark.mariadb]
KEY = "nightly"
UNIQUE = "tests.project.tasks.unique_latest:a"


def _running(**fields: Any) -> Task:
    return a_task(Status.RUNNING, **fields)


def _beat(run: Run) -> bool:
    """Renew the lease of a run and return whether its cancellation is requested."""
    asked = attempts.heartbeat([(run.task_id, run.epoch, run.run_id, 60.0)])
    return asked[run.run_id]


def _depends_on(row: Task) -> Any:
    return noop.using(queue=QUEUE, depends_on=[row, a_task()]).schedule()


def _depends_on_under_a_key(row: Task) -> Any:
    noop.using(queue=QUEUE, key=f"of-{row.pk}").schedule()  # after a deleted key InnoDB locks more
    return noop.using(queue=QUEUE, key=f"of-{row.pk}", depends_on=[row]).schedule()


def _workflow(row: Task) -> Any:
    flow = Workflow("follow-up")
    flow.add(noop, after=[row])
    return flow.start()


def _link(row: Task) -> Any:
    return edit.link(a_task(due=3600).pk, edges_to([row]))


def _refused_link(row: Task) -> None:
    with pytest.raises(TransitionRefused):
        edit.link(row.pk, edges_to([a_task()]))


def _refused_hold(row: Task) -> None:
    with pytest.raises(TransitionRefused):
        operations.hold(row, by="ann")


def _refused_completion(row: Task) -> None:
    waits = a_task(Status.PENDING)
    with pytest.raises(TransitionRefused, match="outside of a transaction"):
        operator_actions.force_complete(question(row, waits), by="ann")
    with pytest.raises(TransitionRefused, match="outside of a transaction"):
        operations.force_complete(question(row, waits), by="ann")
    assert statuses(waits) == ["PENDING"]


def _force_run(row: Task) -> None:
    with pytest.raises(TransitionRefused):
        operations.force_run(question(row), by="ann")


def _replay(row: Task) -> None:
    assert operator_actions.replay(question(row), by="ann") == []


def _replay_above(row: Task) -> None:
    """Replay a failed upstream on which this running task depends."""
    above = a_task("FAILED", has_dependents=True)
    TaskDependency.objects.unguarded().create(
        task=row,
        depends_on=above,
        dependency_type="MUST_FINISH",
        resolved_at=timezone.now(),
        outcome="FAILED",
        met=True,
    )
    operator_actions.replay(question(above), by="ann")


def _same_key(row: Task) -> Any:
    return noop.using(queue=QUEUE, key=KEY).schedule()


def _replace(row: Task) -> Any:
    return unique_latest.using(queue=QUEUE).schedule("a")


def _cancel(row: Task) -> Any:
    assert Task.objects.cancel(KEY) == 1


def _cancel_branch(row: Task) -> Any:
    assert operations.cancel_branch(row, by="ann").stop_requested == (row.pk,)


def _reschedule(row: Task) -> Any:
    assert Task.objects.reschedule(KEY, timezone.now()) == 0


WISHES = [
    _depends_on,
    _depends_on_under_a_key,
    _workflow,
    _link,
    _refused_link,
    _refused_hold,
    _refused_completion,
    _force_run,
    _replay,
    _replay_above,
    _same_key,
    _replace,
    _cancel,
    _cancel_branch,
    _reschedule,
]


def _name_for(wish: Any) -> dict[str, Any]:
    if wish is _replace:
        return {"name": "tests.project.tasks.unique_latest", "unique_key": UNIQUE}
    return {"key": KEY}


@pytest.mark.parametrize("wish", WISHES)
@pytest.mark.parametrize("fails", [False, True], ids=["succeeds", "fails"])
def test_no_open_transaction_of_a_caller_blocks_a_heartbeat_or_an_ending(
    wish: Any, fails: bool
) -> None:
    run = a_run(_running(**_name_for(wish)))
    with transaction.atomic():
        wish(Task.objects.get(pk=run.task_id))
        assert on_another_connection(lambda: _beat(run)) is False
        if fails:
            assert on_another_connection(lambda: attempts.fail(run, HOPELESS, "w")) is not None
        else:
            assert on_another_connection(lambda: attempts.succeed(run, None, "w"))
    resolve_all()
    assert recount() == []
    assert statuses(run.task_id) == ["FAILED" if fails else "SUCCESS"]


def _dependent(upstream: uuid.UUID) -> Task:
    found: Task = noop.using(queue=QUEUE, depends_on=[upstream]).schedule()
    return found


def test_a_dependent_is_released_although_its_upstream_ended_during_the_transaction_that_created_it() -> (
    None
):
    run = begin(a_task())
    with transaction.atomic():
        below = _dependent(run.task_id)
        assert on_another_connection(lambda: attempts.succeed(run, None, "w"))
        assert statuses(below) == ["BLOCKED"]
    resolve_all()
    assert statuses(below) in (["PENDING"], ["QUEUED"])
    assert recount() == []


def test_a_dependent_is_released_when_its_upstream_ends_after_the_transaction() -> None:
    run = begin(a_task())
    with transaction.atomic():
        below = _dependent(run.task_id)
    assert Task.objects.get(pk=run.task_id).has_dependents
    assert attempts.succeed(run, None, "w")
    resolve_all()
    assert statuses(below) in (["PENDING"], ["QUEUED"])
    assert recount() == []


def test_a_dependent_of_a_deleted_upstream_does_not_stay_blocked() -> None:
    run = begin(a_task())
    with transaction.atomic():
        below = _dependent(run.task_id)
        on_another_connection(
            lambda: (
                attempts.succeed(run, None, "w"),
                Task.objects.unguarded().filter(pk=run.task_id).delete(),
            )
        )
    resolve_all()
    assert statuses(below) == ["SKIPPED"]


def test_requests_of_a_rolled_back_transaction_are_discarded() -> None:
    row = _running(key=KEY)
    with transaction.atomic():
        _cancel(row)
        _dependent(row.pk)
        _same_key(row)
        transaction.set_rollback(True)
    row.refresh_from_db()
    assert not TaskRequest.objects.exists()
    assert (row.cancel_requested_at, row.has_dependents, row.open_key) == (None, False, KEY)
    assert Task.objects.count() == 1


def test_cancellation_of_a_running_task_is_requested_when_the_transaction_has_committed() -> None:
    run = a_run(_running(key=KEY))
    with transaction.atomic():
        Task.objects.cancel(KEY, by="ann")
        assert not on_another_connection(lambda: _beat(run))
    assert _beat(run)
    assert Task.objects.get(pk=run.task_id).reason == "CANCELLED by ann"


def test_a_cancel_applies_to_a_task_whose_run_failed_during_the_transaction() -> None:
    run = a_run(_running(key=KEY))
    with transaction.atomic():
        _cancel(Task.objects.get(pk=run.task_id))
        assert on_another_connection(lambda: attempts.fail(run, FAILURE, "w")) is not None
        assert on_another_connection(lambda: statuses(run.task_id)) == ["PENDING"]
    assert statuses(run.task_id) == ["CANCELLED"]


def test_a_cancel_does_not_change_a_task_that_ended_during_the_transaction() -> None:
    run = a_run(_running(key=KEY))
    with transaction.atomic():
        _cancel(Task.objects.get(pk=run.task_id))
        assert on_another_connection(lambda: attempts.succeed(run, None, "w"))
    assert statuses(run.task_id) == ["SUCCESS"]


def test_a_key_passes_to_the_new_task_when_the_transaction_has_committed() -> None:
    old = _running(key=KEY)
    with transaction.atomic():
        new = _same_key(old)
        again = noop.using(queue=QUEUE, key=KEY, priority=7).schedule()
        assert again.pk == new.pk
    old.refresh_from_db()
    new.refresh_from_db()
    assert (old.open_key, old.status, new.open_key, new.key, new.priority) == (
        None,
        "RUNNING",
        KEY,
        KEY,
        7,
    )
    assert Task.objects.count() == 2


def test_a_task_created_and_cancelled_by_its_key_in_one_transaction_is_cancelled_alone() -> None:
    old = _running(key=KEY)
    with transaction.atomic():
        new = _same_key(old)
        assert Task.objects.cancel(KEY) == 1
    assert statuses(old, new) == ["RUNNING", "CANCELLED"]
    old.refresh_from_db()
    assert old.cancel_requested_at is None


def test_two_transactions_that_replace_a_running_task_leave_one_waiting_task() -> None:
    for _ in range(8):
        Task.objects.unguarded().all().delete()
        old = _running(key=KEY)

        def schedule(number: int) -> uuid.UUID:
            with transaction.atomic():
                row: Task = noop.using(queue=QUEUE, key=KEY, priority=number).schedule()
            return row.pk

        made = no_errors(race([lambda number=number: schedule(number) for number in range(4)]))  # type: ignore[misc]
        requests.apply_left(10)
        (waiting,) = Task.objects.filter(status__in=(Status.PENDING, Status.QUEUED))
        assert waiting.open_key == KEY
        assert set(made) == {waiting.pk}
        old.refresh_from_db()
        assert (old.open_key, old.status) == (None, "RUNNING")


def test_a_key_that_became_free_meanwhile_belongs_to_the_last_call() -> None:
    run = a_run(_running(key=KEY))
    with transaction.atomic():
        first = _same_key(Task.objects.get(pk=run.task_id))
        assert on_another_connection(lambda: attempts.succeed(run, None, "w"))
        second = on_another_connection(lambda: _same_key(first))
    assert statuses(run.task_id, first, second) == ["SUCCESS", "CANCELLED", statuses(second)[0]]
    assert [row.pk for row in Task.objects.filter(open_key=KEY)] == [second.pk]


@pytest.mark.parametrize("call", [_same_key, _replace])
def test_a_call_committed_after_a_later_one_has_started_is_not_replaced_by_it(
    call: Any,
) -> None:
    old, marker = _running(**_name_for(call)), "open_unique_key" if call is _replace else "open_key"
    with transaction.atomic():
        first = call(old)
        run = on_another_connection(lambda: begin(call(old)))
    assert statuses(old, run.task_id) == ["RUNNING", "RUNNING"]
    assert statuses(first)[0] in ("PENDING", "QUEUED")
    assert [row.pk for row in Task.objects.exclude(**{marker: None})] == [first.pk]
    assert _beat(run) is (call is _replace)


def test_a_key_whose_next_owner_was_cancelled_in_the_transaction_passes_to_the_next_call() -> None:
    old = _running(key=KEY)
    with transaction.atomic():
        first = _same_key(old)
        assert Task.objects.cancel(KEY) == 1
        second = _same_key(old)
    assert statuses(old, first) == ["RUNNING", "CANCELLED"]
    assert [row.pk for row in Task.objects.filter(open_key=KEY)] == [second.pk]
    assert not TaskRequest.objects.exists()


def test_a_workflow_waits_for_a_running_task_outside_of_it() -> None:
    run = begin(a_task())
    with transaction.atomic():
        _workflow(Task.objects.get(pk=run.task_id))
        assert on_another_connection(lambda: attempts.succeed(run, None, "w"))
    resolve_all()
    (step,) = Task.objects.filter(workflow=WorkflowRun.objects.get())
    assert step.status in ("PENDING", "QUEUED")
    assert recount() == []


def test_requests_of_a_process_that_died_after_its_commit_are_applied_by_the_leader() -> None:
    for _ in range(3):
        left, stopped, old = begin(a_task()), _running(key="stop"), _running(key=KEY)
        with transaction.atomic():
            below = _dependent(left.task_id)
            Task.objects.cancel("stop")
            new = _same_key(old)
            connection.run_on_commit.clear()
        assert TaskRequest.objects.count() == 3
        assert apply_requests(timezone.now(), HeartbeatMonitor()) == 3
        assert not TaskRequest.objects.exists()
        assert attempts.succeed(left, None, "w")
        resolve_all()
        assert statuses(below)[0] in ("PENDING", "QUEUED")
        stopped.refresh_from_db()
        new.refresh_from_db()
        assert (stopped.cancel_requested_at is not None, new.open_key) == (True, KEY)
        Task.objects.unguarded().all().delete()


def test_a_request_for_a_locked_task_waits_until_it_is_unlocked() -> None:
    row = _running(key=KEY)
    with transaction.atomic():
        Task.objects.cancel(KEY)
        connection.run_on_commit.clear()
    with transaction.atomic():
        Task.objects.select_for_update().get(pk=row.pk)
        assert on_another_connection(lambda: requests.apply_left(10)) == 0
    assert requests.apply_left(10) == 1
    row.refresh_from_db()
    assert row.cancel_requested_at is not None


def test_a_request_that_cannot_be_applied_does_not_block_others() -> None:
    spoilt, row = _running(key="spoilt"), _running(key=KEY)
    with transaction.atomic():
        Task.objects.cancel("spoilt")
        Task.objects.cancel(KEY)
        connection.run_on_commit.clear()
    TaskRequest.objects.filter(task_id=spoilt.pk).update(reason="spoilt")

    def refuse(execute: Any, sql: str, params: Any, *rest: Any) -> Any:
        if sql.startswith("UPDATE") and "spoilt" in params:
            raise IntegrityError("a constraint of the project refuses this")
        return execute(sql, params, *rest)

    with connection.execute_wrapper(refuse):
        assert requests.apply_left(10) == 1
    row.refresh_from_db()
    assert row.cancel_requested_at is not None
    assert TaskRequest.objects.get().task_id == spoilt.pk
