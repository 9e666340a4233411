"""Create rows that are consistent with their status, without the engine, for tests of other parts.

Times are seconds from the database's now. The fields that a status needs (deadlines, epochs,
budgets, markers of open keys, the log entry and the dead letter of an ending) are filled
automatically, and every field can be overridden.
"""

from __future__ import annotations

import copy
import itertools
import os
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.expressions import DatabaseDefault
from django.db.utils import load_backend

from django_durable_tasks.choices import OPEN, TERMINAL, LogStatus, Status
from django_durable_tasks.models import (
    DEFAULT_TENANT_ID,
    DeadLetter,
    Node,
    NodeKind,
    QueueControl,
    SchedulerLease,
    Task,
    TaskExecutionLog,
    Tenant,
)
from django_durable_tasks.models.tasks import TaskQuerySet
from django_durable_tasks.states import batches as batch_transitions
from django_durable_tasks.states import claims
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.task_values import Run, RunLocation, new_task_id, shard_of
from django_durable_tasks.tasks import batches

QUEUE = "test"
NOOP = "tests.project.tasks.noop"
_number = itertools.count(1)
_LOG = {Status.SUCCESS: LogStatus.SUCCESS, Status.FAILED: LogStatus.FAILED}


def take_batch(number: int, place: RunLocation) -> list[Run]:
    """Start at most ``number`` due tasks of the test queue as a worker starts a batch."""
    run_ids = batches.run_ids_of(os.urandom(batches.TOKEN_BYTES), number)
    return batches.take(QUEUE, NOOP, run_ids, place)


def take_these(these: TaskQuerySet, number: int, place: RunLocation) -> list[Run]:
    """Start at most ``number`` PENDING tasks of the queryset by the transition ``take``."""
    run_ids = batches.run_ids_of(os.urandom(batches.TOKEN_BYTES), number)
    return batch_transitions.take(these, run_ids, place.node, place.lease)


def first_rows() -> None:
    """Insert the rows of the migrations again: the default tenant and the leader's free lease."""
    Tenant.objects.get_or_create(
        id=DEFAULT_TENANT_ID, defaults={"slug": "default", "name": "Default"}
    )
    SchedulerLease.objects.get_or_create(
        name="leader", defaults={"expires_at": datetime(2000, 1, 1, tzinfo=UTC)}
    )


def a_task(
    status: Status | str = Status.PENDING, *, due: float | None = None, **fields: Any
) -> Task:
    """Create one task in this status and return it as read back.

    ``due``: when its deadline is (seconds from now): its due time, or the end of its lease. By
    default a PENDING task is due, a QUEUED one is republished in 15 s, and a RUNNING one has its
    lease for a minute.
    """
    row = _task(Status(status), due, database_now(), fields)
    Task.objects.unguarded().bulk_create([row])
    _write_endings([row])
    found: Task = Task.objects.get(pk=row.pk)
    return found


def many_tasks(
    number: int, status: Status | str = Status.PENDING, *, due: float | None = None, **fields: Any
) -> list[Task]:
    """Create many tasks of this status, and return them in the order of their ids."""
    now = database_now()
    if not number:
        return []
    rows = [_task(Status(status), due, now, dict(fields)) for _ in range(number)]
    _insert(rows)
    _write_endings(rows)
    return list(Task.objects.filter(pk__in=[row.pk for row in rows]).order_by("pk"))


def _insert(rows: list[Task]) -> None:
    """Insert tasks with the same columns and plain values. ``bulk_create`` takes several times as
    long, because it resolves an expression for each column of each row.
    """
    connection = connections[Task.objects.db]
    quote = connection.ops.quote_name
    columns = [
        field
        for field in Task._meta.local_concrete_fields
        if not isinstance(getattr(rows[0], field.attname), DatabaseDefault)
    ]
    names = ", ".join(quote(str(field.column)) for field in columns)
    places = ", ".join(["%s"] * len(columns))
    values = [
        [field.get_db_prep_save(field.pre_save(row, add=True), connection) for field in columns]
        for row in rows
    ]
    with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
        cursor.executemany(
            f"INSERT INTO {quote(Task._meta.db_table)} ({names}) VALUES ({places})", values
        )


def _task(status: Status, due: float | None, now: datetime, fields: dict[str, Any]) -> Task:
    values: dict[str, Any] = {"name": NOOP, "queue": QUEUE, "run_at": now, "status": status}
    values |= _of_state(status, due, now, fields)
    values |= fields
    if values.get("waiting_for_limit"):
        values.setdefault("ready_at", values["run_at"])
    values["id"] = values.get("id") or new_task_id()
    values.setdefault("shard_key", shard_of(values["id"]))
    for key in ("key", "unique_key"):
        values.setdefault(f"open_{key}", values.get(key) if status in OPEN else None)
    return Task(**values)


def _of_state(
    status: Status, due: float | None, now: datetime, fields: dict[str, Any]
) -> dict[str, Any]:
    def at(seconds: float) -> datetime:
        return now + timedelta(seconds=seconds)

    if status == Status.BLOCKED:
        return {"unresolved_dependencies_count": 1}
    if status == Status.PENDING:
        alarm = at(-1 if due is None else due)
        return {"run_at": alarm, "due_at": alarm}
    if status == Status.QUEUED:
        return {"due_at": at(15 if due is None else due), "epoch": 1, "publish_count": 1}
    if status == Status.RUNNING:
        return _started(at(0)) | {"epoch": 2, "lease_until": at(60 if due is None else due)}
    if status in (Status.SUCCESS, Status.FAILED):
        failed = {
            "failures": fields.get("max_attempts", 5),
            "last_error": "Broken: broken",
            "reason": "EXHAUSTED",
        }
        return (
            _started(at(-1))
            | {"epoch": 3, "completed_at": at(0)}
            | (failed if status == Status.FAILED else {})
        )
    return {"epoch": 1, "completed_at": at(0), "reason": status.value}


