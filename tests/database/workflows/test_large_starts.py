"""A large workflow is written in batches. None of its tasks can run before it is sealed, and no
crash leaves half of it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction

from django_durable_tasks import Workflow
from django_durable_tasks.choices import Status
from django_durable_tasks.dependencies import resolve
from django_durable_tasks.exceptions import InvalidDependency, TransitionRefused, UniqueConflict
from django_durable_tasks.limits.backpressure import heads
from django_durable_tasks.models import Task, TaskDependency, WorkflowRun
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.workflows import runs
from tests.database.dependencies.worker_and_leader import recount, resolve_all, statuses_of, succeed
from tests.database.workflows.dying_starter import BATCH, LARGE, layered
from tests.factories import a_task
from tests.project.tasks import noop
from tests.repetitions import drawn, repeats_less
from tests.runs import ROOT
from tests.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)

TASKS, ROOTS = 14, 5
MANY = 200  # more statements than the start has


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat a start of six tasks as large, and write four rows at a time."""
    monkeypatch.setattr(runs, "LARGE", LARGE)
    monkeypatch.setattr(runs, "BATCH", BATCH)


def _finish(after: float = 0.0) -> None:
    """Act as the leader, with a clock `after` seconds ahead, until nothing is left to do."""
    while runs.finish_starts(database_now() + timedelta(seconds=after), 3):
        pass


def _lives(name: str) -> bool:
    """Return whether the workflow of this name exists as a whole, False if nothing of it exists.
    Asserts one or the other.
    """
    whole = {run.name: run for run in WorkflowRun.objects.filter(name__startswith=name)}
    rows = Task.objects.filter(workflow__in=[run.pk for run in whole.values()])
    if not whole:
        return False
    assert {run.status for run in whole.values()} == {"RUNNING"}
    assert all(run.released and run.sealed_at for run in whole.values())
    assert sum(run.total for run in whole.values()) == rows.count() == TASKS
    assert rows.filter(status=Status.BLOCKED).count() == TASKS - ROOTS
    assert set(rows.exclude(status=Status.BLOCKED).values_list("status", flat=True)) <= {
        "PENDING",
        "QUEUED",
    }
    assert not recount()
    return True


def _run_to_the_end(run: WorkflowRun) -> None:
    while open_rows := list(Task.objects.filter(status__in=["PENDING", "QUEUED"])):
        succeed(*open_rows)
        resolve_all()
    run.refresh_from_db()
    assert (run.status, run.succeeded) == ("SUCCESS", run.total)


def test_a_large_start_is_complete_and_runs_to_its_end() -> None:
    progress: list[tuple[int, int]] = []
    run = layered("whole").start(progress=lambda *numbers: progress.append(numbers))
    assert (run.status, run.released) == ("RUNNING", True)
    assert run.sealed_at is not None
    assert _lives("whole")
    rows = TASKS + TaskDependency.objects.count()
    assert progress[0] == (BATCH, rows)
    assert progress[-1] == (rows, rows)
    assert len(progress) > rows / BATCH
    _run_to_the_end(run)


def test_no_task_runs_before_the_workflow_is_sealed() -> None:
    looks = []

    def look(*_: int) -> None:
        looks.append(set(Task.objects.values_list("status", flat=True)))
        assert set(WorkflowRun.objects.values_list("status", "released", "sealed_at")) == {
            ("STARTING", False, None)
        }
        assert not heads()
        assert not resolve.resolve_endings(100).moved
        resolve.find_deleted(0, 100)
        resolve_all()
        _finish()

    layered("unseen").start(progress=look)
    assert looks
    assert all(statuses == {Status.BLOCKED} for statuses in looks)
    assert _lives("unseen")


def test_inside_a_transaction_the_start_belongs_to_it() -> None:
    with transaction.atomic():
        run = layered("inside").start()
        assert (run.status, run.released) == ("RUNNING", True)
        transaction.set_rollback(True)
    assert not _lives("inside")
    assert not Task.objects.exists()
    with transaction.atomic():
        layered("inside").start()
    assert _lives("inside")


def test_a_small_start_reports_no_progress() -> None:
    wf = Workflow("small")
    for _ in range(LARGE):
        wf.add(noop)
    progress: list[int] = []
    assert wf.start(progress=lambda *_: progress.append(1)).released
    assert not progress


def test_a_failed_start_leaves_nothing() -> None:
    def fail(done: int, rows: int) -> None:
        if done > TASKS:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        layered("failing").start(progress=fail)
    assert not WorkflowRun.objects.exists()
    assert not Task.objects.exists()
    assert not TaskDependency.objects.exists()


def test_a_start_with_a_taken_key_leaves_nothing() -> None:
    a_task(idempotency_key="taken")
    wf = layered("taken")
    wf.add(noop.using(idempotency_key="taken"))
    with pytest.raises(UniqueConflict, match="'taken'"):
        wf.start()
    assert not WorkflowRun.objects.exists()
    assert Task.objects.count() == 1


