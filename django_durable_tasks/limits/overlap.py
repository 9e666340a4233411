"""Admits one run at a time per overlap key. The other tasks of the key wait as PENDING with
``due_at`` NEVER.

A recurring task that does not allow overlaps gives its key to its occurrences. If an
occurrence starts a workflow, the key stays in use until the workflow has ended.

The claim decides. It commits first and then reads which tasks with the key are open, so of
two concurrent claims of one key at least one reads the other and returns its task to PENDING.
The maintenance job ``release_overlaps`` makes the oldest waiting task of each free key due.
If two become due, the next claim returns one of them to PENDING.
"""

from __future__ import annotations

import re
import uuid
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from django.db.models import Exists, OuterRef
from django.db.models.functions import Greatest

from django_durable_tasks.choices import Status
from django_durable_tasks.limits.scopes import Open
from django_durable_tasks.models import WorkflowRun
from django_durable_tasks.models.fields import DatabaseNow
from django_durable_tasks.models.tasks import NEVER, TaskQuerySet
from django_durable_tasks.states import claims, inserts
from django_durable_tasks.states.claims import ClaimedTask
from django_durable_tasks.store import tables

_KEY_OWNING = (Status.QUEUED, Status.RUNNING)
_OWN = re.compile(r"(?:recurring|backfill):([0-9a-f-]{36})")


def open_runs(keys: Iterable[Any]) -> dict[Any, list[Open]]:
    """Return the open workflow runs and tasks of each overlap key, the oldest first; at most three
    statements.
    """
    keys, runs = list(keys), defaultdict[Any, list[Open]](list)
    columns = ("overlap_key", "pk", "status", "due_at")
    rows = tables.tasks().with_overlap_keys(keys).values_list(*columns)
    for overlap_key, task_id, status, due_at in rows:
        held = status == Status.PENDING and due_at is not None and due_at >= NEVER
        runs[overlap_key].append(Open(task_id, running=status == Status.RUNNING, held=held))
    # Read after the tasks: between a task that succeeds and the workflow that it starts there is no
    # gap.
    for overlap_key, roots in occupied_by_workflows(keys).items():
        open_workflows = [Open(root, running=True, workflow=True) for root in roots]
        runs[overlap_key] = open_workflows + runs[overlap_key]
    return runs


def occupied_by_workflows(keys: Iterable[Any] | None = None) -> dict[str, list[uuid.UUID]]:
    """Return the overlap keys (None: all) that open workflows use, each with the outermost runs,
    the oldest first.
    """
    runs = WorkflowRun.objects.using(tables.database()).filter(
        recurring_task__isnull=False, fire_time__isnull=False, completed_at__isnull=True
    )
    selected = None if keys is None else {key for key in keys if key is not None}
    if selected is not None:
        # A key from a template is not that of one schedule: several may share it.
        matches = [_OWN.match(key) for key in selected]
        schedules = [uuid.UUID(match[1]) for match in matches if match is not None]
        if len(schedules) == len(matches):
            runs = runs.filter(recurring_task__in=schedules)
    roots: dict[tuple[Any, Any], set[uuid.UUID]] = defaultdict(set)
    for recurring_task, fire_time, root in runs.values_list("recurring_task", "fire_time", "root"):
        roots[recurring_task, fire_time].add(root)
    if not roots:
        return {}
    starters = tables.tasks().filter(
        recurring_task__in={key for key, _ in roots},
        fire_time__in={time for _, time in roots},
        overlap_key__isnull=False,
    )
    occupied: dict[str, list[uuid.UUID]] = defaultdict(list)
    columns = ("recurring_task", "fire_time", "overlap_key")
    for recurring_task, fire_time, overlap_key in starters.values_list(*columns):
        if overlap_key is not None and (selected is None or overlap_key in selected):
            occupied[overlap_key] += sorted(roots.get((recurring_task, fire_time), ()))
    return {overlap_key: sorted(keys) for overlap_key, keys in occupied.items() if keys}


def admitted(claimed: Sequence[ClaimedTask]) -> list[ClaimedTask]:
    """Return the tasks that may run; return the others to PENDING, where they wait for their
    overlap key.
    """
    by_key: dict[str, list[ClaimedTask]] = defaultdict(list)
    for task in claimed:
        if task.overlap_key is not None:
            by_key[task.overlap_key].append(task)
    if not by_key:
        return list(claimed)
    ids = {task.id for several in by_key.values() for task in several}
    owners = tables.tasks().with_overlap_keys(by_key).filter(status__in=_KEY_OWNING)
    taken = {key for key, task_id in owners.values_list("overlap_key", "pk") if task_id not in ids}
    taken |= occupied_by_workflows(by_key).keys()
    refused = {
        task.id: task.epoch
        for key, several in by_key.items()
        for task in (several if key in taken else several[1:])
    }
    return_to_pending(refused)
    return [task for task in claimed if task.id not in refused]


def return_to_pending(epochs: dict[uuid.UUID, int]) -> int:
    """Return QUEUED tasks of these epochs to PENDING, where they wait for their overlap key; return
    how many.
    """
    if not epochs:
        return 0
    return claims.return_to_pending(tables.tasks().filter(pk__in=list(epochs)), NEVER, epochs)


def release(limit: int) -> int:
    """Make the oldest waiting task of at most ``limit`` free keys due, not before ``run_at``;
    return how many.
    """
    same_key = tables.tasks().filter(overlap_key=OuterRef("overlap_key"), completed_at__isnull=True)
    busy = same_key.exclude(
        status=Status.PENDING, due_at__gte=NEVER, waiting_for_limit__isnull=True
    )
    waiting = tables.tasks().waiting_for_overlap().filter(~Exists(busy))
    keys = _keys_of(waiting, limit)
    taken = occupied_by_workflows() if keys else {}
    if not taken.keys().isdisjoint(keys):
        keys = _keys_of(waiting.exclude(overlap_key__in=list(taken)), limit)
    if not keys:
        return 0
    runs = open_runs(keys).values()
    free = [tasks[0].task_id for tasks in runs if all(task.held for task in tasks)]
    if not free:
        return 0
    releasable = tables.tasks().waiting_for_overlap().filter(pk__in=free)
    return inserts.edit(releasable, len(free), due_at=Greatest("run_at", DatabaseNow()))


def _keys_of(waiting: TaskQuerySet, limit: int) -> list[Any]:
    return list(waiting.order_by().values_list("overlap_key", flat=True).distinct()[:limit])
