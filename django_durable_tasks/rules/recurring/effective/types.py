"""The words of an agenda: a planned run, a stretch that does not run, an override, and the
questions themselves.
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
class Planned:
    """One run to come; both instants are UTC.

    ``nominal`` is the fire time, its identity in the ledger. ``at`` is when it is triggered: the
    same, unless a calendar rolled it or an override moved it. Jitter is not in it.
    """

    nominal: datetime
    at: datetime
    notes: tuple[str, ...] = ()
    rolled: bool = False
    overridden: bool = False


@dataclass(frozen=True, slots=True)
class Stretch:
    """Fire times that do not run, told as one range, both ends included; not ``exact`` means at
    least so many.
    """

    first: datetime
    last: datetime
    count: int
    exact: bool
    outcome: str
    reason: str


class Action(StrEnum):
    """What an operator does to one fire time."""

    SKIP = "SKIP"
    MOVE = "MOVE"
    ADD = "ADD"


@dataclass(frozen=True, slots=True)
class Override:
    """One fire time that is not as the schedule says; ``move_to`` goes with MOVE only."""

    fire_time: datetime
    action: Action | str
    move_to: datetime | None = None
    reason: str = ""


class Agenda(Protocol):
    """The stream that a trigger reads, ordered by ``at``, no two runs at one instant."""

    def next(self, after: datetime) -> Planned | None:
        """Return the first run whose ``at`` is strictly after; None: none is within reach."""

    def previous(self, before: datetime) -> Planned | None:
        """Return the last run whose ``at`` is strictly before; None: there is none."""

    def count(self, after: datetime, until: datetime) -> Count:
        """Return the number of runs whose ``at`` is after ``after`` up to and with ``until``, by
        bounded work.
        """

    def closed(self, after: datetime, until: datetime) -> list[Stretch]:
        """Return the fire times in (after, until] that do not run, one stretch a kind of reason."""

    def at_nominal(self, nominal: datetime) -> Planned | Stretch | None:
        """Return what becomes of this fire time; None: it is none."""
