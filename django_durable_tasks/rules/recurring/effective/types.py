"""The types of an agenda: a planned run, a range that does not run, an override, and the
interface.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol

from django_durable_tasks.rules.recurring.timetables.types import Count

TICK = timedelta(microseconds=1)
SKIPPED_CALENDAR, OVERRIDDEN = "SKIPPED_CALENDAR", "OVERRIDDEN"


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A planned run; both instants are UTC. ``nominal`` is the fire time, its identity in the
    ledger.

    ``at`` is when it is triggered: the fire time, unless a calendar rolled it or an override moved
    it. It does not contain jitter.
    """

    nominal: datetime
    at: datetime
    remarks: tuple[str, ...] = ()
    rolled: bool = False
    overridden: bool = False


@dataclass(frozen=True, slots=True)
class SkippedRange:
    """A range of fire times that do not run, both ends included. Unless ``exact``, the number is a
    lower bound.
    """

    first: datetime
    last: datetime
    count: int
    exact: bool
    outcome: str
    reason: str


class Action(StrEnum):
    """What an operator does with one fire time."""

    SKIP = "SKIP"
    MOVE = "MOVE"
    ADD = "ADD"


@dataclass(frozen=True, slots=True)
class Override:
    """One fire time that an operator changed; ``move_to`` is for MOVE only."""

    fire_time: datetime
    action: Action | str
    move_to: datetime | None = None
    reason: str = ""


class Agenda(Protocol):
    """The planned runs, ordered by ``at``, no two at the same instant."""

    def next(self, after: datetime) -> PlannedRun | None:
        """Return the first run whose ``at`` is strictly after; None if there is none within the
        searched range.
        """

    def previous(self, before: datetime) -> PlannedRun | None:
        """Return the last run whose ``at`` is strictly before; None if there is none."""

    def count(self, after: datetime, until: datetime) -> Count:
        """Return the number of runs with ``at`` in (after, until]. The work is bounded."""

    def closed(self, after: datetime, until: datetime) -> list[SkippedRange]:
        """Return the fire times in (after, until] that do not run, one range per reason."""

    def at_nominal(self, nominal: datetime) -> PlannedRun | SkippedRange | None:
        """Return the run of this fire time, or why it does not run; None if it is not a
        fire time.
        """
