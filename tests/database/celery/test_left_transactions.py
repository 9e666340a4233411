"""A function that leaves a transaction open harms no later task of its process."""

from __future__ import annotations

import logging
import random
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connection

from django_durable_tasks.choices import Status
from tests.delivery import run_task
from tests.project import leaving
from tests.repetitions import repetitions

pytestmark = pytest.mark.django_db(transaction=True)


def _name(task: Any) -> str:
    return str(task.name.rpartition(".")[2])


def _innocents_succeed() -> None:
    for lane in leaving.LANES:
        Group.objects.all().delete()
        row = run_task(lane, [], False)
        assert (row.status, row.attempts, row.last_error) == (Status.SUCCESS, 1, "")
        assert Group.objects.filter(name="kept").count() == 1
        Group.objects.all().delete()


@pytest.mark.parametrize("lane", leaving.LANES, ids=_name)
def test_a_function_that_leaves_a_transaction_open_harms_no_later_task(lane: Any) -> None:
    draw = random.Random(lane.name)
    drawn = [[way] for way in ("atomic", "without savepoint", "interrupted", "begins")]
    drawn += [draw.choices(leaving.WAYS, k=draw.randint(2, 4)) for _ in range(repetitions(12))]
    for ways in drawn:
        row = run_task(lane, ways, draw.random() < 0.3)
        assert not connection.in_atomic_block
        # In the atomic lane the success is only recorded if the block was really left.
        assert row.status in (Status.SUCCESS, Status.PENDING), (ways, row.last_error)
        if lane is leaving.leave_atomically and row.status == Status.PENDING:
            assert not Group.objects.exists(), ways
        assert not Group.objects.filter(name="lost").exists() or "atomic" not in ways[:1]
        _innocents_succeed()


@pytest.mark.parametrize(
    ("lane", "way"),
    [
        *((lane, "atomic") for lane in leaving.LANES),
        *((lane, "begins") for lane in leaving.LANES[:2]),
    ],
    ids=lambda value: value if isinstance(value, str) else _name(value),
)
def test_it_is_logged_with_the_name_of_the_task_and_rolled_back(
    lane: Any, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "django_durable_tasks.runs"):
        row = run_task(lane, [way, "writes"], False)
    assert f"{lane.name} left a transaction open" in caplog.text
    if lane is leaving.leave_atomically:
        assert row.status == Status.PENDING
        assert row.last_error.startswith("TransactionManagementError: The function of the atomic")
        assert not Group.objects.exists()
    else:
        assert row.status == Status.SUCCESS
        assert way == "atomic" or not Group.objects.filter(name="lost").exists()
