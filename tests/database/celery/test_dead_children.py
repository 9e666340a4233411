"""The runs of prefork children that terminated after their messages were finished are LOST."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext

from django_durable_tasks.celery.execution import dead_children
from django_durable_tasks.celery.execution.dead_children import DeadChildren, children_of
from django_durable_tasks.engine.tasks.dead_child_processes import new_run_id
from django_durable_tasks.models import Task, TaskExecutionLog
from django_durable_tasks.rules.states import Status
from tests.factories import a_task

pytestmark = pytest.mark.django_db
NODE = uuid.uuid4()


def _ended_pid() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        return process.pid


def _run_of(pid: int, node: uuid.UUID = NODE, **fields: Any) -> Task:
    run_id = uuid.UUID(bytes=pid.to_bytes(4, "big") + os.urandom(12), version=4)
    return a_task(Status.RUNNING, node=node, run_id=run_id, attempts=1, **fields)


def _status(row: Task) -> str:
    return str(Task.objects.get(pk=row.pk).status)


def test_a_run_id_begins_with_the_id_of_its_process() -> None:
    first, second = new_run_id(), new_run_id()
    assert first != second
    assert (first.version, int.from_bytes(first.bytes[:4], "big")) == (4, os.getpid())


def test_the_run_of_a_child_is_lost_at_the_second_heartbeat_without_it() -> None:
    pid, children = _ended_pid(), {os.getpid()}
    dead, own, other = _run_of(pid), _run_of(os.getpid()), _run_of(pid, uuid.uuid4())
    batch = _run_of(pid, in_batch=True)
    monitor = DeadChildren(lambda: children)
    children.add(pid)
    assert monitor.end_runs(NODE, "w") == 0
    children.remove(pid)
    assert (monitor.end_runs(NODE, "w"), _status(dead)) == (0, "RUNNING")
    assert (monitor.end_runs(NODE, "w"), _status(dead)) == (1, "PENDING")
    assert {_status(own), _status(other), _status(batch)} == {"RUNNING"}
    entry = TaskExecutionLog.objects.get()
    assert (entry.task_id, entry.status, entry.worker) == (dead.pk, "LOST", "w")
    assert Task.objects.get(pk=dead.pk).crashes == 1
    assert monitor.end_runs(NODE, "w") == 0


def test_the_runs_of_a_process_that_is_alive_are_kept() -> None:
    row, children = _run_of(os.getpid()), {os.getpid()}
    monitor = DeadChildren(lambda: children)
    monitor.end_runs(NODE, "w")
    children.clear()
    for _ in range(3):
        assert monitor.end_runs(NODE, "w") == 0
    assert _status(row) == "RUNNING"


def test_nothing_is_read_unless_a_child_terminated() -> None:
    monitor = DeadChildren(lambda: {os.getpid()})
    with CaptureQueriesContext(connection) as queries:
        for _ in range(3):
            monitor.end_runs(NODE, "w")
    assert len(queries) == 0


def test_an_error_of_the_database_is_followed_by_another_try(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pid, children = _ended_pid(), set[int]()
    row, monitor = _run_of(pid), DeadChildren(lambda: children)
    children.add(pid)
    monitor.end_runs(NODE, "w")
    children.clear()
    monitor.end_runs(NODE, "w")

    def unavailable(*_: object) -> int:
        raise OperationalError("unavailable")

    with monkeypatch.context() as patch:
        patch.setattr(dead_children, "end_runs_of_processes", unavailable)
        with pytest.raises(OperationalError):
            monitor.end_runs(NODE, "w")
    assert (monitor.end_runs(NODE, "w"), _status(row)) == (1, "PENDING")


def test_only_a_prefork_pool_has_children() -> None:
    class Prefork:
        info = {"processes": [3, 4]}

    class Threads:
        info = {"threads": 8}

    class Stopping:
        @property
        def info(self) -> dict[str, int]:
            raise AttributeError("_pool")

    found = [children_of(pool) for pool in (Prefork(), Threads(), Stopping(), None)]
    assert found == [{3, 4}, set(), set(), set()]
