"""The testing kit and Celery's eager mode run async functions in the transaction of the test."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from celery import chord
from django.contrib.auth.models import Group
from django.test import TestCase

from django_durable_tasks import Workflow
from django_durable_tasks.exceptions import RunOutOfTime
from django_durable_tasks.models import DeadLetter, RecurringTask, Task
from django_durable_tasks.testing import acrash, adrain, aperform, crash, drain, fire, perform
from tests.celery_settings import celery_configured
from tests.project import coroutines

pytestmark = pytest.mark.django_db


def test_drain_runs_a_coroutine_to_its_last_attempt() -> None:
    coroutines.create_group.schedule("a")
    coroutines.fail.schedule("no")
    attempts = drain(raise_errors=False)
    assert sorted(attempt.status for attempt in attempts) == ["FAILED", "RETRY", "SUCCESS"]
    assert Group.objects.filter(name="a").exists()
    assert DeadLetter.objects.count() == 1


def test_the_error_of_a_coroutine_fails_the_test() -> None:
    coroutines.fail.schedule("no")
    with pytest.raises(ValueError, match="no"):
        drain()


def test_perform_returns_what_the_coroutine_returns() -> None:
    assert perform(coroutines.wrapped, 7, attempt=2) == ["wrapped", [7, 2]]
    shown: Any = perform(coroutines.show)
    assert shown["function"] == shown["child"] == shown["sync"]
    with pytest.raises(RunOutOfTime):
        perform(coroutines.over_hard_limit)


def test_an_atomic_coroutine_is_rolled_back_by_a_crash_and_runs_again() -> None:
    crash(coroutines.create_and_fail, "a", "")
    assert not Group.objects.exists()
    drain()
    assert Group.objects.get().name == "a"


def test_the_forms_for_coroutines_run_coroutines() -> None:
    async def act() -> Any:
        await coroutines.create_group.aschedule("a")
        attempts = await adrain()
        row = await acrash(coroutines.add, 1, 2)
        value, _ = await asyncio.gather(aperform(coroutines.add, 3, 4), asyncio.to_thread(int))
        return [attempt.status for attempt in attempts], row.status, value

    assert async_to_sync(act)() == (["SUCCESS"], "PENDING", 7)
    assert Group.objects.get().name == "a"


def test_eager_calls_run_coroutines_also_those_of_a_coroutine() -> None:
    async def act() -> None:
        await coroutines.create_group.adelay("b")

    with (
        celery_configured(task_always_eager=True),
        TestCase.captureOnCommitCallbacks(execute=True),
    ):
        coroutines.create_group.delay("a")
        async_to_sync(act)()
        coroutines.call_by_delay.delay("c")
    assert sorted(Group.objects.values_list("name", flat=True)) == ["a", "b", "c"]
    assert set(Task.objects.values_list("status", flat=True)) == {"SUCCESS"}


def test_schedules_and_canvases_run_coroutines() -> None:
    RecurringTask.objects.upsert(name="sums", task=coroutines.add, args=[1, 2], interval=3_600)
    fired = fire("sums")
    add = coroutines.add
    Workflow.from_canvas(chord([add.s(3, 4), add.s(5, 6)], coroutines.total.s())).start()
    Workflow.from_canvas(add.starmap([(7, 8), (9, 10)])).start()
    drain(now=fired.run_at)
    assert set(Task.objects.values_list("status", flat=True)) == {"SUCCESS"}
    results = Task.objects.order_by("created_at").values_list("result", flat=True)
    assert sorted(map(str, results)) == ["11", "18", "3", "7", "[15, 19]"]
    assert add.apply((1, 2)).get() == 3
