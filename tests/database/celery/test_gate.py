"""Foreign messages, broken connections and time limits at any instruction do not corrupt a run."""

from __future__ import annotations

import os
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from billiard.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded
from celery import Celery, current_app, signals
from celery.exceptions import Ignore
from django.contrib.auth.models import Group
from django.db import OperationalError, connection, connections, transaction
from django.db.backends.signals import connection_created
from django.utils.module_loading import import_string

from django_durable_tasks import durable_task
from django_durable_tasks.celery import signal_handlers, worker_node
from django_durable_tasks.celery.live_runs import LiveRun, process_runs
from django_durable_tasks.celery.prepared_messages import parse
from django_durable_tasks.choices import Status
from django_durable_tasks.exceptions import IsolationTooStrict
from django_durable_tasks.models import Task
from django_durable_tasks.store.connections import dedicated_connection
from tests.delivery import deliver
from tests.factories import NOOP, a_run, a_task
from tests.project import tasks
from tests.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)


class _Strange(type):
    def __instancecheck__(cls, instance: object) -> bool:
        raise RuntimeError("no class to ask")


class Strange(Exception, metaclass=_Strange):
    """An exception whose class cannot be examined."""


@durable_task(name="tests.gate.strange", give_up_on=(Strange,))
def strange() -> None:
    raise ValueError("from the body")


@durable_task(name="tests.gate.hooked", atomic=True)
def hooked(name: str) -> str:
    """Create a task, and fail after the COMMIT."""
    Group.objects.create(name=name)
    transaction.on_commit(_broken_hook)
    return name


@durable_task(name="tests.gate.beaten", atomic=True, max_attempts=1)
def beaten(name: str) -> None:
    """Create a task, and send a heartbeat before the success."""
    Group.objects.create(name=name)
    process_runs.leases.renew()


@durable_task(name="tests.gate.doubled")
def doubled() -> list[bool]:
    """Return whether this run is registered before and after a refused message with its id ends."""
    live = process_runs.current()
    assert live is not None
    found = [process_runs.find(live.run.celery_id) is live]
    signal_handlers.on_postrun(task_id=live.run.celery_id)
    return [*found, process_runs.find(live.run.celery_id) is live]


def _broken_hook() -> None:
    raise OperationalError("a hook of the user's")


def test_a_message_of_one_task_cannot_start_the_body_of_another_task() -> None:
    row = a_task(Status.QUEUED, name=tasks.noop.name)
    row.name = tasks.echo.name
    with pytest.raises(Ignore, match="STALE"):
        deliver(row)
    row.refresh_from_db()
    assert (row.name, row.status, row.attempts) == (tasks.noop.name, Status.QUEUED, 0)


@pytest.mark.parametrize(
    "spelled",
    [
        *("", "a.1.1", "{id}.1", "{id}.1.1.1", "{id}.1.x", "{id}.-1.1", "{id}.1.1\n"),
        *("\n{id}.1.1", "{{{id}}}.1.1", "{id}.99999999999999999999.1", "{id}.1.12345678901"),
        *("urn:uuid:{id}.1.1", 7, None),
    ],
)
def test_only_an_id_in_canonical_form_is_treated_as_ours(spelled: Any) -> None:
    here = str(uuid.uuid4())
    assert parse(f"{here}.1.1") is not None
    text = spelled.replace("{id}", here) if isinstance(spelled, str) else spelled
    assert parse(text) is None


def test_a_refused_duplicate_of_a_message_does_not_unregister_its_run() -> None:
    row = a_task(Status.QUEUED, name="tests.gate.doubled")
    assert deliver(row) == [True, True]
    signal_handlers.on_postrun(task_id=f"{row.pk}.{row.epoch}.{row.publish_count}")
    assert process_runs.find(f"{row.pk}.{row.epoch}.{row.publish_count}") is None


def test_a_run_whose_outcome_cannot_be_determined_is_removed_from_the_heartbeat() -> None:
    row = a_task(Status.QUEUED, name="tests.gate.strange")
    with pytest.raises(RuntimeError, match="no class to ask"):
        deliver(row)
    assert process_runs.leases._runs == {}


@pytest.fixture
def dead_connection() -> None:
    """Make the next connection that the gate uses a broken one."""
    with dedicated_connection():
        driver = connections["default"]
        driver.ensure_connection()
    assert driver is not connection
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s)", [driver.connection.info.backend_pid])
    else:
        driver.connection.close()


