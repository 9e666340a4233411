"""What happens at a fire time that is late, missed, crowded, overlapping or backfilled."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from itertools import islice

from django_durable_tasks.choices import CatchUp, CatchUpOrder, FireOutcome, Overlap
from django_durable_tasks.limits.scopes import Open
from django_durable_tasks.schedules.agenda import Agenda, PlannedRun, SkippedRange
from django_durable_tasks.schedules.timetables.types import TICK, Direction, walk

QUARANTINED = "QUARANTINED"
"""The status reason of a schedule that could not be triggered; the row also contains the error."""
MAX_RUNS = "MAX_RUNS"
ENDED = "ENDED"
"""The status reasons of a schedule that ended because of its own bounds."""


# Distributes fires that would start at the same time. The delay is a hash of schedule and fire
# time, so it is reproducible.


_WHOLE = 2**64
_MILLISECOND = timedelta(milliseconds=1)


def effective(
    planned: PlannedRun, next_at: datetime | None, seed: str, seconds: float, percent: float
) -> datetime:
    """Return when the fire runs: ``at`` plus up to ``seconds``, or up to ``percent`` of the time to
    the next fire.

    The result is always before the next fire, as in Temporal. Without a next fire, ``percent`` has
    no effect.
    """
    way = None if next_at is None else next_at - planned.at
    span = timedelta(seconds=seconds) if seconds or way is None else way * (percent / 100)
    if way is not None:
        span = min(span, max(way - _MILLISECOND, timedelta()))
    seed_bytes = f"{seed}|{planned.nominal.astimezone(UTC).isoformat()}".encode()
    share = int.from_bytes(blake2b(seed_bytes, digest_size=8).digest(), "big") / _WHOLE
    return planned.at + span * share


# Which fire times since the watermark run, and which are recorded as missed. The work is bounded.
#
# A fire within the grace period is late, not missed (as with Quartz's misfireThreshold). An older
# one is missed, and the policy decides about it. A range of missed fires is one ledger entry,
# independent of their number.


AT_ONCE = 1_000
"""The maximum number of fires of one schedule per decision; the next tick continues."""

CATCHUP_WINDOW, MAX_CATCHUP_RUNS, COALESCED, SKIPPED = (
    "CATCHUP_WINDOW",
    "MAX_CATCHUP_RUNS",
    "COALESCED",
    "SKIP_MISSED",
)
_IN_ORDER = 1e-6  # seconds between runs that wait for each other, to keep their order


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The misfire policy of a schedule: its columns of these names; durations in seconds."""

    catch_up_mode: CatchUp = CatchUp.RUN_ONE_NOW
    misfire_grace: float = 60.0
    catchup_window: float | None = None
    max_catchup_runs: int = 100
    catchup_order: CatchUpOrder = CatchUpOrder.OLDEST
    catchup_pace: float = 0.0


@dataclass(frozen=True, slots=True)
class ChosenFire:
    """A fire that runs. One that is caught up starts at least ``delay`` seconds after now."""

    planned: PlannedRun
    caught_up: bool = False
    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class Choice:
    """The fires that run, in the order of their start, and those that were missed; covers every
    fire up to ``through``.
    """

    runs: tuple[ChosenFire, ...]
    missed: tuple[SkippedRange, ...]
    through: datetime
    following: PlannedRun | None


def choose(agenda: Agenda, watermark: datetime, now: datetime, policy: Policy) -> Choice:
    """Decide about every fire after the watermark up to ``now``."""
    first = _next(agenda, watermark)
    if first is None or first.at > now:
        return Choice((), (), max(watermark, now), first)
    on_time_from = now - timedelta(seconds=policy.misfire_grace)
    if first.at >= on_time_from:
        return _on_time(agenda, first, now)
    missed, caught_up = _misfired(agenda, first, watermark, on_time_from, now, policy)
    fresh = _next(agenda, on_time_from - TICK)
    if fresh is None or fresh.at > now:
        return Choice(tuple(caught_up), tuple(missed), now, fresh)
    on_time = _on_time(agenda, fresh, now)
    if policy.catch_up_mode == CatchUp.RUN_ONE_NOW:
        missed = [skipped(agenda, first, _last(agenda, on_time_from), watermark, COALESCED)]
        caught_up = []
    return Choice((*caught_up, *on_time.runs), tuple(missed), on_time.through, on_time.following)