def _started(at: datetime) -> dict[str, Any]:
    return {
        "attempts": 1,
        "run_id": uuid.uuid4(),
        "node": uuid.uuid4(),
        "started_at": at,
        "publish_count": 1,
    }


def _write_endings(rows: list[Task]) -> None:
    ended = [row for row in rows if row.status in _LOG]
    TaskExecutionLog.objects.unguarded().bulk_create(
        TaskExecutionLog(
            task_id=row.pk,
            tenant_id=_tenant_id(row),
            attempt_number=row.attempts,
            status=_LOG[Status(row.status)],
            started_at=row.started_at,
            completed_at=row.completed_at or row.run_at,
            run_id=row.run_id,
            node=row.node,
            error_message=row.last_error if row.status == Status.FAILED else "",
        )
        for row in ended
    )
    for row in ended:
        if row.status == Status.FAILED:
            a_dead_letter(row, tenant_id=_tenant_id(row))


def _tenant_id(row: Any) -> int:
    return row.tenant_id if isinstance(row.tenant_id, int) else DEFAULT_TENANT_ID


def a_dead_letter(task: Task, *, open: bool = True, **fields: Any) -> DeadLetter:
    """Create a dead letter of this task, open or closed."""
    now = database_now()
    closed = {} if open else {"resolved_at": now, "resolution": "DISCARDED", "resolved_by": "anna"}
    values = {
        "task_id": task.pk,
        "open_task": task.pk if open else None,
        "reason": "EXHAUSTED",
        "fingerprint": "0" * 16,
        "error_message": "Broken: broken",
        "attempts": task.attempts,
        "args": task.args,
        "kwargs": task.kwargs,
        "created_at": now,
    }
    letters: Any = DeadLetter.objects.unguarded()
    letter: DeadLetter = letters.create(**{**values, **closed, **fields})
    return letter


def a_log_row(
    task: Task, status: LogStatus | str = LogStatus.RETRY, **fields: Any
) -> TaskExecutionLog:
    """Create the log entry of one more attempt of this task."""
    now = database_now()
    values = {"attempt_number": 1, "started_at": now, "completed_at": now, "run_id": uuid.uuid4()}
    entries: Any = TaskExecutionLog.objects.unguarded()
    entry: TaskExecutionLog = entries.create(
        task_id=task.pk, status=str(status), **{**values, **fields}
    )
    return entry


def a_node(
    kind: NodeKind = NodeKind.WORKER,
    *,
    seen: float = 0.0,
    stopped: float | None = None,
    **fields: Any,
) -> Node:
    """Create a node that sent its last heartbeat `seen` seconds ago, and that stopped `stopped`
    seconds ago if given.
    """
    now, number = database_now(), next(_number)
    values: dict[str, Any] = {
        "name": f"node{number}@host",
        "kind": kind,
        "host": "host",
        "pid": number,
        "version": "0",
        "beats": 1,
        "started_at": now,
        "last_seen_at": now - timedelta(seconds=seen),
        "stopped_at": None if stopped is None else now - timedelta(seconds=stopped),
    }
    return Node.objects.create(**{**values, **fields})


def a_tenant(**fields: Any) -> Tenant:
    """Create another tenant."""
    number = next(_number)
    return Tenant.objects.create(
        **{"slug": f"tenant-{number}", "name": f"Tenant {number}", **fields}
    )


def a_paused_queue(name: str = QUEUE, *, reason: str = "a test") -> QueueControl:
    """Pause a queue."""
    return QueueControl.objects.create(
        name=name, paused_at=database_now(), paused_by="anna", reason=reason
    )


def a_run(task: Task) -> Run:
    """Return the run of a RUNNING task as its process has it."""
    (run,) = claims.started_runs(Task.objects.filter(pk=task.pk))
    return run._replace(
        node=task.node or uuid.uuid4(),
        celery_id=f"{task.pk}.{task.epoch - 1}.{task.publish_count}",
    )


def an_unsaved_run(name: str, queue: str, tenant_id: int = 1) -> Run:
    """Return a run of a task that is not in the database."""
    now = database_now()
    key, owner = uuid.uuid4(), uuid.uuid4()
    return Run(key, name, queue, tenant_id, 2, owner, owner, 1, 0, 0, 5, [], {}, {}, "", now, now)


ENDED = tuple(sorted(TERMINAL))


def unavailable_database() -> BaseDatabaseWrapper:
    """Return a connection to a second database of the project, which cannot be opened."""
    settings = copy.deepcopy(connections.settings["default"])
    settings |= {"ENGINE": "django.db.backends.sqlite3", "NAME": "/nonexistent/elsewhere.sqlite3"}
    settings["OPTIONS"] = {}
    wrapper: BaseDatabaseWrapper = load_backend(settings["ENGINE"]).DatabaseWrapper(
        settings, "elsewhere"
    )
    return wrapper
