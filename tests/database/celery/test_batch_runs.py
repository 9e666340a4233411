"""A batch message in the process of a worker, and the explanation of a task that runs in batches."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from billiard.exceptions import SoftTimeLimitExceeded
from django.db import DataError, OperationalError, connections
from django.db.backends.signals import connection_created

from django_durable_tasks import registry
from django_durable_tasks.celery import batch_runs
from django_durable_tasks.celery.inspect import sentences
from django_durable_tasks.celery.live_runs import process_runs
from django_durable_tasks.choices import Status
from django_durable_tasks.cluster import queues
from django_durable_tasks.models import BatchMessage, Task, TaskExecutionLog
from django_durable_tasks.models.fields import DatabaseNow
from django_durable_tasks.scheduler.dispatch_loop import BatchDispatch
from django_durable_tasks.store import connections as dedicated
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.tasks import attempts, batches
from tests.database.commands.durable_command import durable
from tests.database.limits.limited_tasks import limit
from tests.database.transitions.transition_calls import CRASH, PLACE
from tests.factories import QUEUE, a_task
from tests.messages import take_messages
from tests.project import batched

pytestmark = pytest.mark.django_db(transaction=True)
NAME = batched.note.name


@pytest.fixture(autouse=True)
def small_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each test start with the first size of batches."""
    monkeypatch.setattr(batch_runs, "_sizes", batch_runs.BatchSizes())


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """The file to which the functions write."""
    return tmp_path / "notes"


def _deliver(name: str = NAME, queue: str = QUEUE, number: int | None = None) -> None:
    """Deliver a batch message: without a number the last one."""
    if number is None:
        number = BatchMessage.objects.values_list("number", flat=True).first() or 0
    batch_runs.run_batch.apply(
        kwargs={"queue": queue, "name": name, "number": number},
        task_id=f"batch.{uuid.uuid4().hex[:12]}",
        throw=True,
    )


def _schedule(notes: Path, number: int) -> None:
    using = batched.note.using(queue=QUEUE)
    using.schedule_many([(str(notes), index) for index in range(number)])


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


