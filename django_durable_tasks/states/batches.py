"""The transitions of batches: many tasks start together, and their successes are written
together.

Each task keeps its own guard: status, epoch and run id.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db.models import Case, Exists, F, JSONField, Value, When
from django.db.models.functions import Coalesce

from django_durable_tasks.choices import Status
from django_durable_tasks.models import QueueControl
from django_durable_tasks.models.fields import DatabaseNow, StatementTime, constant
from django_durable_tasks.models.tasks import TaskQuerySet
from django_durable_tasks.states import attempt_log, guarded_update
from django_durable_tasks.states.claims import RUN_COLUMNS, run_of, started_runs
from django_durable_tasks.states.endings import expire
from django_durable_tasks.states.inserts import encrypted_result, key_after
from django_durable_tasks.states.runs import start_writes
from django_durable_tasks.store.dialects import POSTGRESQL, sql, verb
from django_durable_tasks.store.errors import retry_on_deadlock
from django_durable_tasks.store.tables import NOW, atomic, first_of_each, read, tasks
from django_durable_tasks.task_values import Run

_PAGES = 4
"""How many pages of due tasks are read if other processes have locked tasks of the first ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Success:
    """A success to record: the run, its result as JSON, and how many seconds after the start of
    its batch the function was called.
    """

    run: Run
    result: str | None
    wait: float


@verb
def take_due(
    queue: str, name: str, run_ids: Sequence[uuid.UUID], node: uuid.UUID, lease: float
) -> list[Run]:
    """PENDING to RUNNING for due tasks of this name in this queue that run in batches, the most
    urgent first; none if the queue is paused.

    At most one task is started for each of ``run_ids``. Expired tasks among them become EXPIRED.
    ``lease`` is in seconds.
    """
    # If others have locked some of the first due tasks, a bounded number of further pages is read.
    started, seen = list[Run](), list[uuid.UUID]()
    for _ in range(_PAGES):
        remaining = len(run_ids) - len(started)
        page = due_in_batch(queue, name, remaining, seen)
        if page:
            due = tasks().waiting_for_batch().filter(pk__in=page, due_at__lte=NOW)
            started += take(due, run_ids[len(started) :], node, lease)
        if len(page) < remaining or len(started) == len(run_ids):
            break
        seen += page
    return started


@take_due.on(POSTGRESQL)
def _take_due_in_one_statement(
    queue: str, name: str, run_ids: Sequence[uuid.UUID], node: uuid.UUID, lease: float
) -> list[Run]:
    parameters = {
        "queue": queue,
        "name": name,
        "limit": len(run_ids),
        "run_ids": list(run_ids),
        "node": node,
        "lease": lease,
    }
    rows, run_id = read(sql("take"), parameters, binary=True), RUN_COLUMNS.index("run_id")
    late = [row[0] for row in rows if row[run_id] is None]
    if late:
        expire(tasks().filter(pk__in=late, expires_at__lte=NOW), len(late))
    started = [run_of(row) for row in rows if row[run_id] is not None]
    guarded_update.announce("take", Status.RUNNING, [run.task_id for run in started])
    return started


def due_in_batch(
    queue: str, name: str, limit: int, without: Sequence[uuid.UUID] = ()
) -> list[uuid.UUID]:
    """Return the first due tasks of this name in this queue that run in batches, the most urgent
    first; none if the queue is paused. One short index scan for each priority.
    """
    paused = QueueControl.objects.filter(name=queue, paused_at__isnull=False)
    due = (
        tasks()
        .waiting_for_batch()
        .filter(~Exists(paused), queue=queue, name=name, due_at__lte=StatementTime())
        .exclude(pk__in=without)
    )
    scans = [(due.filter(priority=level).order_by("due_at"), limit) for level in range(9, -1, -1)]
    rows = first_of_each(scans, ("pk", "priority", "due_at"))
    return [row[0] for row in sorted(rows, key=lambda row: (-row[1], row[2]))[:limit]]


@retry_on_deadlock
def take(
    queryset: TaskQuerySet, run_ids: Sequence[uuid.UUID], node: uuid.UUID, lease: float
) -> list[Run]:
    """PENDING to RUNNING for tasks of the queryset, by the process that will run them.

    At most one task is started for each of ``run_ids``. Expired tasks among them become EXPIRED.
    ``lease`` is in seconds.
    """
    with atomic():
        pairs = _in_time(
            guarded_update.locked(queryset.filter(status=Status.PENDING), len(run_ids))
        )
        whens = (
            When(pk=task_id, then=Value(run_id))
            for (task_id, _), run_id in zip(pairs, run_ids, strict=False)
        )
        run_id_of_task = Case(*whens, default=None)
        # ready_at first: MySQL and MariaDB evaluate the assignments from left to right.
        moved = guarded_update.move(
            "take",
            pairs,
            Status.RUNNING,
            ready_at=F("due_at"),
            queued_at=DatabaseNow(),
            **start_writes(run_id_of_task, node, lease),
            waiting_for_limit=None,
            publish_count=0,
        )
        if not moved:
            return []
        started = tasks().filter(pk__in=[task_id for task_id, _ in pairs])
        return started_runs(started.order_by("-priority", "ready_at", "id"))


