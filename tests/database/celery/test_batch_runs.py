"""A batch message in the process of a worker."""

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

from django_durable_tasks.celery import batch_runs
from django_durable_tasks.celery.live_runs import process_runs
from django_durable_tasks.choices import Status
from django_durable_tasks.cluster import queues
from django_durable_tasks.models import BatchMessage, Task, TaskExecutionLog
from django_durable_tasks.models.fields import DatabaseNow
from django_durable_tasks.scheduler.dispatch_loop import BatchDispatch
from django_durable_tasks.store import connections as dedicated
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.tasks import attempts, batches
from tests.database.transitions.transition_calls import CRASH
from tests.factories import QUEUE, a_task
from tests.messages import take_messages
from tests.project import batched

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def small_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each test start with the first size of batches."""
    monkeypatch.setattr(batch_runs, "_sizes", batch_runs.BatchSizes())


def _deliver(name: str, queue: str = QUEUE, number: int | None = None) -> None:
    """Deliver a batch message: without a number the last one."""
    if number is None:
        number = BatchMessage.objects.values_list("number", flat=True).first() or 0
    token = uuid.uuid4().hex[:12]
    batch_runs.run_batch.apply(
        kwargs={"queue": queue, "name": name, "number": number},
        task_id=f"batch.{token}",
        throw=True,
    )


def _number(message: Any) -> int:
    number: int = json.loads(message.body)[1]["number"]
    return number


def _schedule(notebook: Path, number: int) -> None:
    using = batched.note.using(queue=QUEUE)
    using.schedule_many([(str(notebook), one) for one in range(number)])


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


def test_messages_run_batches_until_no_task_is_due(tmp_path: Path) -> None:
    _schedule(tmp_path / "notes", 40)
    assert Counter(Task.objects.values_list("status", "in_batch")) == {("PENDING", True): 40}
    while Task.objects.pending().exists():
        _deliver(batched.note.name)
    assert Counter(_lines(tmp_path / "notes")) == Counter(map(str, range(40)))
    assert Counter(Task.objects.values_list("status", "attempts")) == {("SUCCESS", 1): 40}
    assert TaskExecutionLog.objects.count() == 40


def test_the_next_message_is_published_if_more_tasks_are_due(tmp_path: Path) -> None:
    _schedule(tmp_path / "notes", 11)
    _deliver(batched.note.name)
    assert BatchMessage.objects.get().due_at is not None
    _deliver(batched.note.name)
    assert BatchMessage.objects.get().due_at is None


def test_late_messages_do_not_accumulate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_runs, "DURATION", 0.0)  # a message runs one batch
    _schedule(tmp_path / "notes", 60)
    dispatch = BatchDispatch()
    dispatch.read(database_now())
    for _ in range(3):  # no process is free for a while
        assert dispatch.publish() == 1
        BatchMessage.objects.update(due_at=DatabaseNow())
    assert len(sent := take_messages(QUEUE)) == 3
    BatchMessage.objects.update(due_at=database_now() + timedelta(seconds=60))
    for number in range(1, 4):
        _deliver(batched.note.name, number=number)
    assert [_number(message) for message in sent] == [1, 2, 3]
    assert [_number(message) for message in take_messages(QUEUE)] == [4]


def test_an_error_while_the_next_message_is_recorded_does_not_stop_the_batch(
    tmp_path: Path,
) -> None:
    _schedule(tmp_path / "notes", 11)
    error = OperationalError("canceling statement due to lock timeout")
    table = BatchMessage._meta.db_table
    with _statements_fail(error, lambda sql, _: table in sql and "INSERT" in sql):
        _deliver(batched.note.name)
    assert not Task.objects.running().exists()
    assert Task.objects.filter(status=Status.SUCCESS).count() >= 10


def test_runs_whose_endings_could_not_be_recorded_are_not_called_again(
    tmp_path: Path, settings: Any
) -> None:
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "RESULT_WRITE_TIMEOUT": 0.1}
    _schedule(tmp_path / "notes", 30)
    with _successes_are_refused(OperationalError("the server closed the connection")):
        _deliver(batched.note.name)
    called = Counter(_lines(tmp_path / "notes"))
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise SoftTimeLimitExceeded  # CELERY_TASK_SOFT_TIME_LIMIT applies to the message

    monkeypatch.setattr(batch_runs, "Context", interrupted)
    _schedule(tmp_path / "notes", 3)
    with pytest.raises(SoftTimeLimitExceeded):
        _deliver(batched.note.name)
    assert not process_runs.leases._runs
    assert Task.objects.pending().count() == 2


def test_a_success_that_the_database_refuses_does_not_affect_the_others(
    tmp_path: Path, settings: Any
) -> None:
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "RESULT_WRITE_TIMEOUT": 0.1}
    _schedule(tmp_path / "notes", 5)
    refused = Task.objects.order_by("pk")[1].pk
    with _successes_are_refused(DataError("a value"), refused):
        _deliver(batched.note.name)
    assert Task.objects.filter(status=Status.SUCCESS).count() == 4
    assert Task.objects.get(pk=refused).status == Status.RUNNING
    assert not process_runs.leases._runs


def test_a_message_from_another_queue_or_of_an_unknown_task_starts_nothing(tmp_path: Path) -> None:
    _schedule(tmp_path / "notes", 2)
    _deliver("no.such.task")
    _deliver(batched.note.name, queue="other")
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


def test_a_call_with_a_time_limit_has_a_message_of_its_own(tmp_path: Path) -> None:
    task = batched.note.using(queue=QUEUE, timeout=5).schedule(str(tmp_path / "notes"), 1)
    assert not Task.objects.get(pk=task.pk).in_batch


def test_an_edit_by_key_decides_again_whether_the_task_runs_in_a_batch(tmp_path: Path) -> None:
    using = batched.note.using(queue=QUEUE, key="one")
    task = using.schedule(str(tmp_path / "notes"), 1)
    assert Task.objects.get(pk=task.pk).in_batch
    using.using(timeout=5).schedule(str(tmp_path / "notes"), 1)
    assert not Task.objects.get(pk=task.pk).in_batch


def test_a_scheduler_publishes_one_message_for_many_due_tasks(tmp_path: Path) -> None:
    _schedule(tmp_path / "notes", 5)
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
