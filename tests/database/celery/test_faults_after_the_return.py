"""One fault at each place between the return of a function and the record of its success: at each
statement, COMMIT and connect, before or after it was executed, and at each read of the settings. A soft
time limit may interrupt each of them.

A function that returned has succeeded. The writes of an atomic function are lost with its
transaction, so its run may also be LOST. It is never a failure.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from billiard.exceptions import SoftTimeLimitExceeded
from django.core.exceptions import ImproperlyConfigured
from django.db import InterfaceError, OperationalError
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper

from django_durable_tasks import Schedule, conf, durable_task
from django_durable_tasks.celery import batch_runs, gate
from django_durable_tasks.celery.live_runs import process_runs
from django_durable_tasks.choices import Status
from django_durable_tasks.conf import InvalidSetting
from django_durable_tasks.models import Task, TaskExecutionLog
from django_durable_tasks.store.connections import close_all
from tests.delivery import trace, trace_batch
from tests.factories import NOOP, QUEUE, a_task
from tests.project.observed import SLOWLY

pytestmark = pytest.mark.django_db(transaction=True)
_MOST = 400
"""More places than there are."""


class _Fault:
    """Raises once, at the place with this number after the last function has returned."""

    def __init__(self) -> None:
        self.number, self.executed, self.error = 0, False, Exception()
        self.waits_for, self.returned, self.seen, self.fired = 1, 0, 0, False
        self._lock = threading.Lock()

    def arm(self, number: int, error: Exception, *, executed: bool, functions: int) -> None:
        self.__init__()  # type: ignore[misc]
        self.number, self.error, self.executed, self.waits_for = number, error, executed, functions

    def is_here(self, kind: str) -> bool:
        with self._lock:
            is_armed = self.returned == self.waits_for and not self.fired
            if not is_armed or threading.current_thread().name == "durable-heartbeat":
                return False
            if (kind == "settings") != isinstance(self.error, _OF_SETTINGS):
                return False
            self.seen += 1
            self.fired = self.seen == self.number
            return self.fired

    def around(self, kind: str, act: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            if not self.is_here(kind):
                return act(*args, **named)
            if self.executed:
                act(*args, **named)
            raise self.error

        return call


_OF_SETTINGS = (InvalidSetting, ImproperlyConfigured, KeyError)
_fault = _Fault()


def _plain(number: int) -> int:
    _fault.returned += 1
    return number


def _followed(number: int) -> Any:
    _fault.returned += 1
    return Schedule(NOOP)


def _lane(name: str, function: Callable[[int], Any], **options: Any) -> Any:
    decorate: Any = durable_task
    return decorate(name=f"tests.faults.{name}", max_attempts=1, **options, **SLOWLY)(function)


LANES = [
    _lane("plain", _plain),
    _lane("atomic", _plain, atomic=True),
    _lane("followed", _followed),
    _lane("batched", _plain, batch=5),
    _lane("atomic_batched", _plain, batch=5, atomic=True),
    _lane("followed_batched", _followed, batch=5),
]


@pytest.fixture(autouse=True)
def injected(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the fault occur in Django and in the settings, without pauses after it."""
    for owner, name in (
        (CursorWrapper, "execute"),
        (CursorWrapper, "executemany"),
        (BaseDatabaseWrapper, "_commit"),
        (BaseDatabaseWrapper, "connect"),
    ):
        act = getattr(owner, name)
        around = _fault.around("statement", act)

        def method(*args: Any, _around: Callable[..., Any] = around, **named: Any) -> Any:
            return _around(*args, **named)

        monkeypatch.setattr(owner, name, method)
    monkeypatch.setattr(conf, "settings", _fault.around("settings", conf.settings))
    monkeypatch.setattr(gate, "_FIRST_PAUSE", 0.0)
    monkeypatch.setattr(batch_runs, "_sizes", batch_runs.BatchSizes())
    yield
    _fault.returned = 0
    close_all()


