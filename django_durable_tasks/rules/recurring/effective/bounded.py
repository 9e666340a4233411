"""Restricted timetables (within bounds, or without some fire times), and the agenda without
changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django_durable_tasks.rules.recurring.effective.types import TICK, PlannedRun, SkippedRange
from django_durable_tasks.rules.recurring.timetables.types import Count, Fire, Timetable


@dataclass(frozen=True, slots=True)
class BoundedTimetable:
    """The fires from ``start`` to ``end``, both included."""

    fires: Timetable
    start: datetime | None
    end: datetime | None

    def next(self, after: datetime) -> Fire | None:
        """Return the first fire strictly after."""
        if self.start is not None and after < self.start:
            after = self.start - TICK
        fire = self.fires.next(after)
        return None if fire is None or (self.end is not None and fire.nominal > self.end) else fire

    def previous(self, before: datetime) -> Fire | None:
        """Return the last fire strictly before."""
        if self.end is not None and before > self.end:
            before = self.end + TICK
        fire = self.fires.previous(before)
        return (
            None if fire is None or (self.start is not None and fire.nominal < self.start) else fire
        )

    def count(self, after: datetime, until: datetime) -> Count:
        """Return the number of fires in (after, until]."""
        if self.start is not None and after < self.start:
            after = self.start - TICK
        if self.end is not None and until > self.end:
            until = self.end
        return self.fires.count(after, until) if after < until else Count(0)


@dataclass(frozen=True, slots=True)
class TimetableExcept:
    """A timetable without these instants; each of them must be a fire of it."""

    fires: Timetable
    out: frozenset[datetime]

    def next(self, after: datetime) -> Fire | None:
        """Return the first fire strictly after."""
        fire = self.fires.next(after)
        while fire is not None and fire.nominal in self.out:
            fire = self.fires.next(fire.nominal)
        return fire

    def previous(self, before: datetime) -> Fire | None:
        """Return the last fire strictly before."""
        fire = self.fires.previous(before)
        while fire is not None and fire.nominal in self.out:
            fire = self.fires.previous(fire.nominal)
        return fire

    def count(self, after: datetime, until: datetime) -> Count:
        """Return the number of fires in (after, until]."""
        counted = self.fires.count(after, until)
        gone = sum(after < one <= until for one in self.out)
        return Count(max(counted.number - gone, 0), counted.exact)


@dataclass(frozen=True, slots=True)
class EveryFire:
    """The agenda in which each fire runs at its fire time."""

    fires: Timetable

    def next(self, after: datetime) -> PlannedRun | None:
        """Return the first run strictly after."""
        fire = self.fires.next(after)
        return None if fire is None else PlannedRun(fire.nominal, fire.nominal, fire.remarks)

    def previous(self, before: datetime) -> PlannedRun | None:
        """Return the last run strictly before."""
        fire = self.fires.previous(before)
        return None if fire is None else PlannedRun(fire.nominal, fire.nominal, fire.remarks)

    def count(self, after: datetime, until: datetime) -> Count:
        """Return the number of runs in (after, until]."""
        return self.fires.count(after, until)

    def closed(self, after: datetime, until: datetime) -> list[SkippedRange]:
        """Return nothing: every fire runs."""
        return []

    def at_nominal(self, nominal: datetime) -> PlannedRun | None:
        """Return the run of this fire time; None if it is not a fire time."""
        fire = fire_at(self.fires, nominal)
        return None if fire is None else PlannedRun(fire.nominal, fire.nominal, fire.remarks)


def fire_at(fires: Timetable, nominal: datetime) -> Fire | None:
    """Return the fire of exactly this instant; None if there is none."""
    fire = fires.next(nominal - TICK)
    return fire if fire is not None and fire.nominal == nominal else None