@contextmanager
def _statements_fail(error: Exception, fails: Callable[[str, str], bool]) -> Iterator[None]:
    """Make the statements fail for whose text and parameters ``fails`` returns True."""

    def refuse(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if fails(sql, str(params).replace("-", "")):
            raise error
        return execute(sql, params, many, context)

    def connected(connection: Any, **_: Any) -> None:
        connection.execute_wrappers.append(refuse)

    dedicated.close_all()
    connection_created.connect(connected)
    connections["default"].execute_wrappers.append(refuse)
    try:
        yield
    finally:
        connections["default"].execute_wrappers.remove(refuse)
        connection_created.disconnect(connected)
        dedicated.close_all()


def _successes_are_refused(
    error: Exception, of: uuid.UUID | None = None
) -> AbstractContextManager[None]:
    """Make the statements fail that record successes, or only those of one task."""

    def fails(sql: str, given: str) -> bool:
        ends = "'SUCCESS'" in sql or (sql.startswith("UPDATE") and "SUCCESS" in given)
        return ends and (of is None or of.hex in given)

    return _statements_fail(error, fails)


def test_messages_run_batches_until_no_task_is_due(notes: Path) -> None:
    _schedule(notes, 40)
    assert Counter(Task.objects.values_list("status", "in_batch")) == {("PENDING", True): 40}
    while Task.objects.pending().exists():
        _deliver()
    assert Counter(_lines(notes)) == Counter(map(str, range(40)))
    assert Counter(Task.objects.values_list("status", "attempts")) == {("SUCCESS", 1): 40}
    assert TaskExecutionLog.objects.count() == 40


def test_the_next_message_is_published_if_more_tasks_are_due(notes: Path) -> None:
    _schedule(notes, 11)
    _deliver()
    assert BatchMessage.objects.get().due_at is not None
    _deliver()
    assert BatchMessage.objects.get().due_at is None


def test_late_messages_do_not_accumulate(notes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_runs, "DURATION", 0.0)  # a message runs one batch
    _schedule(notes, 60)
    dispatch = BatchDispatch()
    dispatch.read(database_now())

    def numbers() -> list[int]:
        return [json.loads(message.body)[1]["number"] for message in take_messages(QUEUE)]

    for _ in range(3):  # no process is free for a while
        assert dispatch.publish() == 1
        BatchMessage.objects.update(due_at=DatabaseNow())
    assert numbers() == [1, 2, 3]
    BatchMessage.objects.update(due_at=database_now() + timedelta(seconds=60))
    for number in range(1, 4):
        _deliver(number=number)
    assert numbers() == [4]


def test_an_error_while_the_next_message_is_recorded_does_not_stop_the_batch(
    notes: Path,
) -> None:
    _schedule(notes, 11)
    error = OperationalError("canceling statement due to lock timeout")
    table = BatchMessage._meta.db_table
    with _statements_fail(error, lambda sql, _: table in sql and "INSERT" in sql):
        _deliver()
    assert not Task.objects.running().exists()
    assert Task.objects.filter(status=Status.SUCCESS).count() >= 10


def test_runs_whose_endings_could_not_be_recorded_are_not_called_again(
    notes: Path, settings: Any
) -> None:
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "RESULT_WRITE_TIMEOUT": 0.1}
    _schedule(notes, 30)
    with _successes_are_refused(OperationalError("the server closed the connection")):
        _deliver()
    called = Counter(_lines(notes))
    assert set(called.values()) == {1}
    running = Task.objects.running()
    assert sorted(str(task.args[1]) for task in running) == sorted(called)
    assert not process_runs.leases._runs
    assert Task.objects.pending().count() == 30 - len(called)
    attempts.end_runs(running, lambda _: CRASH)
    assert Counter(Task.objects.values_list("status", "in_batch", "crashes")) == {
        ("PENDING", False, 0): len(called),
        ("PENDING", True, 0): 30 - len(called),
    }


def test_an_interrupted_batch_leaves_no_run_in_the_heartbeat(
    notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise SoftTimeLimitExceeded  # CELERY_TASK_SOFT_TIME_LIMIT applies to the message

    monkeypatch.setattr(batch_runs, "Context", interrupted)
    _schedule(notes, 3)
    with pytest.raises(SoftTimeLimitExceeded):
        _deliver()
    assert not process_runs.leases._runs
    assert Task.objects.pending().count() == 2


def test_a_success_that_the_database_refuses_does_not_affect_the_others(
    notes: Path, settings: Any
) -> None:
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "RESULT_WRITE_TIMEOUT": 0.1}
    _schedule(notes, 5)
    refused = Task.objects.order_by("pk")[1].pk
    with _successes_are_refused(DataError("a value"), refused):
        _deliver()
    assert Task.objects.filter(status=Status.SUCCESS).count() == 4
    assert Task.objects.get(pk=refused).status == Status.RUNNING
    assert not process_runs.leases._runs


def test_a_message_from_another_queue_or_of_an_unknown_task_starts_nothing(notes: Path) -> None:
    _schedule(notes, 2)
    _deliver("no.such.task")
    _deliver(queue="other")
    assert Task.objects.pending().count() == 2


def test_the_message_of_an_unknown_task_is_published_again_without_growing_times(
    settings: Any,
) -> None:
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "REPUBLISH_AFTER": 3.5}
    name = "task.of.another.release"
    a_task(name=name, in_batch=True)
    for _ in range(5):
        batches.reserve_messages([(QUEUE, name)])
        BatchMessage.objects.update(due_at=DatabaseNow())
    _deliver(name)
    message = BatchMessage.objects.get()
    assert message.due_at is not None
    assert 0 < (message.due_at - database_now()).total_seconds() <= 7
    assert message.publish_count == 0


