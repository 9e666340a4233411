"""The agenda with fire times that an operator skipped, moved or added. Calendars and bounds do not
apply to them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise

from django_durable_tasks.exceptions import InvalidSchedule
from django_durable_tasks.rules.recurring.effective.bounded import fire_at
from django_durable_tasks.rules.recurring.effective.types import (
    OVERRIDDEN,
    TICK,
    Action,
    Agenda,
    Override,
    PlannedRun,
    SkippedRange,
)
from django_durable_tasks.rules.recurring.timetables.types import Count, Timetable


@dataclass(frozen=True, slots=True)
class Overridden:
    """The runs of ``rest``, which does not contain the overridden fire times, and the runs that
    replace them.

    Runs at the same instant run once: the one of ``rest``, otherwise the one with the earliest fire
    time. The others are in ``met``.
    """

    rest: Agenda
    runs: tuple[PlannedRun, ...]
    met: tuple[PlannedRun, ...]
    skipped: tuple[Override, ...]
    _at: list[datetime] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_at", [run.at for run in self.runs])

    def next(self, after: datetime) -> PlannedRun | None:
        """Return the first run strictly after."""
        found, place = self.rest.next(after), bisect_right(self._at, after)
        own = self.runs[place] if place < len(self.runs) else None
        return found if own is None or (found is not None and found.at <= own.at) else own

    def previous(self, before: datetime) -> PlannedRun | None:
        """Return the last run strictly before."""
        found, place = self.rest.previous(before), bisect_left(self._at, before)
        own = self.runs[place - 1] if place else None
        return found if own is None or (found is not None and found.at >= own.at) else own

    def count(self, after: datetime, until: datetime) -> Count:
        """Return the number of runs in (after, until]."""
        found = self.rest.count(after, until)
        own = self._at[bisect_right(self._at, after) : bisect_right(self._at, until)]
        return replace(found, number=found.number + sum(not self._is_taken(at) for at in own))

    def closed(self, after: datetime, until: datetime) -> list[SkippedRange]:
        """Return the fire times in (after, until] that do not run."""
        by_reason: dict[str, list[datetime]] = {}
        for fire_time, reason in self._left_out():
            if after < fire_time <= until:
                by_reason.setdefault(reason, []).append(fire_time)
        return [
            *self.rest.closed(after, until),
            *(
                SkippedRange(min(times), max(times), len(times), True, OVERRIDDEN, reason)
                for reason, times in by_reason.items()
            ),
        ]

    def at_nominal(self, nominal: datetime) -> PlannedRun | SkippedRange | None:
        """Return the run of this fire time, or why it does not run; None if it is not a
        fire time.
        """
        for fire_time, reason in self._left_out():
            if fire_time == nominal:
                return SkippedRange(nominal, nominal, 1, True, OVERRIDDEN, reason)
        own = next((run for run in self.runs if run.nominal == nominal), None)
        return self.rest.at_nominal(nominal) if own is None else own

    def _left_out(self) -> list[tuple[datetime, str]]:
        skipped = [(one.fire_time, f"skipped by hand{_because(one)}") for one in self.skipped]
        met = [*self.met, *(run for run in self.runs if self._is_taken(run.at))]
        return [
            *skipped,
            *((run.nominal, f"{run.remarks[-1]}; it meets a fire that runs") for run in met),
        ]

    def _is_taken(self, at: datetime) -> bool:
        found = self.rest.next(at - TICK)
        return found is not None and found.at == at


def checked(overrides: Iterable[Override]) -> list[Override]:
    """Return the overrides with their instants in UTC; raises InvalidSchedule if they contradict
    each other.
    """
    found: dict[datetime, Override] = {}
    for one in overrides:
        if one.action not in set(Action):
            raise InvalidSchedule(f"override action={one.action!r}: give SKIP, MOVE or ADD.")
        if (one.action == Action.MOVE) != (one.move_to is not None):
            raise InvalidSchedule(
                f"override of {one.fire_time}: MOVE, and nothing else, takes move_to."
            )
        fire_time = one.fire_time.astimezone(UTC)
        if fire_time in found:
            raise InvalidSchedule(f"override of {fire_time}: there are two; a fire time has one.")
        found[fire_time] = replace(
            one, fire_time=fire_time, move_to=one.move_to and one.move_to.astimezone(UTC)
        )
    return list(found.values())


def of_fires(fires: Timetable, overrides: Iterable[Override]) -> list[Override]:
    """Return the overrides that have an effect: an added time, or a time at which the schedule
    fires.
    """
    return [
        one
        for one in overrides
        if one.action == Action.ADD or fire_at(fires, one.fire_time) is not None
    ]


def overridden(rest: Agenda, overrides: Iterable[Override]) -> Overridden:
    """Return the agenda with these overrides, given the agenda without their fire times."""
    runs = sorted(
        (_run(one) for one in overrides if one.action != Action.SKIP),
        key=lambda run: (run.at, run.nominal),
    )
    met = [late for early, late in pairwise(runs) if early.at == late.at]
    return Overridden(
        rest,
        tuple(run for run in runs if run not in met),
        tuple(met),
        tuple(one for one in overrides if one.action == Action.SKIP),
    )


def _run(one: Override) -> PlannedRun:
    if one.move_to is None:
        return PlannedRun(
            one.fire_time, one.fire_time, (f"added by hand{_because(one)}",), overridden=True
        )
    remark = (
        f"moved by hand from {one.fire_time:%Y-%m-%dT%H:%M:%SZ} to"
        f" {one.move_to:%Y-%m-%dT%H:%M:%SZ}{_because(one)}"
    )
    return PlannedRun(one.fire_time, one.move_to, (remark,), overridden=True)


def _because(one: Override) -> str:
    return f": {one.reason}" if one.reason else ""
