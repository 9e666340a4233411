"""A slot holds one run at a time: the others of its schedule (or key) are held as PENDING rows until it is free.

A task that starts a workflow hands its slot on to it: the slot is free when the workflow's last run has ended.

A claim is the check: it commits first and looks then, so of two claims of one slot at least one sees the other. The
sweep lets the oldest go on when nobody holds the slot; whoever goes twice is caught by the next claim.
"""

from __future__ import annotations

import re
import uuid
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from django.db.models import Exists, OuterRef
from django.db.models.functions import Greatest

from django_durable_tasks.lifecycle import transitions
from django_durable_tasks.lifecycle.transitions import RING_COLUMNS
from django_durable_tasks.models import WorkflowRun
from django_durable_tasks.models.clock import DatabaseNow
from django_durable_tasks.models.task import HELD, TaskQuerySet
from django_durable_tasks.rules.overlaps import Open
from django_durable_tasks.rules.states import Status

_SLOT, _EPOCH = RING_COLUMNS.index("slot"), RING_COLUMNS.index("epoch")
_HOLDING = (Status.QUEUED, Status.RUNNING)
_OWN = re.compile(r"(?:recurring|backfill):([0-9a-f-]{36})")


def opened(slots: Iterable[Any]) -> dict[Any, list[Open]]:
    """Return what is open in these slots: runs of workflows, then tasks, the oldest first; two statements or three."""
    wanted, behind = list(slots), defaultdict[Any, list[Open]](list)
    rows = transitions.tasks().in_slots(wanted).values_list("slot", "pk", "status", "alarm_at")
    for slot, task_id, status, alarm_at in rows:
        held = status == Status.PENDING and alarm_at is not None and alarm_at >= HELD
        behind[slot].append(Open(task_id, running=status == Status.RUNNING, held=held))
    # Read after the tasks: between a task that succeeds and the workflow that it starts there is no gap.
    for slot, roots in held_by_workflows(wanted).items():
        behind[slot] = [Open(root, running=True, workflow=True) for root in roots] + behind[slot]
    return behind


def held_by_workflows(slots: Iterable[Any] | None = None) -> dict[str, list[uuid.UUID]]:
    """Return which of these slots (None: of all) open workflows hold, with the outermost runs, the oldest first."""
    runs = WorkflowRun.objects.using(transitions.database()).filter(
        recurring_task__isnull=False, fire_time__isnull=False, completed_at__isnull=True
    )
    wanted = None if slots is None else {slot for slot in slots if slot is not None}
    schedules = None if wanted is None else {_schedule_of(slot) for slot in wanted}
    if schedules is not None and None not in schedules:
        runs = runs.filter(recurring_task__in=schedules)
    roots: dict[tuple[Any, Any], set[uuid.UUID]] = defaultdict(set)
    for recurring_task, fire_time, root in runs.values_list("recurring_task", "fire_time", "root"):
        roots[recurring_task, fire_time].add(root)
    if not roots:
        return {}
    born_of = transitions.tasks().filter(
        recurring_task__in={key for key, _ in roots}, fire_time__in={time for _, time in roots}, slot__isnull=False
    )
    found: dict[str, list[uuid.UUID]] = defaultdict(list)
    for recurring_task, fire_time, slot in born_of.values_list("recurring_task", "fire_time", "slot"):
        if slot is not None and (wanted is None or slot in wanted):
            found[slot] += sorted(roots.get((recurring_task, fire_time), ()))
    return {slot: sorted(keys) for slot, keys in found.items() if keys}


def _schedule_of(slot: str) -> uuid.UUID | None:
    """Return the schedule whose own slot this is; None for a slot by a key, which several may share."""
    own = _OWN.match(slot)
    return uuid.UUID(own[1]) if own else None


def kept(claimed: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
    """Return those RING_COLUMNS whose slot is theirs; the others are handed back and held."""
    mine: dict[str, list[Sequence[Any]]] = defaultdict(list)
    for row in claimed:
        if row[_SLOT] is not None:
            mine[row[_SLOT]].append(row)
    if not mine:
        return list(claimed)
    ids = {row[0] for rows in mine.values() for row in rows}
    holders = transitions.tasks().in_slots(mine).filter(status__in=_HOLDING)
    taken = {slot for slot, task_id in holders.values_list("slot", "pk") if task_id not in ids}
    taken |= held_by_workflows(mine).keys()
    refused = [row for slot, rows in mine.items() for row in (rows if slot in taken else rows[1:])]
    hold({row[0]: row[_EPOCH] for row in refused})
    held = {row[0] for row in refused}
    return [row for row in claimed if row[0] not in held]


def hold(epochs: dict[uuid.UUID, int]) -> int:
    """QUEUED rows in these epochs go back and wait for their slot."""
    return transitions.hand_back(transitions.tasks().filter(pk__in=list(epochs)), HELD, epochs) if epochs else 0


def let_go(limit: int) -> int:
    """Let the oldest held row of so many free slots go on, not before its ``run_at``; return how many went."""
    others = transitions.tasks().filter(slot=OuterRef("slot"), completed_at__isnull=True)
    busy = others.exclude(status=Status.PENDING, alarm_at__gte=HELD, held_for__isnull=True)
    waiting = transitions.tasks().held().filter(~Exists(busy))
    slots = _slots_of(waiting, limit)
    taken = held_by_workflows() if slots else {}
    if not taken.keys().isdisjoint(slots):
        slots = _slots_of(waiting.exclude(slot__in=list(taken)), limit)
    if not slots:
        return 0
    free = [tasks[0].task_id for tasks in opened(slots).values() if all(task.held for task in tasks)]
    going = transitions.tasks().held().filter(pk__in=free)
    return transitions.edit(going, len(free), alarm_at=Greatest("run_at", DatabaseNow())) if free else 0


def _slots_of(waiting: TaskQuerySet, limit: int) -> list[Any]:
    return list(waiting.order_by().values_list("slot", flat=True).distinct()[:limit])