def test_a_call_or_edit_with_a_time_limit_has_a_message_of_its_own(notes: Path) -> None:
    using = batched.note.using(queue=QUEUE)
    task = using.using(timeout=5).schedule(str(notes), 1)
    assert not Task.objects.get(pk=task.pk).in_batch
    task = using.using(key="one").schedule(str(notes), 1)
    assert Task.objects.get(pk=task.pk).in_batch
    using.using(key="one", timeout=5).schedule(str(notes), 1)
    assert not Task.objects.get(pk=task.pk).in_batch


def test_a_scheduler_publishes_one_message_for_many_due_tasks(notes: Path) -> None:
    _schedule(notes, 5)
    dispatch = BatchDispatch()
    dispatch.read(database_now())
    queues.pause(QUEUE, by="bob", reason="")
    assert dispatch.publish() == 0
    queues.resume(QUEUE, by="bob", reason="")
    assert dispatch.publish() == 1
    assert dispatch.publish() == 0
    (message,) = take_messages(QUEUE)
    assert message.headers["durable_batch"] == batched.note.name
    assert Task.objects.filter(status=Status.PENDING).count() == 5


@pytest.fixture
def task(notes: Path) -> Task:
    """A due task that runs in batches."""
    row = batched.note.using(queue=QUEUE).schedule(str(notes), 1)
    found: Task = Task.objects.get(pk=row.pk)
    return found


def _take() -> int:
    run_ids = batches.run_ids_of(bytes(batches.TOKEN_BYTES), 5)
    return len(batches.take(QUEUE, NAME, run_ids, PLACE))


def _explained(task: Task) -> str:
    task.refresh_from_db()
    return " ".join(sentence.text for sentence in sentences(task))


def test_the_state_of_the_batch_message_is_explained(task: Task) -> None:
    assert "A batch message was published" in _explained(task)
    batches.message_not_published([(QUEUE, NAME)], 30)
    assert "The broker refused the batch message" in _explained(task)
    batches.message_received(QUEUE, NAME, number=1)
    assert "No batch message is outstanding" in _explained(task)
    assert "waits for a batch" in durable("show", task.pk).out


def test_a_paused_queue_a_missing_worker_and_an_unknown_function_are_explained(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues.pause(QUEUE, by="bob", reason="move")
    assert f"Queue {QUEUE} was paused by bob (move)" in _explained(task)
    queues.resume(QUEUE, by="bob", reason="")
    assert f"No live worker listens on queue {QUEUE}" in _explained(task)
    assert "No durable task of that name" not in _explained(task)
    known: dict[str, Any] = {name: one for name, one in registry._tasks.items() if name != NAME}
    monkeypatch.setattr(registry, "_tasks", known)
    assert "No durable task of that name is registered in this process" in _explained(task)


def test_the_limit_for_which_a_task_of_a_batch_waits_is_explained(task: Task) -> None:
    limit(f"task:{NAME}", 1)
    batched.note.using(queue=QUEUE, priority=9).schedule("unused", 2)
    assert _take() == 1
    task.refresh_from_db()
    assert f"task:{NAME}" in _explained(task)
    assert "waits for a batch" not in _explained(task)


def test_a_task_that_runs_alone_after_a_crash_is_explained(task: Task) -> None:
    assert "runs alone" not in _explained(task)
    assert _take() == 1
    attempts.end_runs(Task.objects.filter(pk=task.pk), lambda _: CRASH)
    assert "Its worker died during a batch, so it runs alone" in _explained(task)


def test_a_task_with_a_message_of_its_own_by_its_options_has_not_crashed(notes: Path) -> None:
    row = batched.note.using(queue=QUEUE, timeout=5).schedule(str(notes), 1)
    assert "runs alone" not in _explained(Task.objects.get(pk=row.pk))