def test_a_message_that_meets_a_broken_connection_is_not_dropped(dead_connection: None) -> None:
    row = a_task(Status.QUEUED, name=tasks.add.name, args=[1, 2])
    assert deliver(row) == 3
    row.refresh_from_db()
    assert (row.status, row.attempts) == (Status.SUCCESS, 1)


@pytest.mark.postgresql
def test_connections_of_the_engine_time_out_if_the_server_vanished() -> None:
    with dedicated_connection():
        parameters = connections["default"].connection.info.get_parameters()
    assert {"connect_timeout", "tcp_user_timeout", "keepalives_idle", "keepalives_interval"} <= set(
        parameters
    )


class _AnsweredBy:
    """Lets the first statement of this kind on an engine connection succeed, and raises an error to
    its caller.
    """

    def __init__(self, operation: str, error: BaseException) -> None:
        self.operation, self.error, self.answered = operation, error, 0

    def __call__(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        answer = execute(sql, params, many, context)
        if (
            self.operation in sql
            and not self.answered
            and not context["connection"].in_atomic_block
        ):
            self.answered += 1
            raise self.error
        return answer


@pytest.fixture
def answered() -> Iterator[Any]:
    """Return a function that lets one statement succeed and its caller receive an error."""
    with dedicated_connection():
        ours = connections["default"]
    installed: list[_AnsweredBy] = []

    def by(operation: str, error: BaseException) -> _AnsweredBy:
        installed.append(_AnsweredBy(operation, error))
        ours.execute_wrappers.append(installed[-1])
        return installed[-1]

    yield by
    ours.execute_wrappers.clear()


@pytest.fixture
def unreachable() -> Iterator[Callable[[int], list[int]]]:
    """Return a function that makes the first statement on some new connections fail."""
    failed: list[int] = []
    left: list[int] = []

    def fail(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        failed.append(1)
        raise OperationalError("the server is restarting")

    def on_created(sender: Any, connection: Any, **_: Any) -> None:
        if left:
            left.pop()
            connection.execute_wrappers.append(fail)

    def install(number: int) -> list[int]:
        left.extend([1] * number)
        return failed

    connection_created.connect(on_created)
    yield install
    connection_created.disconnect(on_created)


@pytest.mark.parametrize("connections_that_fail", [0, 3])
def test_a_start_whose_reply_was_lost_is_read_back_and_runs_once(
    answered: Any, unreachable: Callable[[int], list[int]], connections_that_fail: int
) -> None:
    row = a_task(Status.QUEUED, name=tasks.add.name, args=[1, 2], on_orphan="DEAD_LETTER")
    operation = "'RUNNING', epoch" if connection.vendor == "postgresql" else "UPDATE"
    lost = answered(operation, OperationalError("cut before the reply"))
    failed = unreachable(connections_that_fail)
    assert deliver(row) == 3
    row.refresh_from_db()
    assert (lost.answered, len(failed)) == (1, connections_that_fail)
    assert (row.status, row.attempts) == (Status.SUCCESS, 1)
    assert [log.status for log in row.executions.all()] == ["SUCCESS"]


def _waiting_for_a_lock(number: int) -> bool:
    """Return whether so many processes of the server wait for a lock of this database."""
    with connections["witness"].cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND"
            " wait_event_type = 'Lock'"
        )
        return bool(cursor.fetchone()[0] >= number)


@pytest.mark.postgresql
def test_a_start_that_the_server_executes_after_its_connection_broke_is_found() -> None:
    """The first UPDATE waits at the server for a lock when its connection breaks; the second one
    waits behind it.
    """
    row = a_task(Status.QUEUED, name=tasks.add.name, args=[1, 2])
    with dedicated_connection():
        ours = connections["default"]
        ours.ensure_connection()
    locked, broken = threading.Event(), threading.Event()

    def lock_the_row_until_both_wait() -> None:
        connections["witness"] = connection.copy("witness")
        try:
            with transaction.atomic():
                Task.objects.select_for_update().get(pk=row.pk)
                locked.set()
                until(lambda: _waiting_for_a_lock(1), within=30)
                with socket.socket(fileno=os.dup(ours.connection.fileno())) as wire:
                    wire.shutdown(socket.SHUT_RDWR)
                broken.set()
                until(lambda: _waiting_for_a_lock(2), within=30)
        finally:
            locked.set()
            connections["witness"].close()
            del connections["witness"]
            connections.close_all()

    thread = threading.Thread(target=lock_the_row_until_both_wait)
    thread.start()
    assert locked.wait(30)
    try:
        assert deliver(row) == 3
    finally:
        thread.join(60)
    row.refresh_from_db()
    assert broken.is_set()
    assert (row.status, row.attempts, row.crashes) == (Status.SUCCESS, 1, 0)


@pytest.mark.postgresql
def test_a_soft_time_limit_while_a_success_is_recorded_leaves_it_a_success(
    answered: Any,
) -> None:
    row = a_task(Status.QUEUED, name=tasks.add.name, args=[1, 2], max_attempts=1)
    struck = answered("'SUCCESS', epoch", SoftTimeLimitExceeded())
    assert deliver(row) == 3
    row.refresh_from_db()
    assert (struck.answered, row.status, row.result) == (1, Status.SUCCESS, 3)
    assert [log.status for log in row.executions.all()] == ["SUCCESS"]
    assert process_runs.leases._runs == {}


def test_a_hook_that_fails_after_the_commit_of_an_atomic_body_undoes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    row = a_task(Status.QUEUED, name="tests.gate.hooked", args=["kept"])
    assert deliver(row) == "kept"
    row.refresh_from_db()
    assert row.status == Status.SUCCESS
    assert Group.objects.filter(name="kept").count() == 1
    assert "a hook of the user's" in caplog.text
    assert Task.objects.count() == 1


@pytest.mark.postgresql
@pytest.mark.parametrize("level", ["READ_COMMITTED", "REPEATABLE_READ", "SERIALIZABLE"])
def test_an_atomic_body_that_outlasts_a_heartbeat_names_the_isolation_level_it_needs(
    monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    levels = import_string("django.db.backends.postgresql.psycopg_any.IsolationLevel")
    row = a_task(Status.QUEUED, name="tests.gate.beaten", args=["beaten"], max_attempts=1)
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", {"isolation_level": levels[level]})
    connection.close()
    with suppress(IsolationTooStrict):
        deliver(row)
    connection.close()
    row.refresh_from_db()
    is_fine = level == "READ_COMMITTED"
    assert row.status == (Status.SUCCESS if is_fine else Status.FAILED)
    assert Group.objects.filter(name="beaten").exists() == is_fine
    assert ("Use READ COMMITTED (durable_tasks.E017)" in row.last_error) != is_fine


def _return_in_child(row: Task) -> None:
    """Let a child process share that the function of this run has returned."""
    live = LiveRun(a_run(row), lease=60.0, timeout=None, worker="worker@host", eager=False)
    child = os.fork()
    if not child:
        process_runs.share_returned(live)
        os._exit(0)
    os.waitpid(child, 0)


@pytest.mark.parametrize(
    ("has_returned", "status", "log", "crashes"),
    [(False, Status.FAILED, "FAILED", 0), (True, Status.PENDING, "LOST", 1)],
)
def test_a_hard_time_limit_is_a_failure_only_before_the_return(
    has_returned: bool, status: Status, log: str, crashes: int
) -> None:
    node = worker_node.place(60).node
    rows = [a_task(Status.RUNNING, node=node, max_attempts=1, max_crashes=2) for _ in range(2)]
    row, other = rows
    _return_in_child(row if has_returned else other)
    message = f"{row.pk}.{row.epoch - 1}.0"
    signals.task_failure.send(
        sender=current_app.tasks[NOOP], task_id=message, exception=TimeLimitExceeded(5)
    )
    row.refresh_from_db()
    assert (row.status, row.executions.get().status, row.crashes) == (status, log, crashes)
    other.refresh_from_db()
    assert other.status == Status.RUNNING


def test_the_name_of_a_worker_fits_into_its_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    copy = type("Copy", (worker_node._ThisProcess,), {})
    monkeypatch.setattr(worker_node, "_ThisProcess", copy)
    app = Celery("other", set_as_current=False)
    worker_node.on_worker_init(SimpleNamespace(app=app, hostname="\u00e9" * 300 + "@host"))
    assert 200 < len(worker_node.place(60).worker.encode()) <= 255
