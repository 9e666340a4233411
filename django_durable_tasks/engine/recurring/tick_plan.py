"""Decides what one tick writes for each schedule, from values read before; executes no statement.

Called by ``trigger``.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django_durable_tasks.engine.recurring import ledger, occurrence_tasks
from django_durable_tasks.engine.recurring.known_schedules import KnownSchedule
from django_durable_tasks.engine.recurring.ledger import LedgerEntry
from django_durable_tasks.engine.recurring.publish_due import Windows
from django_durable_tasks.engine.recurring.writes import Move
from django_durable_tasks.engine.tenants.quotas import OpenTaskQuota
from django_durable_tasks.rules.recurring.effective import PlannedRun
from django_durable_tasks.rules.recurring.jitter import effective
from django_durable_tasks.rules.recurring.misfires import Choice, ChosenFire
from django_durable_tasks.rules.recurring.overlaps import Open, OverlapDecision, decide, named
from django_durable_tasks.rules.recurring.policies import (
    ENDED,
    MAX_RUNS,
    CatchUp,
    FireOutcome,
    RecurringStatus,
)
from django_durable_tasks.rules.tasks.new_task import NewTask

logger = logging.getLogger("django_durable_tasks.recurrence")


@dataclass
class Tick:
    """The writes of one transaction, collected before the first one is executed."""

    now: datetime
    term: int | None
    alone: bool = False
    opened: dict[Any, list[Open]] = field(default_factory=dict)
    keys: dict[tuple[int, str | None], Any] = field(default_factory=dict)
    recorded: set[tuple[Any, datetime | None]] | None = None
    entries: list[LedgerEntry] = field(default_factory=list)
    new_tasks: list[NewTask] = field(default_factory=list)
    replaced: list[Any] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    schedules: dict[Any, KnownSchedule] = field(default_factory=dict)
    late: list[LedgerEntry] = field(default_factory=list)
    windows: Windows | None = None
    quotas: dict[int, OpenTaskQuota] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class FirePlan:
    """What a tick decides about one schedule, from the watermark and run count that it read."""

    schedule: KnownSchedule
    watermark_at: datetime
    runs_count: int
    choice: Choice


def decide_plan(tick: Tick, plan: FirePlan) -> None:
    """Add the outcome of each fire time of a plan, and the new watermark, to the tick."""
    row, choice = plan.schedule, plan.choice
    for closed_range in row.agenda.closed(plan.watermark_at, choice.through):
        tick.entries.append(
            _range(tick, row, closed_range, FireOutcome(closed_range.outcome), closed_range.reason)
        )
    for missed in choice.missed:
        tick.entries.append(_range(tick, row, missed, FireOutcome.MISSED, missed.reason))
        logger.warning(
            "Recurring task %s missed %d fires (%s).", row.name, missed.count, missed.reason
        )
    left = None if row.max_runs is None else max(0, row.max_runs - plan.runs_count)
    ran = 0
    for number, chosen in enumerate(choice.runs):
        if left is not None and ran >= left:
            break
        if tick.recorded and (row.pk, chosen.planned.nominal) in tick.recorded:
            continue
        following = (
            choice.runs[number + 1].planned if number + 1 < len(choice.runs) else choice.following
        )
        ran += _run(tick, row, chosen, following)
    tick.moves.append(_move(row, choice, ran, left, tick.now))


def _range(
    tick: Tick, row: KnownSchedule, fires: Any, outcome: FireOutcome, reason: str
) -> LedgerEntry:
    return LedgerEntry(
        recurring_task_id=row.pk,
        tenant_id=row.tenant_id,
        fire_time=fires.first,
        last_fire_time=fires.last,
        count=fires.count,
        count_is_exact=fires.exact,
        outcome=outcome,
        reason=reason[: ledger.REASON_MAX],
        term=tick.term,
    )


def _run(tick: Tick, row: KnownSchedule, chosen: ChosenFire, following: PlannedRun | None) -> int:
    """Add the task of one fire time, or a ledger entry with the reason why it does not run.

    Return the number of tasks added, 0 or 1.
    """
    planned = chosen.planned
    when = _effective(tick, row, chosen, following)
    if row.expires_in is not None and planned.at + timedelta(seconds=row.expires_in) <= tick.now:
        return _not_run(tick, row, planned, FireOutcome.EXPIRED, f"{row.expires_in:g} s")
    overlap_key = row.template.overlap_key
    opened = tick.opened.setdefault(overlap_key, []) if overlap_key is not None else []
    all_missed = chosen.caught_up and row.policy.catch_up == CatchUp.RUN_ALL_MISSED
    verdict = decide(row.overlap, opened, caught_up=all_missed)
    blocker = _blocking_task(tick, row, opened, verdict)
    if blocker is not None:
        why = f"{named(opened, blocker)} is open"
        return _not_run(tick, row, planned, FireOutcome.SKIPPED_OVERLAP, why, blocker)
    quota = tick.quotas.get(row.tenant_id)
    if quota is not None and not quota.take():
        tick.refused.add(row.tenant_id)
        why = f"open_tasks, {quota.limit:,}"
        return _not_run(tick, row, planned, FireOutcome.SKIPPED_QUOTA, why)
    task = occurrence_tasks.occurrence_task(row.template, planned, when, verdict)
    _remove_replaced(tick, opened, verdict)
    opened.append(Open(task.id, held=verdict.held))
    tick.new_tasks.append(task)
    if task.unique_key is not None:
        tick.keys[row.tenant_id, task.unique_key] = task.id
    outcome = FireOutcome.ROLLED if planned.rolled else FireOutcome.DISPATCHED
    reason = "; ".join((*(("caught up",) if chosen.caught_up else ()), *planned.remarks))[
        : ledger.REASON_MAX
    ]
    entry = occurrence_tasks.entry(
        row.template, planned, outcome, term=tick.term, task=task, reason=reason
    )
    tick.entries.append(entry)
    tick.late += [entry] if chosen.caught_up else []
    return 1


def _not_run(
    tick: Tick,
    row: KnownSchedule,
    planned: PlannedRun,
    outcome: FireOutcome,
    reason: str,
    blocker: Any = None,
) -> int:
    tick.entries.append(
        occurrence_tasks.entry(
            row.template, planned, outcome, term=tick.term, blocked_by=blocker, reason=reason
        )
    )
    return 0


def _blocking_task(
    tick: Tick, row: KnownSchedule, opened: Sequence[Open], verdict: OverlapDecision
) -> Any:
    """Return the open task that prevents the run, by its overlap key or unique key, or None."""
    if not verdict.runs:
        return verdict.blocked_by
    owner = tick.keys.get((row.tenant_id, row.template.unique_key))
    freed = {task.task_id for task in opened if not task.running} & set(verdict.replaces)
    # A task of this tick is cancelled after it was inserted, so it releases its key too late.
    created = {task.id for task in tick.new_tasks} if owner in freed else set()
    return None if owner in freed - created else owner


def _effective(
    tick: Tick, row: KnownSchedule, chosen: ChosenFire, following: PlannedRun | None
) -> datetime:
    if chosen.caught_up:
        return tick.now + timedelta(seconds=chosen.delay)
    if not row.jitter and not row.jitter_percent:
        return chosen.planned.at
    return effective(
        chosen.planned,
        following.at if following else None,
        str(row.pk),
        row.jitter,
        row.jitter_percent,
    )


def _remove_replaced(tick: Tick, opened: list[Open], verdict: OverlapDecision) -> None:
    tick.replaced += verdict.replaces
    opened[:] = [task for task in opened if task.task_id not in verdict.replaces or task.running]


def _move(row: KnownSchedule, choice: Choice, ran: int, left: int | None, now: datetime) -> Move:
    status, reason = None, ""
    if left is not None and ran >= left:
        status, reason = RecurringStatus.CANCELLED, MAX_RUNS
    elif choice.following is None:
        status, reason = RecurringStatus.CANCELLED, ENDED
    return Move(
        row.pk,
        row.revision,
        choice.following.at if choice.following and not status else None,
        choice.through,
        ran,
        now if ran else None,
        status,
        reason,
    )
