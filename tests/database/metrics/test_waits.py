"""The log contains since when an attempt was due, when it was claimed and when it started."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest

from django_durable_tasks.choices import Status
from django_durable_tasks.models import Task, TaskExecutionLog
from django_durable_tasks.states import claims, dependencies
from tests.database.metrics.counting import count_all, counted_durations
from tests.database.transitions.transition_calls import FAILURE, end, start, succeed
from tests.factories import a_task

pytestmark = pytest.mark.django_db(transaction=True)


def _claimed(task: Task) -> Task:
    claimed = claims.claim_these([task.pk], uuid.uuid4(), 15)
    assert [one.id for one in claimed] == [task.pk]
    found: Task = Task.objects.get(pk=task.pk)
    return found


def _started(task: Task) -> Task:
    assert start(task) is not None
    found: Task = Task.objects.get(pk=task.pk)
    return found


def _entry(task: Task) -> TaskExecutionLog:
    found: TaskExecutionLog = TaskExecutionLog.objects.filter(task=task).order_by("-pk")[0]
    return found


def test_a_claim_keeps_since_when_the_task_was_due() -> None:
    pending = a_task(due=-30)
    task = _claimed(pending)
    assert task.ready_at == pending.due_at
    assert task.queued_at is not None
    assert pending.due_at is not None
    assert task.queued_at - pending.due_at > timedelta(seconds=29)
    assert succeed(_started(task))
    entry = _entry(task)
    assert (entry.ready_at, entry.queued_at) == (task.ready_at, task.queued_at)
    assert entry.started_at is not None
    assert entry.queued_at is not None
    assert entry.queued_at <= entry.started_at <= entry.completed_at


def test_a_failed_attempt_keeps_its_times_and_the_next_has_its_own() -> None:
    task = _started(_claimed(a_task(due=-30)))
    end(task, outcome=FAILURE)
    first = _entry(task)
    assert first.status == "RETRY"
    assert first.ready_at == task.ready_at
    Task.objects.unguarded().filter(pk=task.pk).update(due_at=task.run_at)
    again = _started(_claimed(Task.objects.get(pk=task.pk)))
    assert succeed(again)
    assert _entry(task).queued_at == again.queued_at
    assert again.queued_at != first.queued_at


def test_a_task_that_was_published_without_a_claim_waits_for_the_broker_only() -> None:
    task = _started(a_task(Status.QUEUED))
    assert succeed(task)
    entry = _entry(task)
    assert (entry.ready_at, entry.queued_at) == (None, task.created_at)


def test_a_released_dependent_is_published_at_its_release_and_not_at_its_creation() -> None:
    task = a_task(Status.BLOCKED)
    Task.objects.unguarded().filter(pk=task.pk).update(created_at=task.created_at - timedelta(1))
    dependencies.release_and_publish([(task.pk, task.epoch)], 15)
    found = Task.objects.get(pk=task.pk)
    assert found.queued_at is not None
    assert found.queued_at >= task.created_at


def test_the_waits_are_counted_apart() -> None:
    assert succeed(_started(_claimed(a_task(due=-30))))
    assert succeed(_started(a_task(Status.QUEUED)))
    count_all()
    found = counted_durations("SUCCESS").durations
    assert {name: sum(one.numbers) for name, one in found.items()} == {
        "run": 2,
        "scheduler_wait": 2,
        "broker_wait": 2,
    }
    assert 29 < found["scheduler_wait"].total < 300
