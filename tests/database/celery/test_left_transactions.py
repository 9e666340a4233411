"""A function that leaves a transaction open harms no later task of its process."""

from __future__ import annotations

import logging
import random
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connection

from django_durable_tasks.choices import Status
from django_durable_tasks.models import Task
from tests.delivery import trace, trace_batches
from tests.factories import QUEUE, a_task
from tests.project import leaving
from tests.repetitions import repetitions

pytestmark = pytest.mark.django_db(transaction=True)


def _run(task: Any, *args: Any) -> Task:
    batch = task is leaving.leave_in_batch
    status = Status.PENDING if batch else Status.QUEUED
    row = a_task(status, name=task.name, args=list(args), in_batch=batch)
    if batch:
        trace_batches(task.name, QUEUE)
    else:
        trace(row)
    row.refresh_from_db()
    return row


def _innocents_succeed() -> None:
    for lane in leaving.LANES:
        Group.objects.all().delete()
        row = _run(lane, [], False)
        assert (row.status, row.attempts, row.last_error) == (Status.SUCCESS, 1, "")
        assert Group.objects.filter(name="kept").count() == 1
        Group.objects.all().delete()


@pytest.mark.parametrize("lane", leaving.LANES, ids=lambda task: task.name.rpartition(".")[2])
def test_a_function_that_leaves_a_transaction_open_harms_no_later_task(
    lane: Any, caplog: pytest.LogCaptureFixture
) -> None:
    draw = random.Random(lane.name)
    drawn = [[way] for way in ("atomic", "without savepoint", "interrupted", "begins")]
    drawn += [draw.choices(leaving.WAYS, k=draw.randint(2, 4)) for _ in range(repetitions(12))]
    for ways in drawn:
        raises = draw.random() < 0.3
        row = _run(lane, ways, raises)
        assert not connection.in_atomic_block
        # In the atomic lane the success is only recorded if the block was really left.
        assert row.status in (Status.SUCCESS, Status.PENDING), (ways, row.last_error)
        if lane is leaving.leave_atomically and row.status == Status.PENDING:
            assert not Group.objects.exists(), ways
        assert not Group.objects.filter(name="lost").exists() or "atomic" not in ways[:1]
        _innocents_succeed()


@pytest.mark.parametrize("lane", leaving.LANES, ids=lambda task: task.name.rpartition(".")[2])
def test_it_is_logged_with_the_name_of_the_task(
    lane: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "django_durable_tasks.runs"):
        row = _run(lane, ["atomic", "writes"], False)
    assert f"{lane.name} left a transaction open" in caplog.text
    if lane is leaving.leave_atomically:
        assert row.status == Status.PENDING
        assert row.last_error.startswith("TransactionManagementError: The function of the atomic")
        assert not Group.objects.exists()
    else:
        assert row.status == Status.SUCCESS


@pytest.mark.parametrize("lane", leaving.LANES[:2], ids=lambda task: task.name.rpartition(".")[2])
def test_a_raw_begin_is_noticed_and_rolled_back(
    lane: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "django_durable_tasks.runs"):
        row = _run(lane, ["begins", "writes"], False)
    assert row.status == Status.SUCCESS
    assert f"{lane.name} left a transaction open" in caplog.text
    assert not Group.objects.filter(name="lost").exists()
