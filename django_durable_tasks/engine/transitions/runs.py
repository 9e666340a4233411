"""The transitions of a run: start, heartbeat, succeed, and the endings that ``decide`` decides."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db import connections
from django.db.models import Case, Exists, F, JSONField, OuterRef, Q, Value, When

from django_durable_tasks import ports
from django_durable_tasks.engine.db import direct
from django_durable_tasks.engine.db.clock import after
from django_durable_tasks.engine.db.statements import statement
from django_durable_tasks.engine.db.tables import atomic, count, database, read, tasks
from django_durable_tasks.engine.notification_events.capture import (
    is_selectable,
    transaction_of_successes,
)
from django_durable_tasks.engine.transitions import attempt_log
from django_durable_tasks.engine.transitions.change_signals import announce, has_receivers
from django_durable_tasks.engine.transitions.guarded_update import (
    CLOSED,
    NO_OWNER,
    locked,
    matches_epochs,
    record_endings,
)
from django_durable_tasks.engine.transitions.returned_rows import StartedRun, started_runs
from django_durable_tasks.engine.transitions.stored_arguments import encrypted_result, key_after
from django_durable_tasks.models import QueueControl, Task
from django_durable_tasks.models.clock import DatabaseNow
from django_durable_tasks.models.task_queries import TaskQuerySet
from django_durable_tasks.rules.states import TERMINAL, Status
from django_durable_tasks.rules.tasks.endings import EndingDecision
from django_durable_tasks.rules.tasks.runs import Run


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


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    """A run to start: the task and the epoch of its message, the token of the run, and its lease in
    seconds. ``name``: only a task of this name. ``queues``: only a task of one of these queues.
    """

    task_id: uuid.UUID
    epoch: int
    run_id: uuid.UUID
    node: uuid.UUID
    lease: float
    name: str | None = None
    queues: Sequence[str] = ()

    def parameters(self) -> dict[str, Any]:
        """Return the parameters of the SQL statement ``start``."""
        return {
            "id": self.task_id,
            "epoch": self.epoch,
            "run_id": self.run_id,
            "node": self.node,
            "lease": self.lease,
            "name": self.name,
            "queues": list(self.queues) or None,
        }


def start(new: NewRun) -> StartedRun | None:
    """QUEUED to RUNNING, if the task is still in the epoch of the message.

    Returns None if the guard does not match, a cancellation was requested, the task has expired, or
    its queue is paused.
    """
    sql = statement("start")
    if sql is None:
        found = _start(new)
    else:
        rows = read(sql, new.parameters(), frequent=True)
        found = [StartedRun._make(row) for row in rows]
    announce("start", Status.RUNNING, [run.id for run in found])
    return found[0] if found else None


def _start(new: NewRun) -> list[StartedRun]:
    paused = QueueControl.objects.filter(name=OuterRef("queue"), paused_at__isnull=False)
    of_queues = tasks().filter(queue__in=list(new.queues)) if new.queues else tasks()
    changed = of_queues.filter(
        Q(expires_at__isnull=True) | Q(expires_at__gt=DatabaseNow()),
        ~Exists(paused),
        Q(name=new.name or F("name")),
        pk=new.task_id,
        epoch=new.epoch,
        status__standing=[Status.QUEUED],
        cancel_requested_at__isnull=True,
    ).update(
        status=Status.RUNNING,
        epoch=F("epoch") + 1,
        updated_at=DatabaseNow(),
        **start_writes(new.run_id, new.node, new.lease),
    )
    return started_runs(tasks().filter(pk=new.task_id, run_id=new.run_id)) if changed else []


Beat = tuple[uuid.UUID, int, uuid.UUID, float, str | None]
"""A heartbeat of a run: task, epoch, run, lease (seconds), progress as JSON."""


def heartbeat(beats: Sequence[Beat]) -> dict[uuid.UUID, bool]:
    """Renew leases; return, for each renewed run, whether its cancellation was requested.

    Rows that other transactions have locked are skipped if the database supports SKIP LOCKED.
    """
    sql = statement("heartbeat")
    if sql is not None:
        ids, epochs, runs, leases, progress = (list(column) for column in zip(*beats, strict=True))
        parameters = {
            "ids": ids,
            "epochs": epochs,
            "runs": runs,
            "leases": leases,
            "progress": progress,
        }
        return dict(read(sql, parameters))
    if not connections[database()].features.has_select_for_update_skip_locked:
        return _renew(_owned(beats), beats)
    with atomic():
        free = [task_id for task_id, _ in locked(_owned(beats), len(beats))]
        return _renew(_owned(beats).filter(pk__in=free), beats) if free else {}


def _owned(beats: Sequence[Beat]) -> TaskQuerySet:
    rows = tasks().filter(
        matches_epochs((beat[0], beat[1]) for beat in beats), status__standing=[Status.RUNNING]
    )
    return rows.filter(run_id__in=[beat[2] for beat in beats])


def _renew(owned: TaskQuerySet, beats: Sequence[Beat]) -> dict[uuid.UUID, bool]:
    leases = Case(
        *(When(pk=beat[0], then=after(beat[3])) for beat in beats), default=F("lease_until")
    )
    changed_progress = [
        When(pk=beat[0], then=Value(json.loads(beat[4]), JSONField()))
        for beat in beats
        if beat[4] is not None
    ]
    owned.update(
        lease_until=leases,
        **(
            {"progress": Case(*changed_progress, default=F("progress"))} if changed_progress else {}
        ),
    )
    found = owned.values_list("run_id", "cancel_requested_at")
    return {run: requested_at is not None for run, requested_at in found if run is not None}


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


def succeed_and_start(
    run: Run, result: str | None, worker: str, new: NewRun
) -> tuple[bool, StartedRun | None]:
    """``succeed`` of a run and ``start`` of another one, in one transaction and one round trip if
    statements are executed directly.

    Neither depends on the guard of the other. Nothing must be called or written in the transaction
    of the success (``is_observed``).
    """
    success = statement("succeed") or "", _success_parameters(run, result, worker)
    start_ = statement("start") or "", new.parameters()
    # The rows are locked in primary-key order.
    is_first = run.task_id < new.task_id
    results = direct.execute_together([success, start_] if is_first else [start_, success])
    if results is None:
        return succeed(run, result, worker), start(new)
    succeeded, started = results if is_first else reversed(results)
    found = [StartedRun._make(row) for row in started.rows]
    if succeeded.number:
        announce("succeed", Status.SUCCESS, [run.task_id], [run])
    announce("start", Status.RUNNING, [one.id for one in found])
    return bool(succeeded.number), found[0] if found else None


def is_observed(run: Run) -> bool:
    """Return whether receivers of ``tasks_transitioned`` or notification settings may write
    something in the transaction of this success.
    """
    return has_receivers() or is_selectable([run])


def _success_parameters(run: Run, result: str | None, worker: str) -> dict[str, Any]:
    stored, key = encrypted_result(result, run.tenant_id, run.task_id)
    return {
        "id": run.task_id,
        "epoch": run.epoch,
        "run_id": run.run_id,
        "result": stored,
        "encryption_key": key,
        "worker": worker,
        "celery_id": run.celery_id,
    }


def _succeed(run: Run, result: str | None, worker: str) -> int:
    sql = statement("succeed")
    if sql is not None:
        return count(sql, _success_parameters(run, result, worker), frequent=True)
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


def locked_runs(queryset: TaskQuerySet, limit: int | None = None) -> list[Task]:
    """Lock RUNNING rows for ``end`` and return them by primary key. Must be inside ``atomic()``."""
    pairs = locked(queryset.filter(status=Status.RUNNING), limit)
    return list(tasks().filter(pk__in=[task_id for task_id, _ in pairs]).order_by("pk"))


def end(ends: Sequence[EndingDecision]) -> int:
    """Write the verdicts of RUNNING tasks that ``locked_runs`` returned; return how many changed.

    The transitions are ``retry``, ``exhaust``, ``lose`` and ``cancel``. The caller inserts log
    entries and dead letters.
    """
    if not ends:
        return 0
    guard = matches_epochs((end.task_id, end.epoch) for end in ends)
    running = tasks().filter(guard, status__standing=[Status.RUNNING])
    changed = running.update(
        **_verdicts(ends),
        **_closings(ends),
        epoch=F("epoch") + 1,
        publish_count=0,
        updated_at=DatabaseNow(),
        **NO_OWNER,
    )
    ports.due.rescheduled([end.task_id for end in ends if end.verdict.status == Status.PENDING])
    for name, status in {(end.verdict.transition, end.verdict.status) for end in ends}:
        group = [
            end.task_id
            for end in ends
            if (end.verdict.transition, end.verdict.status) == (name, status)
        ]
        if status in TERMINAL:
            record_endings(group, status)
        announce(name, status, group)
    return changed


def _by_task(values: dict[uuid.UUID, Any], default: Any = None) -> Any:
    return Case(
        *(When(pk=task_id, then=value) for task_id, value in values.items()), default=default
    )


def _verdicts(ends: Sequence[EndingDecision]) -> dict[str, Any]:
    """Return the new status, budgets, reason and error of each task."""
    # A cancelled task keeps its reason, because the cancellation request has written it.
    reasons = {
        end.task_id: F("reason") if end.verdict.reason == "CANCELLED" else Value(end.verdict.reason)
        for end in ends
    }
    failed = {end.task_id: Value(end.verdict.failed) for end in ends}
    crashed = {end.task_id: Value(end.verdict.crashed) for end in ends}
    limits = {end.task_id: Value(end.max_attempts) for end in ends if end.max_attempts is not None}
    alone = {end.task_id: Value(False) for end in ends if end.leaves_batch}
    return {
        "status": _by_task({end.task_id: Value(end.verdict.status) for end in ends}),
        "failures": F("failures") + _by_task(failed, Value(0)),
        "crashes": F("crashes") + _by_task(crashed, Value(0)),
        "last_error": _by_task({end.task_id: Value(end.error) for end in ends}, Value("")),
        "reason": _by_task(reasons, Value("")),
        **({"max_attempts": _by_task(limits, F("max_attempts"))} if limits else {}),
        **({"in_batch": _by_task(alone, F("in_batch"))} if alone else {}),
    }


def _closings(ends: Sequence[EndingDecision]) -> dict[str, Any]:
    """Return ``due_at`` and queue of retried tasks, and the cleared columns of ended tasks."""
    closed = [end.task_id for end in ends if end.verdict.status in TERMINAL]
    due_at = {end.task_id: after(end.delay) for end in ends if end.verdict.status == Status.PENDING}
    queues = {
        end.task_id: Value(end.queue)
        for end in ends
        if end.queue is not None and end.verdict.status == Status.PENDING
    }
    return {
        **({"queue": _by_task(queues, F("queue"))} if queues else {}),
        "due_at": _by_task(due_at) if due_at else None,
        "completed_at": Case(When(pk__in=closed, then=DatabaseNow()), default=None),
        "open_key": Case(When(pk__in=closed, then=None), default=F("open_key")),
        "open_unique_key": Case(When(pk__in=closed, then=None), default=F("open_unique_key")),
    }
