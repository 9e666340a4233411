"""What a backfill does with each fire time of its range: create a task, replay the existing one, or
leave it unchanged.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from django_durable_tasks.rules.recurring.effective import SkippedRange
from django_durable_tasks.rules.states import OPEN, Status
from django_durable_tasks.rules.workflows.plan import OPEN_RUN


class Reprocess(StrEnum):
    """Which tasks of the range run again: none, the failed ones, or all that have ended (as in
    Airflow).
    """

    NONE = "NONE"
    FAILED = "FAILED"
    ALL = "ALL"


class BackfillAction(StrEnum):
    """The action for a fire time."""

    CREATED = "CREATED"
    REPLAYED = "REPLAYED"
    UNCHANGED = "UNCHANGED"


@dataclass(frozen=True, slots=True)
class RecordedFire:
    """The ledger entry of a fire time: outcome and task. An empty ``status`` means that the task
    was pruned.

    ``run`` is the workflow run that the task started, with its status.
    """

    outcome: str
    task_id: uuid.UUID | None = None
    status: str = ""
    run: tuple[uuid.UUID, str] | None = None


@dataclass(frozen=True, slots=True)
class BackfillStep:
    """The action for one fire time (UTC), its reason, and the task that it changes."""

    fire_time: datetime
    action: BackfillAction
    why: str
    task_id: uuid.UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillReport:
    """What a backfill of [start, end] did, or with ``dry_run`` would do, for each fire time.

    ``remark`` explains why the range, or a part of it, has no fire time.
    """

    start: datetime
    end: datetime
    dry_run: bool
    steps: tuple[BackfillStep, ...]
    remark: str = ""

    def of(self, action: BackfillAction) -> tuple[BackfillStep, ...]:
        """Return the steps of this kind."""
        return tuple(step for step in self.steps if step.action == action)

    @property
    def created(self) -> int:
        """How many fire times got a new task."""
        return len(self.of(BackfillAction.CREATED))

    @property
    def replayed(self) -> int:
        """How many tasks run again."""
        return len(self.of(BackfillAction.REPLAYED))

    @property
    def left(self) -> int:
        """How many fire times are left unchanged."""
        return len(self.of(BackfillAction.UNCHANGED))


def step(
    fire_time: datetime,
    closed: SkippedRange | None,
    entry: RecordedFire | None,
    reprocess: Reprocess,
) -> BackfillStep:
    """Return the action for a fire time; ``closed`` is the reason if the current schedule does not
    run it.
    """
    if entry is None or entry.task_id is None:
        if closed is not None:
            return BackfillStep(fire_time, BackfillAction.UNCHANGED, closed.reason)
        return BackfillStep(
            fire_time, BackfillAction.CREATED, f"was {entry.outcome}" if entry else "had no run"
        )
    if not entry.status:
        return BackfillStep(
            fire_time, BackfillAction.UNCHANGED, "it ran; its task is no longer kept", entry.task_id
        )
    if entry.run is not None and (entry.run[1] in OPEN_RUN or reprocess != Reprocess.ALL):
        return BackfillStep(
            fire_time,
            BackfillAction.UNCHANGED,
            f"its workflow run {entry.run[0]} is {entry.run[1]}",
            entry.task_id,
        )
    if _again(entry.status, reprocess):
        return BackfillStep(
            fire_time, BackfillAction.REPLAYED, f"was {entry.status}", entry.task_id
        )
    return BackfillStep(
        fire_time, BackfillAction.UNCHANGED, f"its task is {entry.status}", entry.task_id
    )


def _again(status: str, reprocess: Reprocess) -> bool:
    if reprocess == Reprocess.FAILED:
        return status == Status.FAILED
    return reprocess == Reprocess.ALL and status not in OPEN