def test_dependencies_on_tasks_outside_are_written_by_the_seal() -> None:
    ended, running = a_task(Status.SUCCESS), a_task()
    wf = layered("tied")
    wf.add(noop, after=ended, step="at once")
    wf.add(noop, after=running, step="later")
    looks: list[int] = []

    def look(*_: int) -> None:
        looks.append(TaskDependency.objects.filter(depends_on__in=[ended.pk, running.pk]).count())
        resolve_all()

    run = wf.start(progress=look)
    assert looks
    assert not any(looks)
    resolve_all()
    assert statuses_of(run, "at once")[0] in ("PENDING", "QUEUED")
    assert statuses_of(run, "later") == ["BLOCKED"]
    succeed(running)
    resolve_all()
    assert statuses_of(run, "later")[0] in ("PENDING", "QUEUED")
    assert not recount()


def test_a_deleted_upstream_refuses_the_seal() -> None:
    outside = a_task()
    wf = layered("cut-off")
    wf.add(noop, after=outside)
    with pytest.raises(InvalidDependency, match="there is none"):
        wf.start(progress=lambda *_: Task.objects.unguarded().filter(pk=outside.pk).delete())
    assert not WorkflowRun.objects.exists()
    assert not Task.objects.exists()


# Keys and cancels ---------------------------------------------------------------------------------


def _let_time_pass(seconds: float) -> None:
    WorkflowRun.objects.unguarded().update(updated_at=database_now() - timedelta(seconds=seconds))


def test_another_start_with_the_key_returns_the_run_that_is_being_written() -> None:
    found: set[Any] = set()

    def start_again(*_: int) -> None:
        again = layered("keyed").start(key="nightly")
        assert again.status == "STARTING"
        found.add(again.pk)

    run = layered("keyed").start(key="nightly", progress=start_again)
    assert found == {run.pk}
    assert layered("keyed").start(key="nightly").pk == run.pk
    assert _lives("keyed")


def test_another_start_with_the_key_replaces_one_without_progress() -> None:
    second: list[WorkflowRun] = []

    def start_again(*_: int) -> None:
        _let_time_pass(runs.TAKEN_OVER_AFTER + 1)
        second.append(layered("second").start(key="nightly"))

    with pytest.raises(TransitionRefused, match="given up while it was written"):
        layered("first").start(key="nightly", progress=start_again)
    _finish()
    assert len(second) == 1
    assert not _lives("first")
    assert _lives("second")
    assert Task.objects.count() == TASKS
    assert layered("third").start(key="nightly").pk == second[0].pk


def test_a_start_that_is_cancelled_meanwhile_is_removed() -> None:
    def cancel(*_: int) -> None:
        WorkflowRun.objects.unguarded().filter(parent=None).update(
            cancel_requested_at=database_now()
        )

    with pytest.raises(TransitionRefused, match="it was cancelled"):
        layered("cancelled").start(progress=cancel)
    assert not Task.objects.exists()
    assert not WorkflowRun.objects.exists()


def test_a_cancel_between_seal_and_release_lets_nothing_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = layered("sealed").start()
    Task.objects.unguarded().filter(status__in=["PENDING", "QUEUED"]).update(
        status=Status.BLOCKED, due_at=None
    )
    WorkflowRun.objects.unguarded().update(released=False, cancel_requested_at=database_now())
    assert not runs.release_roots(run.pk, 100)
    assert set(Task.objects.values_list("status", flat=True)) == {Status.BLOCKED}


def test_an_active_start_is_not_removed() -> None:
    layered("alive").start(progress=lambda *_: _finish(after=runs.ABANDONED_AFTER - 10))
    assert _lives("alive")


# Crashes ------------------------------------------------------------------------------------------


@pytest.fixture
def starter() -> Iterator[Callable[[int, str, str], str]]:
    """Return a function that makes a starter die at a point and returns how it ended."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.database.workflows.dying_starter"],
        cwd=ROOT,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        ask, answers = program.stdin, program.stdout

        def dies(place: int, when: str, name: str) -> str:
            ask.write(f"{place} {when} {name}\n")
            ask.flush()
            return answers.readline().strip()

        yield dies
        ask.close()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_starter_killed_at_any_statement_leaves_nothing_or_everything(
    when: str, starter: Callable[[int, str, str], str]
) -> None:
    lived: list[bool] = []
    # A process that dies closes its connection, and each place waits until the server notices that.
    for place in drawn(range(MANY)):
        name = f"{when}-{place:03}"
        answer = starter(place, when, name)
        assert answer in ("killed", "lived")
        mine = WorkflowRun.objects.filter(name__startswith=name)
        unsealed = mine.filter(status="STARTING")
        assert (
            not Task.objects.filter(workflow__in=unsealed.values("pk"))
            .exclude(status=Status.BLOCKED)
            .exists()
        )

        def nothing_is_left(question: Any = unsealed) -> bool:
            # The server may still have the locks of the dead process; its rows are left until the server
            # notices.
            _finish(after=runs.ABANDONED_AFTER + 10)
            return not question.exists()

        until(nothing_is_left, within=20)
        lived.append(_lives(name))
        TaskDependency.objects.unguarded().all().delete()
        if answer == "lived":
            break
        assert lived[-1] == mine.exists()
        Task.objects.unguarded().all().delete()
        WorkflowRun.objects.unguarded().all().delete()
    assert answer == "lived"
    # Killed before the seal nothing exists, killed after it everything: there is one such point.
    assert lived == sorted(lived)
    assert drawn(range(MANY))[lived.index(True)] > 10
    assert repeats_less() or lived.index(True) < len(lived) - 1