def _run(task: Any) -> list[Task]:
    """Run tasks of this lane, and return how they ended."""
    in_batch = bool(task.durable_options.batch)
    number = 2 if in_batch else 1
    status = Status.PENDING if in_batch else Status.QUEUED
    rows = [
        a_task(
            status, name=task.name, args=[index], in_batch=in_batch, max_attempts=1, max_crashes=2
        )
        for index in range(number)
    ]
    if in_batch:
        trace_batch(task.name, QUEUE)
    else:
        trace(rows[0])
    _fault.fired = True  # what the test itself reads is not its subject
    for row in rows:
        row.refresh_from_db()
    return rows


def _check(task: Any, rows: list[Task], fault: str) -> None:
    assert _fault.returned >= len(rows), fault
    for row in rows:
        logs = [log.status for log in row.executions.order_by("pk")]
        found = f"{fault}: {row.status} {logs} {row.last_error}"
        if task.durable_options.atomic and row.status == Status.PENDING:
            # The loss of a run in a batch costs no budget. It runs alone then.
            crashes = 0 if task.durable_options.batch else 1
            assert (logs, row.failures, row.crashes) == (["LOST"], 0, crashes), found
            assert row.last_error.startswith("The transaction was lost"), found
            continue
        assert (row.status, logs, row.failures, row.crashes) == ("SUCCESS", ["SUCCESS"], 0, 0), (
            found
        )
    assert process_runs.leases._runs == {}, fault
    assert not batch_runs.batch_thread._batches, fault


FAULTS = [
    (OperationalError("the connection was lost"), False),
    (OperationalError("the reply was lost"), True),
    (InterfaceError("connection already closed"), False),
    (SoftTimeLimitExceeded(), False),
    (SoftTimeLimitExceeded(), True),
    (InvalidSetting("a setting was changed"), False),
    (KeyError("a reader of the settings failed"), False),
]


@pytest.mark.parametrize("task", LANES, ids=[task.name.rpartition(".")[2] for task in LANES])
@pytest.mark.parametrize(
    ("error", "executed"),
    FAULTS,
    ids=["lost", "reply lost", "closed", "limit", "late limit", "setting", "reader"],
)
def test_no_fault_after_the_return_of_a_function_fails_its_run(
    task: Any, error: Exception, executed: bool
) -> None:
    functions = 2 if task.durable_options.batch else 1
    places, number = 0, 0
    while number < _MOST:
        number += 1
        _fault.arm(number, error, executed=executed, functions=functions)
        rows = _run(task)
        if _fault.seen < number:
            break
        places = number
        _check(task, rows, f"{error!r} at place {number}")
    assert places, "no place was found"
    assert number < _MOST


# The others of a batch are recorded together, by a thread that does not wait for the functions.
RECORDED_ALONE = [task for task in LANES if not task.name.endswith(".batched")]


@pytest.mark.parametrize(
    "task", RECORDED_ALONE, ids=[task.name.rpartition(".")[2] for task in RECORDED_ALONE]
)
def test_no_connection_is_closed_between_the_return_and_the_record(
    task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing one whose server does not answer may take as long as a time limit of the network."""
    acts: list[tuple[int, str]] = []

    def noted(owner: type, name: str, kind: Callable[..., str]) -> None:
        act = getattr(owner, name)

        def method(*args: Any, **named: Any) -> Any:
            if _fault.returned and threading.current_thread().name != "durable-heartbeat":
                acts.append((_fault.returned, kind(*args)))
            return act(*args, **named)

        monkeypatch.setattr(owner, name, method)

    noted(BaseDatabaseWrapper, "close_if_unusable_or_obsolete", lambda *_: "close")
    noted(BaseDatabaseWrapper, "close", lambda *_: "close")
    noted(BaseDatabaseWrapper, "_commit", lambda *_: "commit")
    table = TaskExecutionLog._meta.db_table
    noted(CursorWrapper, "execute", lambda _, sql, *__: "record" if table in sql else "other")
    functions = 2 if task.durable_options.batch else 1
    _fault.arm(_MOST, KeyError(), executed=False, functions=functions)
    _check(task, _run(task), "no fault")
    for number in range(1, functions + 1):
        after = [kind for returned, kind in acts if returned == number]
        # For a single task Celery closes them after its message.
        until = after.index("close") if "close" in after else len(after)
        recorded = after.index("record")
        if task.durable_options.atomic:
            recorded = after.index("commit", recorded)
        assert recorded < until, after
