"""The transitions of a run: start, heartbeat, succeed, and the endings that ``decide`` decides."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NamedTuple

from django.db.models import Case, Exists, F, JSONField, OuterRef, Q, Value, When
from django.db.models.functions import Cast

from django_durable_tasks.choices import TERMINAL, LogStatus, Status
from django_durable_tasks.encryption import decrypted
from django_durable_tasks.models import QueueControl, Task
from django_durable_tasks.models.fields import DatabaseNow
from django_durable_tasks.models.tasks import TaskQuerySet
from django_durable_tasks.states import attempt_log, claims
from django_durable_tasks.states.attempt_log import AttemptResult
from django_durable_tasks.states.claims import (
    RUN_COLUMNS,
    ClaimedTask,
    Unstarted,
    run_of,
    started_runs,
)
from django_durable_tasks.states.demand import QueueDemand
from django_durable_tasks.states.guarded_update import (
    CLOSED,
    NO_OWNER,
    announce,
    locked,
    matches_epochs,
    move,
    record_endings,
    transaction_of_successes,
)
from django_durable_tasks.states.inserts import encrypted_result, key_after, place
from django_durable_tasks.store.clock import after, aware
from django_durable_tasks.store.dialects import POSTGRESQL, SQLITE, sql, verb
from django_durable_tasks.store.tables import atomic, count, database, read, tasks
from django_durable_tasks.task_values import Run, RunLocation


def start_writes(run_id: Any, node: uuid.UUID, lease: float) -> dict[str, Any]:
    """Return the columns that every start writes besides status and epoch."""
    return {
        "attempts": F("attempts") + 1,
        "run_id": run_id,
        "node": node,
        "started_at": DatabaseNow(),
        "due_at": None,
        "lease_until": after(lease),
        "progress": None,
    }


def start(
    task_id: uuid.UUID, epoch: int, run_id: uuid.UUID, place: RunLocation, name: str | None = None
) -> Run | Unstarted | None:
    """QUEUED to RUNNING, if the task is still in the epoch of the message.

    ``run_id``: the token of the run. ``name``: only a task of this name. A task of another queue
    than those of ``place``, if it names some, is not started. Returns what its row shows if the
    guard does not match, a cancellation was requested, the task has expired, or its queue is
    paused, and None if there is no row. Nothing is written then.
    """
    started = _start(task_id, epoch, run_id, place, name)
    if isinstance(started, Run):
        announce("start", Status.RUNNING, [started.task_id])
    return started


@verb
def _start(
    task_id: uuid.UUID, epoch: int, run_id: uuid.UUID, place: RunLocation, name: str | None
) -> Run | Unstarted | None:
    """Read the row first, so that a stale message costs one statement that writes nothing. What was
    read is that of the run, because every change of it raises the epoch.
    """
    paused = QueueControl.objects.filter(name=OuterRef("queue"), paused_at__isnull=False)
    this = tasks().filter(pk=task_id)
    columns = (*RUN_COLUMNS, "created_at", "status", "expires_at")
    row = this.values(*columns).annotate(paused=Exists(paused), now=DatabaseNow()).first()
    if row is None:
        return None
    now, expires_at = row["now"], row["expires_at"]
    has_expired = expires_at is not None and expires_at <= now
    seen = Unstarted(row["status"], row["epoch"], row["queue"], has_expired, bool(row["paused"]))
    if (row["status"], row["epoch"]) != (Status.QUEUED, epoch):
        return seen
    of_queues = this.filter(queue__in=list(place.queues)) if place.queues else this
    changed = of_queues.filter(
        Q(expires_at__isnull=True) | Q(expires_at__gt=DatabaseNow()),
        ~Exists(paused),
        Q(name=name or F("name")),
        epoch=epoch,
        status__standing=[Status.QUEUED],
        cancel_requested_at__isnull=True,
    ).update(
        status=Status.RUNNING,
        epoch=F("epoch") + 1,
        updated_at=DatabaseNow(),
        **start_writes(run_id, place.node, place.lease) | {"started_at": aware(now)},
    )
    if not changed:
        return seen
    row |= {"epoch": epoch + 1, "attempts": row["attempts"] + 1, "run_id": run_id}
    row |= {"node": place.node, "started_at": now}
    row["queued_at"] = row["queued_at"] or row["created_at"]
    return run_of([row[column] for column in RUN_COLUMNS])


@_start.on(POSTGRESQL)
def _start_in_one_statement(
    task_id: uuid.UUID, epoch: int, run_id: uuid.UUID, place: RunLocation, name: str | None
) -> Run | Unstarted | None:
    parameters = {
        "id": task_id,
        "epoch": epoch,
        "run_id": run_id,
        "node": place.node,
        "lease": place.lease,
        "name": name,
        "queues": list(place.queues) or None,
    }
    (row,) = read(sql("start"), parameters)
    run, seen = row[: len(RUN_COLUMNS)], row[len(RUN_COLUMNS) :]
    if run[0] is not None:
        return run_of(run)
    return None if seen[0] is None else Unstarted._make(seen)


class ClaimedStart(NamedTuple):
    """A start of a claimed task, by the process that claimed it. ``lease`` is in seconds."""

    task_id: uuid.UUID
    epoch: int
    run_id: uuid.UUID
    lease: float


@verb
def start_claimed(starts: Sequence[ClaimedStart], node: uuid.UUID) -> list[Run]:
    """QUEUED to RUNNING for tasks that are still in the epoch of their claim.

    Tasks whose cancellation was requested or that have expired, and those of paused queues, are
    left out.
    """
    paused = QueueControl.objects.filter(name=OuterRef("queue"), paused_at__isnull=False)
    in_epoch = matches_epochs((claimed.task_id, claimed.epoch) for claimed in starts)
    startable = tasks().filter(
        in_epoch,
        Q(expires_at__isnull=True) | Q(expires_at__gt=DatabaseNow()),
        ~Exists(paused),
        status=Status.QUEUED,
        cancel_requested_at__isnull=True,
    )
    run_ids = _by_task({claimed.task_id: Value(claimed.run_id) for claimed in starts})
    writes = start_writes(run_ids, node, 0.0)
    writes["lease_until"] = _by_task({claimed.task_id: after(claimed.lease) for claimed in starts})
    with atomic():
        pairs = locked(startable, len(starts))
        if not move("start", pairs, Status.RUNNING, **writes):
            return []
        return started_runs(tasks().filter(pk__in=[task_id for task_id, _ in pairs]))


@start_claimed.on(POSTGRESQL)
def _start_claimed_in_one_statement(starts: Sequence[ClaimedStart], node: uuid.UUID) -> list[Run]:
    ids, epochs, run_ids, leases = (list(column) for column in zip(*starts, strict=True))
    parameters = {"ids": ids, "epochs": epochs, "run_ids": run_ids, "leases": leases, "node": node}
    runs = [run_of(row) for row in read(sql("start_claimed"), parameters, binary=True)]
    announce("start", Status.RUNNING, [run.task_id for run in runs])
    return runs


class Taken(NamedTuple):
    """What one take returned: the runs with the priorities of their tasks, the tasks that it only
    claimed, and the ``publish_count`` of the tasks that it started, a part of their Celery ids.
    """

    started: list[tuple[Run, int]]
    claimed: list[ClaimedTask]
    publish_count: int


@verb
def take_alone(
    demands: Sequence[QueueDemand],
    now: datetime,
    limit: int,
    node: uuid.UUID,
    wait: float,
    leases: Mapping[str, float],
) -> Taken:
    """Claim due tasks of these queues as ``claims.claim`` does, and start those of the names in
    ``leases``, in seconds, that have no overlap key.

    Tasks of paused queues are left out.
    """
    names = {demand.queue for demand in demands}
    paused = QueueControl.objects.using(database()).filter(paused_at__isnull=False)
    names -= set(paused.values_list("name", flat=True))
    demands = [demand for demand in demands if demand.queue in names]
    claimed = claims.claim(demands, now, limit, node, wait) if demands else []
    starts = [
        ClaimedStart(task.id, task.epoch, uuid.uuid4(), leases[task.name])
        for task in claimed
        if task.name in leases and task.overlap_key is None
    ]
    priorities = {task.id: task.priority for task in claimed}
    runs = start_claimed(starts, node) if starts else []
    ids = {run.task_id for run in runs}
    return Taken(
        [(run, priorities[run.task_id]) for run in runs],
        [task for task in claimed if task.id not in ids],
        publish_count=1,  # the claim counted a message
    )


@take_alone.on(POSTGRESQL)
def _take_alone_in_one_statement(
    demands: Sequence[QueueDemand],
    now: datetime,
    limit: int,
    node: uuid.UUID,
    wait: float,
    leases: Mapping[str, float],
) -> Taken:
    parameters = {
        "queues": [demand.queue for demand in demands],
        "limits": [demand.limit for demand in demands],
        "levels": [demand.levels for demand in demands],
        "now": now,
        "limit": limit,
        "node": node,
        "wait": wait,
        "leases": json.dumps(dict(leases)),
    }
    taken, number = Taken([], [], publish_count=0), len(RUN_COLUMNS)
    for row in read(sql("take_alone"), parameters):
        more = _TakenRow(*row[number:])
        if more.status == Status.RUNNING:
            taken.started.append((run_of(row[:number]), more.priority))
            continue
        values = dict(zip(RUN_COLUMNS, row, strict=False)) | more._asdict()
        taken.claimed.append(ClaimedTask(**{name: values[name] for name in ClaimedTask._fields}))
    announce("claim", Status.QUEUED, [task.id for task in taken.claimed])
    announce("take", Status.RUNNING, [run.task_id for run, _ in taken.started])
    return taken


class _TakenRow(NamedTuple):
    """The columns of a taken task behind those of a run, in the order of the statement."""

    status: str
    priority: int
    publish_count: int
    expires_at: datetime | None
    overlap_key: str | None
    waiting_for_limit: str | None
    weight: int


Beat = tuple[uuid.UUID, int, uuid.UUID, float]
"""A heartbeat of a run: task, epoch, run, lease (seconds)."""
Progress = tuple[uuid.UUID, int, uuid.UUID, str]
"""The progress of a run: task, epoch, run, JSON."""


@verb
def heartbeat(beats: Sequence[Beat]) -> dict[uuid.UUID, bool]:
    """Renew leases; return, for each renewed run, whether its cancellation was requested.

    Rows that other transactions have locked are skipped. No value of a task function is in the
    statement: one that the database refuses would cost all the leases.
    """
    with _locked_if_free(beats) as owned:
        leases_by_task = {beat[0]: after(beat[3]) for beat in beats}
        owned.update(lease_until=_by_task(leases_by_task, F("lease_until")))
        rows = owned.values_list("run_id", "cancel_requested_at")
        return {run: requested_at is not None for run, requested_at in rows if run is not None}


@heartbeat.on(POSTGRESQL)
def _heartbeat_in_one_statement(beats: Sequence[Beat]) -> dict[uuid.UUID, bool]:
    ids, epochs, runs, leases = (list(column) for column in zip(*beats, strict=True))
    parameters = {"ids": ids, "epochs": epochs, "runs": runs, "leases": leases}
    return dict(read(sql("heartbeat"), parameters))


def write_progress(progress: Sequence[Progress]) -> set[uuid.UUID]:
    """Write what runs have reported; return the runs whose rows were not locked."""
    with _locked_if_free(progress) as owned:
        # Not decoded and encoded again, which would write some floats as PostgreSQL changes them.
        values = {task_id: Cast(Value(text), JSONField()) for task_id, _, _, text in progress}
        owned.update(progress=_by_task(values, F("progress")))
        return {run for run in owned.values_list("run_id", flat=True) if run is not None}


def read_position(run: Run) -> tuple[bool, Any]:
    """Return whether this run owns its task, and the position that the task has reached."""
    owned = _owned([(run.task_id, run.epoch, run.run_id)])
    for value in owned.values_list("position", flat=True):
        return True, decrypted(value, place(run.tenant_id, "position", run.task_id))
    return False, None


def write_position(run: Run, position: str, progress: str | None) -> bool:
    """Write the position (JSON) that a run has reached, and its progress unless it is None; return
    False if the run does not own its task.
    """
    stored, key = encrypted_result(position, run.tenant_id, run.task_id, "position")
    writes: dict[str, Any] = {"position": Value(json.loads(stored or "null"), JSONField())}
    if progress is not None:
        writes["progress"] = Cast(Value(progress), JSONField())
    if key is not None:
        writes["encryption_key"] = key_after(key)
    return bool(_owned([(run.task_id, run.epoch, run.run_id)]).update(**writes))


@verb
@contextmanager
def _locked_if_free(runs: Sequence[tuple[Any, ...]]) -> Iterator[TaskQuerySet]:
    """Yield the tasks of these runs that no other transaction has locked. They are locked until the
    end of the block.
    """
    with atomic():
        free = [task_id for task_id, _ in locked(_owned(runs), len(runs))]
        yield _owned(runs).filter(pk__in=free)


@_locked_if_free.on(SQLITE)
@contextmanager
def _owned_if_free(runs: Sequence[tuple[Any, ...]]) -> Iterator[TaskQuerySet]:
    """Yield them without a transaction, in which a write after a read may fail at once."""
    yield _owned(runs)


def _owned(runs: Sequence[tuple[Any, ...]]) -> TaskQuerySet:
    rows = tasks().filter(
        matches_epochs((run[0], run[1]) for run in runs), status__standing=[Status.RUNNING]
    )
    return rows.filter(run_id__in=[run[2] for run in runs])


def still_owned(beats: Sequence[Beat]) -> set[uuid.UUID]:
    """Return which of these runs still own their tasks, without waiting for locks."""
    return {run for run in _owned(beats).values_list("run_id", flat=True) if run is not None}


def succeed(run: Run, result: str | None, worker: str) -> bool:
    """RUNNING to SUCCESS, with log entry and ending event; return False if the run was fenced."""
    with transaction_of_successes([run]):
        changed = _succeed(run, result, worker)
        if changed:
            announce("succeed", Status.SUCCESS, [run.task_id], [run])
    return bool(changed)


@verb
def _succeed(run: Run, result: str | None, worker: str) -> int:
    stored, key = encrypted_result(result, run.tenant_id, run.task_id)
    with atomic():
        owned = tasks().filter(pk=run.task_id, epoch=run.epoch, run_id=run.run_id)
        changed = owned.filter(status__standing=[Status.RUNNING]).update(
            status=Status.SUCCESS,
            epoch=F("epoch") + 1,
            updated_at=DatabaseNow(),
            reason="",
            result=None if stored is None else Value(json.loads(stored), JSONField()),
            **({} if key is None else {"encryption_key": key_after(key)}),
            **CLOSED,
        )
        if changed:
            attempt_log.log_successes([run], worker)
            attempt_log.insert_ending_events([run.task_id], Status.SUCCESS)
    return changed


@_succeed.on(POSTGRESQL)
def _succeed_in_one_statement(run: Run, result: str | None, worker: str) -> int:
    stored, key = encrypted_result(result, run.tenant_id, run.task_id)
    parameters = {
        "id": run.task_id,
        "epoch": run.epoch,
        "run_id": run.run_id,
        "result": stored,
        "encryption_key": key,
        "worker": worker,
        "celery_id": run.celery_id,
    }
    return count(sql("succeed"), parameters)


def locked_runs(queryset: TaskQuerySet, limit: int | None = None) -> list[Task]:
    """Lock RUNNING rows for ``end`` and return them by primary key. Must be inside ``atomic()``."""
    pairs = locked(queryset.filter(status=Status.RUNNING), limit)
    return list(tasks().filter(pk__in=[task_id for task_id, _ in pairs]).order_by("pk"))


def end(results: Sequence[AttemptResult]) -> int:
    """Write the verdicts of RUNNING tasks that ``locked_runs`` returned; return how many changed.

    The transitions are ``retry``, ``exhaust``, ``lose`` and ``cancel``. The caller inserts log
    entries and dead letters.
    """
    if not results:
        return 0
    verdicts = {result.task.pk: result.verdict for result in results}
    closed = [task_id for task_id, verdict in verdicts.items() if verdict.status in TERMINAL]
    failed = {task_id: Value(verdict.failed) for task_id, verdict in verdicts.items()}
    crashed = {task_id: Value(verdict.crashed) for task_id, verdict in verdicts.items()}
    # A cancelled task keeps its reason, because the cancellation request has written it.
    reasons = {
        task_id: F("reason") if verdict.reason == "CANCELLED" else Value(verdict.reason)
        for task_id, verdict in verdicts.items()
    }
    errors = {result.task.pk: Value(result.outcome.error) for result in results}
    limits, alone, queues, due_at = (dict[uuid.UUID, Any]() for _ in range(4))
    for result in results:
        task, verdict, outcome = result.task, result.verdict, result.outcome
        if outcome.max_attempts is not None:
            limits[task.pk] = Value(outcome.max_attempts)
        if task.in_batch and verdict.log == LogStatus.LOST:
            alone[task.pk] = Value(False)  # its next run is alone
        if outcome.queue is not None and verdict.log == LogStatus.RETRY:
            queues[task.pk] = Value(outcome.queue)
        if verdict.status == Status.PENDING:
            due_at[task.pk] = after(result.delay)
    writes = {
        "status": _by_task({key: Value(verdict.status) for key, verdict in verdicts.items()}),
        "failures": F("failures") + _by_task(failed, Value(0)),
        "crashes": F("crashes") + _by_task(crashed, Value(0)),
        "last_error": _by_task(errors, Value("")),
        "reason": _by_task(reasons, Value("")),
        **({"max_attempts": _by_task(limits, F("max_attempts"))} if limits else {}),
        **({"in_batch": _by_task(alone, F("in_batch"))} if alone else {}),
        **({"queue": _by_task(queues, F("queue"))} if queues else {}),
        "due_at": _by_task(due_at) if due_at else None,
        "completed_at": Case(When(pk__in=closed, then=DatabaseNow()), default=None),
        "open_key": Case(When(pk__in=closed, then=None), default=F("open_key")),
        "open_unique_key": Case(When(pk__in=closed, then=None), default=F("open_unique_key")),
        "epoch": F("epoch") + 1,
        "publish_count": 0,
        "updated_at": DatabaseNow(),
    }
    guard = matches_epochs((result.task.pk, result.task.epoch) for result in results)
    running = tasks().filter(guard, status__standing=[Status.RUNNING])
    changed = running.update(**writes, **NO_OWNER)
    groups: dict[tuple[str, Status], list[uuid.UUID]] = {}
    for task_id, verdict in verdicts.items():
        groups.setdefault((verdict.transition, verdict.status), []).append(task_id)
    for (name, status), ids in groups.items():
        if status in TERMINAL:
            record_endings(ids, status)
        announce(name, status, ids)
    return changed


def _by_task(values: dict[uuid.UUID, Any], default: Any = None) -> Any:
    return Case(
        *(When(pk=task_id, then=value) for task_id, value in values.items()), default=default
    )