def _in_time(pairs: Sequence[guarded_update.Pair]) -> list[guarded_update.Pair]:
    """Return the locked tasks that have not expired; set the others to EXPIRED."""
    expired = tasks().filter(pk__in=[task_id for task_id, _ in pairs], expires_at__lte=NOW)
    late = set(expired.values_list("pk", flat=True)) if pairs else set()
    if not late:
        return list(pairs)
    guarded_update.move(
        "expire",
        [pair for pair in pairs if pair[0] in late],
        Status.EXPIRED,
        reason="EXPIRED",
        **guarded_update.CLOSED,
    )
    return [pair for pair in pairs if pair[0] not in late]


def succeed_many(successes: Sequence[Success], worker: str) -> set[uuid.UUID]:
    """RUNNING to SUCCESS for these runs, with log entries and ending events; return the run ids of
    those that were accepted. The others were fenced.
    """
    with guarded_update.transaction_of_successes([success.run for success in successes]):
        stored = [
            encrypted_result(success.result, success.run.tenant_id, success.run.task_id)
            for success in successes
        ]
        accepted = _succeed_many(successes, stored, worker)
        runs = [success.run for success in successes if success.run.run_id in accepted]
        guarded_update.announce("succeed", Status.SUCCESS, [run.task_id for run in runs], runs)
    return accepted


@verb
def _succeed_many(
    successes: Sequence[Success], stored: Sequence[tuple[str | None, str | None]], worker: str
) -> set[uuid.UUID]:
    with atomic():
        pairs = guarded_update.locked(owned([success.run for success in successes]))
        accepted = {task_id for task_id, _ in pairs}
        results, keys, starts = list[When](), list[When](), list[When]()
        for success, (result, key) in zip(successes, stored, strict=True):
            task_id = success.run.task_id
            start = success.run.started_at + timedelta(seconds=success.wait)
            starts.append(When(pk=task_id, then=constant(start)))
            if result is not None:
                results.append(When(pk=task_id, then=Value(json.loads(result), JSONField())))
            if key is not None:
                keys.append(When(pk=task_id, then=key_after(key)))
        new_keys = {"encryption_key": Case(*keys, default=F("encryption_key"))} if keys else {}
        running = tasks().filter(
            guarded_update.matches_epochs(pairs), status__standing=[Status.RUNNING]
        )
        running.update(
            status=Status.SUCCESS,
            epoch=F("epoch") + 1,
            updated_at=DatabaseNow(),
            reason="",
            started_at=Case(*starts, default=F("started_at")),
            result=Case(*results, default=None) if results else None,
            **new_keys,
            **guarded_update.CLOSED,
        )
        attempt_log.log_successes(
            [
                success.run._replace(
                    started_at=success.run.started_at + timedelta(seconds=success.wait)
                )
                for success in successes
                if success.run.task_id in accepted
            ],
            worker,
        )
        attempt_log.insert_ending_events(sorted(accepted), Status.SUCCESS)
    return {success.run.run_id for success in successes if success.run.task_id in accepted}


@_succeed_many.on(POSTGRESQL)
def _succeed_many_in_one_statement(
    successes: Sequence[Success], stored: Sequence[tuple[str | None, str | None]], worker: str
) -> set[uuid.UUID]:
    # Joined texts, because the driver would convert the elements of each array one by one.
    parameters = {
        "ids": ",".join([success.run.task_id.hex for success in successes]),
        "epochs": ",".join([str(success.run.epoch) for success in successes]),
        "runs": ",".join([success.run.run_id.hex for success in successes]),
        "results": _unless_all_null([result for result, _ in stored]),
        "keys": _unless_all_null([key for _, key in stored]),
        "waits": ",".join([str(success.wait) for success in successes]),
        "celery_ids": ",".join([success.run.celery_id for success in successes]),
        "worker": worker,
    }
    return {run_id for (run_id,) in read(sql("succeed_many"), parameters, binary=True)}


def _unless_all_null(values: Sequence[str | None]) -> list[str | None] | None:
    """Return the values as an array, None if all are NULL: unnest() fills shorter arrays up."""
    return list(values) if any(value is not None for value in values) else None


def owned(runs: Sequence[Run]) -> TaskQuerySet:
    """Return the tasks that these runs still own."""
    rows = tasks().filter(
        guarded_update.matches_epochs((run.task_id, run.epoch) for run in runs),
        status__standing=[Status.RUNNING],
    )
    return rows.filter(run_id__in=[run.run_id for run in runs])


@retry_on_deadlock
def undo_starts(runs: Sequence[Run]) -> int:
    """RUNNING to PENDING for runs whose functions were not called; return how many.

    No failure or crash is counted. ``attempts`` stays, because it counts starts and never
    decreases. Tasks whose cancellation was requested are left out.
    """
    with atomic():
        pairs = guarded_update.locked(owned(runs).filter(cancel_requested_at__isnull=True))
        writes: dict[str, Any] = {**guarded_update.NO_OWNER, "node": None}
        return guarded_update.move(
            "undo_start", pairs, Status.PENDING, due_at=Coalesce(F("ready_at"), NOW), **writes
        )
