"""A project's code that uses the package: what type checkers see of it, and calls that they must
refuse.

No program imports it. ``test_user_code`` runs the type checkers on it in the configuration of a
project. A wrong call that they accept is reported, because the comment on its line is then unused.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

from django.db import transaction

from django_durable_tasks import PerKey, Retry, Schedule, Workflow, durable_task, recurring, testing
from django_durable_tasks.celery.result import DurableResult
from django_durable_tasks.celery.task import DurableTask
from django_durable_tasks.decorators import DurableFunction
from django_durable_tasks.models import (
    DeadLetter,
    RecurringTask,
    Task,
    TaskExecutionLog,
    WorkflowRun,
)
from django_durable_tasks.workflows.builder import Step

# Task functions -----------------------------------------------------------------------------------


@durable_task
def remind(customer: int) -> None:
    """Have no options."""


@durable_task(
    queue="reports",
    priority=5,
    max_attempts=3,
    backoff=[10, timedelta(minutes=1)],
    timeout=timedelta(minutes=10),
    unique="{task}:{0}",
    unique_on_conflict="RAISE",
    give_up_on=(ValueError, LookupError),
    retry_for=OSError,
    max_concurrency=PerKey(2, "{day}"),
    rate_limit="10/m",
)
def build(day: str, copies: int = 1) -> dict[str, int]:
    """Have options, and a parameter with a default."""
    return {day: copies}


@durable_task(bind=True, backoff=lambda failures: 2.0 * failures, expires_in=3600)
def transfer(self: DurableTask, day: str) -> int:
    """Receive the task itself too."""
    assert_type(self.durable.attempt, int)
    assert_type(self.durable.idempotency_key, str)
    assert_type(self.durable.fence, int)
    assert_type(self.durable.task, Task)
    assert_type(self.durable.cancelled, bool)
    self.durable.progress(1, total=2, note="half")
    self.durable.check()
    if not day:
        raise Retry(after=timedelta(minutes=1), reason="not ready")
    try:
        return len(day)
    except OSError as error:
        raise self.retry(exc=error, countdown=10) from error


@durable_task(bind=True)
async def count(self: DurableTask) -> int:
    """Iterate in a coroutine and in a plain loop."""
    number = 0
    async for _ in self.durable.iterate(Task.objects.filter(name="x"), step="tasks"):
        number += 1
    for _ in self.durable.iterate([1, 2], step="numbers"):
        number += 1
    return number


@durable_task(autoretry_for=(OSError,), retry_backoff=True, max_retries=None, ignore_result=True)
def with_celerys_options(number: int) -> int:
    """Have options of Celery."""
    return number


@durable_task
def first_of_two(day: str) -> Schedule:
    """Create the next task."""
    return Schedule(build, (day,), run_at=datetime.now(UTC), options={"priority": 3})


@recurring("nightly", cron="30 2 * * *", timezone="Europe/London", catch_up_mode="RUN_ONE_NOW")
@durable_task
@recurring("hourly", interval=timedelta(hours=1), jitter="10%")
def report(day: str = "") -> str:
    """Have two schedules."""
    return day


class Audited(DurableTask):
    """A base class with a hook."""

    abstract = True

    def on_failure(
        self, exc: BaseException, task_id: str, args: Any, kwargs: Any, einfo: Any
    ) -> None:
        """Be called for the last failure."""


@durable_task(bind=True, base=Audited)
def audited(self: Audited, number: int) -> int:
    """Have a base class."""
    return number + self.durable.attempt


# Calls --------------------------------------------------------------------------------------------


def calls(at: datetime) -> str:
    """Use each calling form."""
    assert_type(build("2026-11-20"), dict[str, int])
    assert_type(transfer("2026-11-20"), int)
    assert_type(report(), str)
    assert_type(build.name, str)
    assert_type(build.delay("2026-11-20", copies=2), DurableResult[dict[str, int]])
    assert_type(remind.delay(1), DurableResult[None])
    assert_type(build.schedule("2026-11-20"), Task)
    assert_type(build.schedule("2026-11-20", run_at=at), Task)
    assert_type(
        build.schedule_many([("2026-11-19",), ("2026-11-20", 2)], run_at=at), list[uuid.UUID]
    )
    assert_type(build.schedule_stream((str(number),) for number in range(9)), int)
    assert_type(
        build.apply_async(("x",), {"copies": 2}, countdown=5), DurableResult[dict[str, int]]
    )
    assert_type(remind.delay_on_commit(1), DurableResult[None] | None)
    transaction.on_commit(lambda: remind.delay(1))
    build.s("2026-11-20").delay()
    return build.name


def calls_with_options(at: datetime) -> None:
    """Use the calling forms through ``.using()``, which can be kept."""
    later = build.using(run_at=at, priority=9, headers={"by": "admin"})
    assert_type(later.schedule("2026-11-20"), Task)
    assert_type(later.delay("2026-11-20").get(), dict[str, int])
    keyed = later.using(key="report", depends_on=[later.schedule("x")], join="ANY")
    assert_type(keyed.apply_async(("x",)), DurableResult[dict[str, int]])
    assert_type(transfer.using(timeout=60).schedule_many([("x",)]), list[uuid.UUID])
    options: dict[str, Any] = {"queue": "reports"}
    build.using(**options).delay("2026-11-20")


def results() -> int:
    """Wait, and read the task of a result."""
    result = transfer.delay("2026-11-20")
    assert_type(result.task, Task)
    assert_type(result.state, str)
    assert_type(result.ready(), bool)
    assert_type(result.traceback, str | None)
    assert_type(result.get(propagate=False), Any)
    any_result: DurableResult = result
    assert_type(any_result.get(), Any)
    return result.get(timeout=10)


async def coroutine(at: datetime) -> int:
    """Use the asynchronous forms."""
    assert_type(await build.adelay("2026-11-20"), DurableResult[dict[str, int]])
    assert_type(await build.aschedule("2026-11-20"), Task)
    assert_type(await build.aschedule("2026-11-20", run_at=at), Task)
    assert_type(await build.aschedule_many([("x",)], run_at=at), list[uuid.UUID])
    assert_type(await build.using(priority=1).aschedule("2026-11-20"), Task)
    return await (await transfer.adelay("2026-11-20")).aget(timeout=10)


def call_later(task: DurableFunction[[int], object], numbers: list[int]) -> list[Task]:
    """Receive a durable task."""
    return [task.schedule(number) for number in numbers]


def functions_that_take_tasks() -> None:
    """Pass a durable task to functions."""
    call_later(remind, [1, 2])
    call_later(audited, [1, 2])
    plain: Callable[[int], int] = with_celerys_options
    plain(1)


# Rows ---------------------------------------------------------------------------------------------


def operations(at: datetime) -> None:
    """Operate on tasks, schedules and dead letters."""
    assert_type(Task.objects.cancel("report-42", by="me"), int)
    assert_type(Task.objects.reschedule("report-42", at), int)
    failed = Task.objects.filter(status="FAILED")
    assert_type(failed.replay(by="me"), list[uuid.UUID])
    assert_type(failed.exclude(queue="mail").order_by("-created_at").first(), Task | None)
    assert_type(Task.objects.exclude(name="x").cancel(by="me"), int)
    assert_type(failed.reschedule(at), int)
    assert_type(list(failed.open()), list[Task])
    DeadLetter.objects.filter(task__name=build.name).replay(by="me")
    schedule = RecurringTask.objects.upsert(
        name="weekly", task=build, cron="0 6 * * 1", args=["x"], timezone="Europe/London"
    )
    assert_type(schedule, RecurringTask)
    assert [fire.nominal for fire in schedule.next_fire_times(3)]
    RecurringTask.objects.get(name="weekly").pause(reason="holidays", until=at)
    for found in RecurringTask.objects.filter(status="ACTIVE"):
        assert_type(found, RecurringTask)


def workflow(at: datetime) -> WorkflowRun:
    """Build a workflow and start it."""
    nightly = Workflow("nightly", deadline=timedelta(hours=1), on_failure=remind)
    first = nightly.add(build, "2026-11-20")
    assert_type(first, Step)
    second = nightly.add(transfer.using(priority=9), first.result["day"], after=[first])
    nightly.add(report, after={first: "MUST_SUCCEED", second: "MUST_FINISH"}, join="ANY")
    nightly.add("shop.tasks.by_name", after=second, hold="open it by hand")
    return nightly.start(run_at=at, key="nightly")


# Tests --------------------------------------------------------------------------------------------


def tests_of_a_project(at: datetime) -> None:
    """Use the testing kit."""
    with testing.capture_tasks() as tasks:
        build.delay("2026-11-20")
    assert_type(tasks[0], Task)
    assert_type(tasks[1:], list[Task])
    assert_type(tasks.of(build), list[Task])
    assert_type(testing.drain(now=at, scheduled=True), list[TaskExecutionLog])
    assert_type(testing.assert_scheduled(build, args=("2026-11-20",), queue="reports"), Task)
    testing.assert_nothing_scheduled(remind, tasks=tasks)
    assert_type(testing.fire("nightly", at=at), Task)
    assert_type(testing.fires_between("nightly", at, at), list[datetime])
    assert_type(testing.crash(build, "2026-11-20", at="after_body"), Task)
    with testing.travel(timedelta(hours=1)):
        assert testing.perform(build, "2026-11-20", attempt=2) == {"2026-11-20": 1}


# What is refused ----------------------------------------------------------------------------------


def wrong_arguments(at: datetime) -> None:
    """Call the forms with arguments that the function does not take."""
    build.delay(5)  # type: ignore[arg-type]
    build.delay()  # type: ignore[call-arg]
    build.delay("2026-11-20", copy=2)  # type: ignore[call-arg]
    remind.schedule(1, 2)  # type: ignore[call-overload]
    remind.schedule(1, run_at="tomorrow")  # type: ignore[call-overload]
    transfer.delay(None, "2026-11-20")  # type: ignore[call-arg, arg-type]
    report(5)  # type: ignore[arg-type]
    build.using(priority=9).delay(5)  # type: ignore[arg-type]
    build.using(run_at=at).schedule(5)  # type: ignore[call-overload]
    build.apply_async(5)  # type: ignore[arg-type]
    build.schedule_many(5)  # type: ignore[arg-type]
    call_later(build, [1])  # type: ignore[arg-type]
    Task.objects.filter(name="x").replay("me")  # type: ignore[call-arg]


async def wrong_arguments_of_coroutines() -> None:
    """Call the asynchronous forms likewise."""
    await build.adelay(5)  # type: ignore[arg-type]
    await build.aschedule(5)  # type: ignore[call-overload]


def wrong_options() -> None:
    """Give options that do not exist, or of another type."""
    durable_task(max_attemps=3)(calls)  # type: ignore[call-overload]
    durable_task(max_attempts="3")(calls)  # type: ignore[call-overload]
    durable_task(acks_late=True)(calls)  # type: ignore[call-overload]
    build.using(priorty=9)  # type: ignore[call-arg]
    build.using(priority="high")  # type: ignore[arg-type]
    recurring("x", cron=5)  # type: ignore[arg-type]
    recurring("x", crn="* * * * *")  # type: ignore[call-arg]
    Workflow("x").add(build, "x", join=1.5)  # type: ignore[arg-type]
    testing.drain(queue="x")  # type: ignore[call-arg]


def wrong_results() -> str:
    """Use a result as another type."""
    text: str = transfer("2026-11-20")  # type: ignore[assignment]
    text = transfer.delay("2026-11-20").get()  # type: ignore[assignment]
    remind.dely(1)  # type: ignore[attr-defined]
    return text
