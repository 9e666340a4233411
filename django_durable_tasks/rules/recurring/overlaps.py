"""What happens at a fire time while tasks with the same overlap key are open. The decision precedes
all writes.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from django_durable_tasks.rules.recurring.policies import Overlap

RUN = "workflow run"
"""The name of an open workflow run in the reasons of ledger entries."""


@dataclass(frozen=True, slots=True)
class Open:
    """An open task with an overlap key: whether it runs, and whether it waits for another one.

    ``workflow``: it is the open run of a workflow that a task with the key started; ``task_id`` is
    then the id of the run.
    """

    task_id: uuid.UUID
    running: bool = False
    held: bool = False
    workflow: bool = False


@dataclass(frozen=True, slots=True)
class OverlapDecision:
    """Whether the fire runs, whether it waits until the key is free, and which tasks are cancelled
    for it.
    """

    runs: bool
    held: bool = False
    blocked_by: uuid.UUID | None = None
    replaces: tuple[uuid.UUID, ...] = ()


def named(opened: Sequence[Open], key: uuid.UUID) -> str:
    """Return the name of the blocking task or run for the ledger."""
    return f"{RUN if any(one.workflow and one.task_id == key for one in opened) else 'task'} {key}"


def decide(overlap: Overlap, opened: Sequence[Open], *, caught_up: bool = False) -> OverlapDecision:
    """Return the decision of this policy on one fire.

    A fire that is caught up under RUN_ALL_MISSED waits also with SKIP, because that policy requires
    all runs.
    """
    if overlap == Overlap.ALLOW or not opened:
        return OverlapDecision(runs=True)
    waits = OverlapDecision(runs=True, held=True, blocked_by=opened[0].task_id)
    refused = OverlapDecision(runs=False, blocked_by=opened[0].task_id)
    if overlap == Overlap.SKIP:
        return waits if caught_up else refused
    if overlap == Overlap.QUEUE_ALL:
        return waits
    if overlap == Overlap.QUEUE_ONE:
        return refused if any(task.held for task in opened) and not caught_up else waits
    return _displace(overlap, opened, waits)


def _displace(overlap: Overlap, opened: Sequence[Open], waits: OverlapDecision) -> OverlapDecision:
    """CANCEL_RUNNING cancels all tasks, REPLACE_PENDING those that have not begun. The new task
    waits for those that still run.
    """
    running = [task for task in opened if task.running]
    displaced = (
        opened
        if overlap == Overlap.CANCEL_RUNNING
        else [task for task in opened if not task.running]
    )
    return OverlapDecision(
        runs=True,
        held=bool(running),
        blocked_by=running[0].task_id if running else None,
        replaces=tuple(task.task_id for task in displaced),
    )
