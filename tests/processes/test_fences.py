"""An ending is accepted only from the run that owns the task: both epoch and run id must match."""

import uuid

import pytest

from django_durable_tasks.models import Task
from django_durable_tasks.states.machine import EndingKind, Outcome
from django_durable_tasks.task_values import Run, RunLocation
from django_durable_tasks.tasks import attempts
from tests.processes.rows import accepted_twice, logged, row
from tests.project import bodies

pytestmark = pytest.mark.usefixtures("rows")
FAILED = Outcome(kind=EndingKind.FAILED, error="too late")
LOST = Outcome(kind=EndingKind.CRASHED, error="silent")


def _started(task: Task) -> Run:
    place = RunLocation(node=uuid.uuid4(), worker="here", lease=60)
    found = row(task)
    run = attempts.open_run(task.pk, found.epoch, place, f"{task.pk}.{found.epoch}.1", None)
    assert isinstance(run, Run), run
    return run


def _lost_and_started_again(task: Task) -> tuple[Run, Run]:
    first = _started(task)
    attempts.end_runs(Task.objects.filter(pk=task.pk), lambda _: LOST)
    Task.objects.unguarded().filter(pk=task.pk).update(status="QUEUED")
    return first, _started(task)


def test_the_ending_of_a_lost_run_is_refused_while_the_next_one_runs() -> None:
    task = bodies.add.schedule(1, 2)
    first, second = _lost_and_started_again(task)
    assert not attempts.succeed(first, "1", "here")
    assert attempts.fail(first, FAILED, "here") is None
    assert (row(task).status, row(task).run_id) == ("RUNNING", second.run_id)
    assert attempts.succeed(second, "2", "here")
    assert (row(task).result, logged(task), accepted_twice()) == (2, ["LOST", "SUCCESS"], [])


def test_the_ending_of_a_lost_run_is_refused_after_the_next_one_succeeded() -> None:
    task = bodies.add.schedule(1, 2)
    first, second = _lost_and_started_again(task)
    assert attempts.succeed(second, "2", "here")
    assert not attempts.succeed(first, "1", "here")
    assert attempts.fail(first, FAILED, "here") is None
    assert (row(task).result, logged(task)) == (2, ["LOST", "SUCCESS"])


def test_an_equal_epoch_is_not_enough_after_a_failover_that_lost_a_commit() -> None:
    task = bodies.add.schedule(1, 2)
    run = _started(task)
    Task.objects.unguarded().filter(pk=task.pk).update(run_id=uuid.uuid4())
    assert not attempts.succeed(run, "1", "here")
    assert attempts.fail(run, FAILED, "here") is None
    assert row(task).status == "RUNNING"


def test_an_ending_whose_reply_was_lost_is_read_back_and_not_written_twice() -> None:
    task = bodies.add.schedule(1, 2)
    run = _started(task)
    assert attempts.succeed(run, "3", "here")
    assert attempts.succeed(run, "3", "here")
    assert logged(task) == ["SUCCESS"]


def test_a_position_is_accepted_only_from_the_run_that_owns_the_task() -> None:
    task = bodies.add.schedule(1, 2)
    first, second = _lost_and_started_again(task)
    assert attempts.write_position(second, '{"b": {"result": 2}}', None)
    others = [first, second._replace(epoch=first.epoch), second._replace(run_id=first.run_id)]
    assert not any(attempts.write_position(run, '{"a": {"result": 1}}', "{}") for run in others)
    assert attempts.read_position(second) == (True, {"b": {"result": 2}})
    assert attempts.succeed(second, "3", "here")
    assert not attempts.write_position(second, "{}", None)
    assert row(task).position == {"b": {"result": 2}}
