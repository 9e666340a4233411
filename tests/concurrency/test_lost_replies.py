"""A COMMIT whose reply was lost is durable: the ending is read back by its run id, accepted once
and counted once.
"""

from __future__ import annotations

import uuid

import pytest
from django.contrib.auth.models import Group
from django.db import OperationalError

from django_durable_tasks.celery import gate
from django_durable_tasks.celery.live_runs import LiveRun
from django_durable_tasks.choices import LogStatus, Status
from django_durable_tasks.models import Task
from django_durable_tasks.states import runs
from django_durable_tasks.states.claims import Unstarted
from django_durable_tasks.states.machine import EndingKind, Outcome
from django_durable_tasks.task_values import RunLocation
from django_durable_tasks.tasks.options import Schedule
from tests.concurrency.racing import one_lost_reply
from tests.database.transitions.transition_calls import FAILURE
from tests.delivery import deliver
from tests.factories import QUEUE, a_run, a_task
from tests.project import tasks

SUCCESS = Outcome(kind=EndingKind.SUCCEEDED, result="3")


def _live(row: Task) -> LiveRun:
    return LiveRun(a_run(row), lease=60.0, timeout=None, worker="worker@host", eager=True)


@pytest.mark.parametrize(
    "followups", [(), (Schedule(tasks.noop), Schedule(tasks.noop))], ids=["plain", "follow-ups"]
)
def test_a_success_whose_reply_was_lost_is_recorded_and_not_fenced(
    followups: tuple[Schedule, ...],
) -> None:
    live = _live(row := a_task(Status.RUNNING))
    with one_lost_reply() as lost:
        verdict = gate.close(live, SUCCESS, followups)
    assert lost
    assert verdict is not None
    assert verdict.status == Status.SUCCESS
    row.refresh_from_db()
    assert (row.status, row.result, row.epoch) == (Status.SUCCESS, 3, 3)
    assert [log.status for log in row.executions.all()] == [LogStatus.SUCCESS]
    assert Task.objects.count() == 1 + len(followups)


@pytest.mark.parametrize(
    ("outcome", "status", "log"),
    [
        (FAILURE, Status.PENDING, LogStatus.RETRY),
        (
            Outcome(kind=EndingKind.FAILED, retryable=False, error="no"),
            Status.FAILED,
            LogStatus.FAILED,
        ),
        (Outcome(kind=EndingKind.IGNORED), Status.CANCELLED, LogStatus.CANCELLED),
    ],
)
def test_another_ending_whose_reply_was_lost_is_counted_once(
    outcome: Outcome, status: Status, log: LogStatus
) -> None:
    live = _live(row := a_task(Status.RUNNING))
    with one_lost_reply() as lost:
        verdict = gate.close(live, outcome)
    assert lost
    assert verdict is not None
    assert verdict.status == status
    row.refresh_from_db()
    assert (row.status, row.epoch) == (status, 3)
    assert [found.status for found in row.executions.all()] == [log]
    assert row.dead_letters.count() == (status == Status.FAILED)


def test_an_atomic_body_whose_commit_reply_was_lost_is_executed_once() -> None:
    row = a_task(Status.QUEUED, name="tests.project.tasks.write_name", args=["once"])
    with one_lost_reply() as lost:
        assert deliver(row) == "once"
    assert lost
    row.refresh_from_db()
    assert row.status == Status.SUCCESS
    assert [log.status for log in row.executions.all()] == [LogStatus.SUCCESS]
    assert Group.objects.filter(name="once").count() == 1


def test_a_task_whose_creation_reply_was_lost_is_found_by_its_idempotency_key() -> None:
    call = tasks.add.using(queue=QUEUE, idempotency_key="i")
    with one_lost_reply() as lost, pytest.raises(OperationalError):
        call.schedule(1, 2)
    assert lost
    (row,) = Task.objects.all()
    assert call.schedule(1, 2).pk == row.pk


def test_a_start_whose_reply_was_lost_ends_by_its_lease_and_not_by_a_second_body() -> None:
    row, place = a_task(Status.QUEUED), RunLocation(node=uuid.uuid4(), worker="w", lease=60.0)
    with one_lost_reply(), pytest.raises(OperationalError):
        runs.start(row.pk, row.epoch, row.pk, place)
    row.refresh_from_db()
    assert (row.status, row.attempts) == (Status.RUNNING, 1)
    assert isinstance(runs.start(row.pk, 1, row.pk, place), Unstarted)
