"""Which fire times since the watermark run, and which are recorded as missed. The work is bounded.

A fire within the grace period is late, not missed (as with Quartz's misfireThreshold). An older one
is missed, and the policy decides about it. A range of missed fires is one ledger entry, independent
of their number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice

from django_durable_tasks.rules.recurring.effective import Agenda, PlannedRun
from django_durable_tasks.rules.recurring.policies import CatchUp, CatchUpOrder

AT_ONCE = 1_000
"""The maximum number of fires of one schedule per decision; the next tick continues."""

CATCHUP_WINDOW, MAX_CATCHUP_RUNS, COALESCED, SKIPPED = (
    "CATCHUP_WINDOW",
    "MAX_CATCHUP_RUNS",
    "COALESCED",
    "SKIP_MISSED",
)
_INSTANT = timedelta(microseconds=1)
_IN_ORDER = 1e-6  # seconds between runs that wait for each other, to keep their order


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The misfire policy of a schedule; durations in seconds."""

    catch_up: CatchUp = CatchUp.RUN_ONE_NOW
    grace: float = 60.0
    window: float | None = None
    max_runs: int = 100
    order: CatchUpOrder = CatchUpOrder.OLDEST
    pace: float = 0.0


@dataclass(frozen=True, slots=True)
class ChosenFire:
    """A fire that runs. One that is caught up starts at least ``delay`` seconds after now."""

    planned: PlannedRun
    caught_up: bool = False
    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class Missed:
    """A range of fires that do not run: the fire times of the first and the last, their number, and
    the reason.
    """

    first: datetime
    last: datetime
    count: int
    exact: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Choice:
    """The fires that run, in the order of their start, and those that were missed; covers every
    fire up to ``through``.
    """

    runs: tuple[ChosenFire, ...]
    missed: tuple[Missed, ...]
    through: datetime
    following: PlannedRun | None


def choose(agenda: Agenda, watermark: datetime, now: datetime, policy: Policy) -> Choice:
    """Decide about every fire after the watermark up to ``now``."""
    first = _next(agenda, watermark)
    if first is None or first.at > now:
        return Choice((), (), max(watermark, now), first)
    on_time_from = now - timedelta(seconds=policy.grace)
    if first.at >= on_time_from:
        return _on_time(agenda, first, now)
    missed, caught_up = _misfired(agenda, first, watermark, on_time_from, now, policy)
    fresh = _next(agenda, on_time_from - _INSTANT)
    if fresh is None or fresh.at > now:
        return Choice(tuple(caught_up), tuple(missed), now, fresh)
    on_time = _on_time(agenda, fresh, now)
    if policy.catch_up == CatchUp.RUN_ONE_NOW:
        missed = [_range(agenda, first, _last(agenda, on_time_from), watermark, COALESCED)]
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


def _range(
    agenda: Agenda, first: PlannedRun, last: PlannedRun, after: datetime, reason: str
) -> Missed:
    counted = agenda.count(after, last.at)
    begin, end = sorted((first.nominal, last.nominal))  # a roll can change the order of two fires
    return Missed(begin, end, max(1, counted.number), counted.exact, reason)


def _misfired(
    agenda: Agenda,
    first: PlannedRun,
    watermark: datetime,
    before: datetime,
    now: datetime,
    policy: Policy,
) -> tuple[list[Missed], list[ChosenFire]]:
    last = _last(agenda, before)
    if policy.catch_up == CatchUp.SKIP_MISSED:
        return [_range(agenda, first, last, watermark, SKIPPED)], []
    most = 1 if policy.catch_up == CatchUp.RUN_ONE_NOW else policy.max_runs
    oldest = (
        max(watermark, now - timedelta(seconds=policy.window))
        if policy.window is not None
        else watermark
    )
    newest = [planned for planned in islice(_backwards(agenda, last), most) if planned.at > oldest]
    missed = _left_out(
        agenda, first, newest[-1] if newest else None, last, watermark, oldest, policy
    )
    ordered = newest if policy.order == CatchUpOrder.NEWEST else newest[::-1]
    return missed, [
        ChosenFire(planned, True, number * max(policy.pace, _IN_ORDER))
        for number, planned in enumerate(ordered)
    ]


def _backwards(agenda: Agenda, last: PlannedRun) -> Iterator[PlannedRun]:
    planned: PlannedRun | None = last
    while planned is not None:
        yield planned
        planned = agenda.previous(planned.at)


def _left_out(
    agenda: Agenda,
    first: PlannedRun,
    kept: PlannedRun | None,
    last: PlannedRun,
    watermark: datetime,
    oldest: datetime,
    policy: Policy,
) -> list[Missed]:
    """Return the ranges before the oldest fire that runs: those outside of the catch-up window, and
    those above the catch-up limit.
    """
    found = []
    if oldest > watermark and first.at <= oldest:
        shut_out = min(_last(agenda, oldest + _INSTANT), last, key=lambda planned: planned.at)
        found.append(_range(agenda, first, shut_out, watermark, CATCHUP_WINDOW))
    begin = agenda.next(oldest)
    if kept is not None and begin is not None and begin.at < kept.at:
        reason = COALESCED if policy.catch_up == CatchUp.RUN_ONE_NOW else MAX_CATCHUP_RUNS
        found.append(_range(agenda, begin, _last(agenda, kept.at), oldest, reason))
    return found