def _next(agenda: Agenda, after: datetime) -> PlannedRun | None:
    """Return the next fire. Raises an error if it is not after the previous one, because the loop
    would not end.
    """
    planned = agenda.next(after)
    if planned is not None and planned.at <= after:
        raise AssertionError(
            f"The timetable says that after {after.isoformat()} comes {planned.at.isoformat()}."
        )
    return planned


def _on_time(agenda: Agenda, first: PlannedRun, now: datetime) -> Choice:
    runs, following = [ChosenFire(first)], _next(agenda, first.at)
    while following is not None and following.at <= now and len(runs) < AT_ONCE:
        runs.append(ChosenFire(following))
        following = _next(agenda, following.at)
    through = now if following is None or following.at > now else runs[-1].planned.at
    return Choice(tuple(runs), (), through, following)


def _last(agenda: Agenda, before: datetime) -> PlannedRun:
    last = agenda.previous(before)
    if last is None:
        raise AssertionError(
            f"The timetable fires before {before.isoformat()}, but has no previous fire there."
        )
    return last


def skipped(
    agenda: Agenda,
    first: PlannedRun,
    last: PlannedRun,
    after: datetime,
    reason: str,
    outcome: FireOutcome = FireOutcome.MISSED,
) -> SkippedRange:
    """Return the range of these two runs and all between them; ``first`` is the next after
    ``after``.
    """
    counted = agenda.count(after, last.at)
    begin, end = sorted((first.nominal, last.nominal))  # a roll can change the order of two fires
    return SkippedRange(begin, end, max(1, counted.number), counted.exact, outcome, reason)


def _misfired(
    agenda: Agenda,
    first: PlannedRun,
    watermark: datetime,
    before: datetime,
    now: datetime,
    policy: Policy,
) -> tuple[list[SkippedRange], list[ChosenFire]]:
    last = _last(agenda, before)
    if policy.catch_up_mode == CatchUp.SKIP_MISSED:
        return [skipped(agenda, first, last, watermark, SKIPPED)], []
    most = 1 if policy.catch_up_mode == CatchUp.RUN_ONE_NOW else policy.max_catchup_runs
    oldest = (
        max(watermark, now - timedelta(seconds=policy.catchup_window))
        if policy.catchup_window is not None
        else watermark
    )
    backwards = walk(agenda, before, way=Direction.BACK)
    newest = [planned for planned in islice(backwards, most) if planned.at > oldest]
    # The ranges before the oldest fire that runs: those outside of the catch-up window, and those
    # above the catch-up limit.
    missed = []
    if oldest > watermark and first.at <= oldest:
        shut_out = min(_last(agenda, oldest + TICK), last, key=lambda planned: planned.at)
        missed.append(skipped(agenda, first, shut_out, watermark, CATCHUP_WINDOW))
    begin = agenda.next(oldest)
    if newest and begin is not None and begin.at < newest[-1].at:
        reason = COALESCED if policy.catch_up_mode == CatchUp.RUN_ONE_NOW else MAX_CATCHUP_RUNS
        missed.append(skipped(agenda, begin, _last(agenda, newest[-1].at), oldest, reason))
    ordered = newest if policy.catchup_order == CatchUpOrder.NEWEST else newest[::-1]
    return missed, [
        ChosenFire(planned, True, number * max(policy.catchup_pace, _IN_ORDER))
        for number, planned in enumerate(ordered)
    ]


# What happens at a fire time while tasks with the same overlap key are open. The decision precedes
# all writes.


RUN = "workflow run"
"""The name of an open workflow run in the reasons of ledger entries."""


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
    return (
        f"{RUN if any(task.workflow and task.task_id == key for task in opened) else 'task'} {key}"
    )


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
    # CANCEL_RUNNING cancels all tasks, REPLACE_PENDING those that have not begun. The new task
    # waits for those that still run.
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
