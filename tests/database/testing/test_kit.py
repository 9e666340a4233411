"""The testing kit runs tasks in the transaction of a test, as a worker and a leader would, and
misuse of the transaction, nested blocks and wrong arguments do not break it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth.models import Group
from django.db import Error, IntegrityError, connection, transaction
from django.db.transaction import TransactionManagementError

from django_durable_tasks import Workflow, ports, testing
from django_durable_tasks.models import (
    DeadLetter,
    Limit,
    QueueControl,
    RecurringTask,
    Task,
    WorkflowRun,
)
from django_durable_tasks.store import clock
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.testing import (
    acrash,
    adrain,
    aperform,
    assert_nothing_scheduled,
    assert_scheduled,
    capture_tasks,
    crash,
    drain,
    fire,
    fires_between,
    perform,
    travel,
)
from tests.project import kit, tasks

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = ports.publish, ports.publish_batches
    yield
    assert (ports.publish, ports.publish_batches) == before
    assert clock.travelled == timedelta()
    assert testing._add_distance not in connection.execute_wrappers
    assert testing._capturing == []


def test_drain_runs_what_is_due_and_what_it_creates() -> None:
    task = kit.create_group.schedule("a")
    attempts = drain()
    assert [(one.task.pk, one.status) for one in attempts] == [(task.pk, "SUCCESS")]
    assert Group.objects.filter(name="a").exists()
    assert drain() == []


def test_a_delayed_task_runs_at_its_time_only_when_asked() -> None:
    kit.create_group.using(run_at=database_now() + HOUR).schedule("a")
    assert drain() == []
    assert drain(scheduled=database_now() + HOUR / 2) == []
    (attempt,) = drain(scheduled=True)
    assert attempt.status == "SUCCESS"


def test_now_moves_the_clock() -> None:
    kit.create_group.using(run_at=database_now() + HOUR).schedule("a")
    assert len(drain(now=database_now() + 2 * HOUR)) == 1


def test_retries_run_until_the_success() -> None:
    task = kit.third_time.schedule("a")
    assert [one.status for one in drain()] == ["RETRY", "RETRY", "SUCCESS"]
    task.refresh_from_db()
    assert (task.status, task.attempts) == ("SUCCESS", 3)


def test_without_retries_a_failed_task_waits() -> None:
    kit.third_time.schedule("a")
    assert [one.status for one in drain(retries=False)] == ["RETRY"]


def test_the_error_of_a_dead_letter_is_raised_or_not_and_it_can_be_replayed() -> None:
    task = kit.fails.schedule()
    with pytest.raises(kit.Broken, match="no"):
        drain()
    assert DeadLetter.objects.filter(task=task).exists()
    second = kit.fails.schedule()
    assert [one.status for one in drain(raise_errors=False)] == ["RETRY", "FAILED"]
    kit.fails_now["no"] = False
    try:
        DeadLetter.objects.filter(task=second).replay(by="anna")
        assert [one.status for one in drain()] == ["SUCCESS"]
    finally:
        kit.fails_now["no"] = True


def test_an_error_of_the_database_leaves_the_transaction_of_the_test_usable() -> None:
    kit.create_group.schedule("a")
    kit.create_twice.schedule("a")
    with pytest.raises(IntegrityError):
        drain()
    assert Group.objects.filter(name="a").count() == 1


def test_what_a_failed_function_wrote_is_kept_as_by_a_worker() -> None:
    kit.create_and_fail.schedule("a")
    drain(raise_errors=False, retries=False)
    assert Group.objects.filter(name="a").count() == 1


def test_callbacks_of_a_commit_are_called_after_each_function() -> None:
    kit.on_commit.schedule("a")
    drain()
    assert Group.objects.filter(name="committed a").exists()


def test_a_workflow_runs_to_its_end() -> None:
    workflow = Workflow("groups")
    first = workflow.add(kit.create_group, "a")
    workflow.add(kit.create_group, "b", after=[first])
    run = workflow.start()
    assert len(drain()) == 2
    run.refresh_from_db()
    assert run.status == "SUCCESS"
    assert WorkflowRun.objects.filter(status="RUNNING").count() == 0


def test_without_workflows_dependents_wait() -> None:
    workflow = Workflow("groups")
    first = workflow.add(kit.create_group, "a")
    workflow.add(kit.create_group, "b", after=[first])
    workflow.start()
    assert len(drain(workflows=False)) == 1
    assert len(drain()) == 1


def test_only_the_named_queues_run() -> None:
    kit.create_group.using(queue="one").schedule("a")
    kit.create_group.using(queue="two").schedule("b")
    assert [one.task.queue for one in drain(["two"])] == ["two"]


def test_batches_and_limited_tasks_run() -> None:
    tasks_of_batch = [kit.in_batch.schedule(number) for number in range(5)]
    Limit.objects.create(scope=f"task:{kit.create_group_once.name}", max_concurrency=1)
    kit.create_group_once.schedule("a")
    kit.create_group_once.schedule("b")
    assert len(drain()) == 7
    assert set(
        Task.objects.filter(pk__in=[t.pk for t in tasks_of_batch]).values_list("status")
    ) == {("SUCCESS",)}


def test_a_task_that_creates_itself_again_does_not_run_for_ever() -> None:
    kit.again.schedule()
    with pytest.raises(AssertionError, match="20 attempts"):
        drain(limit=20)


def test_a_schedule_fires_at_a_time_to_come() -> None:
    row = RecurringTask.objects.upsert(
        name="nightly", task=kit.create_group, args=["a"], cron="30 2 * * *", timezone="UTC"
    )
    at = datetime(2031, 5, 4, 2, 30, tzinfo=UTC)
    assert fires_between("nightly", at - HOUR, at + timedelta(days=1)) == [
        at,
        at + timedelta(days=1),
    ]
    task = fire(row, at=at)
    assert (task.fire_time, task.run_at) == (at, at)
    assert drain() == []
    assert len(drain(now=at)) == 1
    with pytest.raises(AssertionError, match="nightly"):
        fire("nightly", at=at + timedelta(minutes=7))


def test_drain_fires_schedules_that_are_due() -> None:
    RecurringTask.objects.upsert(
        name="nightly", task=kit.create_group, args=["a"], cron="30 2 * * *", timezone="UTC"
    )
    tomorrow = database_now() + timedelta(days=1)
    assert drain(now=tomorrow) == []
    assert len(drain(now=tomorrow, schedules=True)) == 1


def test_travel_moves_the_clock_of_the_engine_and_back() -> None:
    began = database_now()
    with travel(timedelta(days=30)):
        assert timedelta(days=29) < database_now() - began < timedelta(days=31)
        row = tasks.noop.schedule()
        assert row.run_at > began + timedelta(days=29)
        with travel(began):
            assert abs(database_now() - began) < HOUR
        assert database_now() - began > timedelta(days=29)
    assert database_now() - began < HOUR
    with pytest.raises(ValueError, match="time zone"), travel(datetime(2030, 1, 1)):
        pass


def test_perform_returns_the_result_and_raises_the_error_itself() -> None:
    assert perform(kit.shows, {"a": (1, 2)}, attempt=3, headers={"x-tenant": "acme"}) == {
        "value": {"a": [1, 2]},
        "attempt": 3,
        "retries": 2,
        "tenant": "acme",
    }
    with pytest.raises(kit.Broken):
        perform(kit.fails)


def test_a_crash_shows_what_is_done_twice() -> None:
    task = crash(kit.create_group, "a")
    assert task.status == "PENDING"
    with pytest.raises(IntegrityError):
        drain()
    task = crash(kit.create_group_once, "b")
    drain()
    task.refresh_from_db()
    assert (task.status, task.crashes) == ("SUCCESS", 1)
    crash(kit.create_atomically, "c")
    assert not Group.objects.filter(name="c").exists()
    drain()
    assert Group.objects.filter(name="c").exists()
    crash(kit.create_group, "d", at="before_body")
    drain()
    assert Group.objects.filter(name="d").exists()


def test_capture_and_checks_see_only_their_block() -> None:
    tasks.noop.schedule()
    at = database_now() + HOUR
    with capture_tasks() as captured:
        assert_nothing_scheduled()
        kit.shows.using(run_at=at, queue="q", key="k").schedule(value={"n": 1})
        found = assert_scheduled(kit.shows, args=[{"n": 1}], run_at=at, queue="q", key="k")
        assert_scheduled(kit.shows, kwargs={"value": lambda value: value["n"] == 1}, count=1)
        assert_nothing_scheduled(tasks.noop)
    assert [one.pk for one in captured] == [found.pk]
    assert_scheduled(tasks.noop)
    with pytest.raises(AssertionError, match=r"instead of \{'n': 2\}"):
        assert_scheduled(kit.shows, args=[{"n": 2}], tasks=captured)
    with pytest.raises(AssertionError, match="1 task was scheduled"):
        assert_nothing_scheduled(kit.shows)
    with pytest.raises(TypeError, match="colour"):
        assert_scheduled(kit.shows, colour="red")


@pytest.mark.django_db(transaction=True)
def test_drain_works_in_tests_that_commit() -> None:
    kit.on_commit.schedule("a")
    with transaction.atomic():
        kit.third_time.schedule("b")
    assert sorted(one.status for one in drain()) == ["RETRY", "RETRY", "SUCCESS", "SUCCESS"]
    assert Group.objects.filter(name="committed a").exists()


def test_a_task_scheduled_before_does_not_disable_captured_callbacks(
    django_capture_on_commit_callbacks: Any, settings: Any
) -> None:
    settings.CELERY_TASK_ALWAYS_EAGER = True
    kit.create_group.schedule("before")
    with django_capture_on_commit_callbacks(execute=True):
        kit.create_group.schedule("a")
        kit.create_group.schedule("b")
    assert set(Group.objects.values_list("name", flat=True)) == {"a", "b"}


@pytest.mark.django_db(transaction=True)
def test_the_asynchronous_forms_do_the_same() -> None:
    async def act() -> tuple[Any, Any, Any]:
        await sync_to_async(kit.create_group.schedule)("a")
        attempts = await adrain()
        crashed = await acrash(kit.create_group_once, "b")
        return attempts, crashed, await aperform(kit.create_group_once, "c")

    attempts, crashed, result = async_to_sync(act)()
    assert [one.status for one in attempts] == ["SUCCESS"]
    assert (crashed.status, result) == ("PENDING", None)


def _groups() -> list[str]:
    return list(Group.objects.order_by("name").values_list("name", flat=True))


@pytest.mark.parametrize("atomic", [False, True])
def test_steps_and_loops_work_in_the_transaction_of_a_test(atomic: bool) -> None:
    assert perform(kit.create_by_steps, ["a", "b", "c"], atomic=atomic) == "first"
    assert _groups() == ["a", "b", "c", "first"]
    assert Task.objects.get().progress == {"done": 3, "total": 3, "note": "names"}


@pytest.mark.parametrize("atomic", [False, True])
def test_a_worker_that_is_killed_after_a_step_or_a_batch_repeats_none_of_it(atomic: bool) -> None:
    task = crash(kit.create_by_steps, ["a", "b", "c"], atomic=atomic, at="after_step")
    assert (task.status, _groups()) == ("PENDING", ["first"])
    task = crash(task, at="after_step")
    assert _groups() == ["a", "b", "first"]
    (attempt,) = drain()
    assert (attempt.status, _groups()) == ("SUCCESS", ["a", "b", "c", "first"])


def test_a_function_without_a_step_cannot_be_killed_after_one() -> None:
    with pytest.raises(AssertionError, match="without a step"):
        crash(kit.create_group, "a", at="after_step")


def test_an_exit_of_a_function_is_a_failed_attempt_and_does_not_end_the_test() -> None:
    task = kit.exits.schedule()
    assert [one.status for one in drain(raise_errors=False)] == ["FAILED"]
    task.refresh_from_db()
    assert "SystemExit" in task.last_error
    kit.exits.schedule()
    with pytest.raises(SystemExit):
        drain()
    with pytest.raises(SystemExit):
        perform(kit.exits)


def test_an_error_of_raw_sql_leaves_the_transaction_of_the_test_usable() -> None:
    kit.reads_a_missing_table.schedule()
    with pytest.raises(Error, match="nowhere"):
        drain()
    assert Task.objects.get().status == "FAILED"


def test_a_block_that_a_function_leaves_open_is_rolled_back() -> None:
    kit.leaves_a_block_open.schedule()
    assert [one.status for one in drain()] == ["SUCCESS"]
    assert not Group.objects.exists()


def test_an_error_of_the_database_that_a_function_caught_is_not_hidden() -> None:
    kit.catches.schedule()
    with pytest.raises(TransactionManagementError, match="TransactionTestCase"):
        drain()


def test_an_error_of_a_robust_callback_does_not_fail_the_task() -> None:
    kit.robust_callback_fails.schedule()
    assert [one.status for one in drain()] == ["SUCCESS"]


def test_a_drain_ends_if_a_queue_is_paused() -> None:
    QueueControl.objects.pause("paused")
    kit.create_group.using(queue="paused").schedule("a")
    assert drain(scheduled=True, limit=3) == []
    QueueControl.objects.resume("paused")
    assert len(drain()) == 1


def test_a_crash_of_a_function_that_fails_does_not_leave_the_task_running() -> None:
    task = kit.create_and_fail.schedule("a")
    with pytest.raises(kit.Broken):
        crash(task)
    task.refresh_from_db()
    assert task.status == "PENDING"


def test_one_schedule_fires_and_no_other() -> None:
    for name, cron in {"nightly": "30 2 * * *", "hourly": "0 * * * *"}.items():
        RecurringTask.objects.upsert(
            name=name, task=kit.create_group, args=["a"], cron=cron, timezone="UTC"
        )
    task = fire("nightly", at=datetime(2031, 5, 4, 2, 30, tzinfo=UTC))
    assert list(Task.objects.all()) == [task]
    with pytest.raises(LookupError, match="Schedules: hourly, nightly"):
        fire("nightli")


def test_travel_by_nothing_contains_other_travels() -> None:
    with travel(timedelta()):
        clock.travelled = timedelta()  # as on a host that reads the clock twice at once
        with travel(HOUR):
            pass
        with travel(HOUR):
            pass


def test_captured_blocks_may_be_nested_and_end_one_by_one() -> None:
    with capture_tasks() as outer:
        with capture_tasks() as inner:
            kit.create_group.schedule("a")
        kit.fails.schedule()
        assert_scheduled(kit.fails)
    assert (len(outer), len(inner)) == (2, 1)
    tasks.echo.schedule(1)
    assert_scheduled(tasks.echo)  # no block is open any more


def test_a_captured_block_raises_the_error_itself() -> None:
    Group.objects.create(name="a")
    with pytest.raises(IntegrityError), transaction.atomic(), capture_tasks():
        Group.objects.create(name="a")


def test_wrong_arguments_are_refused_with_a_remedy() -> None:
    with pytest.raises(TypeError, match=r"list of names.*two"):
        drain("two")
    with pytest.raises(ValueError, match="assert_nothing_scheduled"):
        assert_scheduled(kit.fails, count=0)
    for act in (assert_scheduled, assert_nothing_scheduled, perform, crash):
        with pytest.raises(TypeError, match="@durable_task"):
            act(len)


def test_a_duplicate_is_refused_by_perform() -> None:
    kit.once.schedule()
    drain()
    with pytest.raises(AssertionError, match="DUPLICATE"):
        perform(kit.once)


def test_tuples_are_compared_as_they_are_stored() -> None:
    kit.shows.schedule([("a", 1)])
    assert_scheduled(kit.shows, args=[[("a", 1)]])


@pytest.mark.django_db
@pytest.mark.parametrize("call", [perform, assert_scheduled, assert_nothing_scheduled])
def test_a_call_with_options_is_refused_with_what_to_do_instead(call: Callable[..., Any]) -> None:
    with pytest.raises(
        TypeError, match=rf"{tasks.echo.name}\.using\(\.\.\.\) is a call with options"
    ):
        call(tasks.echo.using(priority=9))
