"""The words all timetables share: a fire, a count, the policies for changing clocks, and the
questions themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from enum import StrEnum
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Fire:
    """One fire time: its identity in the ledger (aware, UTC), and what happened to it on
    the way.
    """

    nominal: datetime
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Count:
    """How many fires; not ``exact`` means at least so many, because the counting was bounded."""

    number: int
    exact: bool = True


class Timetable(Protocol):
    """Answers when; every instant taken and given is aware, every one given is UTC."""

    def next(self, after: datetime) -> Fire | None:
        """Return the first fire strictly after; None means never again."""

    def previous(self, before: datetime) -> Fire | None:
        """Return the last fire strictly before; None means there is none."""

    def count(self, after: datetime, until: datetime) -> Count:
        """Return the number of fires after ``after`` up to and with ``until``, by bounded work
        however long that is.
        """


class OpenDays(Protocol):
    """Says which days are working days."""

    def is_open(self, day: date) -> bool:
        """Return whether work is done on the day."""


class DstGap(StrEnum):
    """What becomes of a wall time that a clock put forward jumps over."""

    RUN_AFTER = "RUN_AFTER"
    SKIP = "SKIP"


class DstOverlap(StrEnum):
    """Which pass of a wall time fires that a clock put back shows twice."""

    FIRST = "FIRST"
    LAST = "LAST"
    BOTH = "BOTH"


_MONDAY_TO_FRIDAY = range(5)


class Weekdays:
    """Working days where no calendar says otherwise: Monday to Friday."""

    def is_open(self, day: date) -> bool:
        """Return whether the day is none of the weekend."""
        return day.weekday() in _MONDAY_TO_FRIDAY


WEEKDAYS = Weekdays()


@dataclass(frozen=True, slots=True)
class Setting:
    """What a schedule says for all its parts: its zone, its start (UTC), policies, the seed of
    ``H``, working days.
    """

    zone: str
    anchor: datetime
    gap: DstGap = DstGap.RUN_AFTER
    overlap: DstOverlap = DstOverlap.FIRST
    seed: str = ""
    days: OpenDays = WEEKDAYS
