"""The types of all timetables, and the union of several timetables."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime
from enum import StrEnum
from typing import Protocol

# The types of all timetables: a fire, a count, the policies for clock changes, and the interface.


@dataclass(frozen=True, slots=True)
class Fire:
    """One fire time: its identity in the ledger (aware, UTC), and its remarks."""

    nominal: datetime
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Count:
    """A number of fires; unless ``exact`` it is a lower bound, because counting is bounded."""

    number: int
    exact: bool = True


class Timetable(Protocol):
    """The interface of timetables. Arguments must be aware, results are in UTC."""

    def next(self, after: datetime) -> Fire | None:
        """Return the first fire strictly after; None if it never fires again."""

    def previous(self, before: datetime) -> Fire | None:
        """Return the last fire strictly before; None if there is none."""

    def count(self, after: datetime, until: datetime) -> Count:
        """Return the number of fires in (after, until]. The work is bounded, independent of the
        length of the range.
        """


class OpenDays(Protocol):
    """Determines which days are working days."""

    def is_open(self, day: date) -> bool:
        """Return whether the day is a working day."""


class DstGap(StrEnum):
    """What happens to a wall time in the gap of a clock that is put forward."""

    RUN_AFTER = "RUN_AFTER"
    SKIP = "SKIP"


class DstOverlap(StrEnum):
    """Which pass of a wall time fires that is repeated when the clock is put back."""

    FIRST = "FIRST"
    LAST = "LAST"
    BOTH = "BOTH"


_MONDAY_TO_FRIDAY = range(5)


class Weekdays:
    """The default working days: Monday to Friday."""

    def is_open(self, day: date) -> bool:
        """Return whether the day is not on a weekend."""
        return day.weekday() in _MONDAY_TO_FRIDAY


WEEKDAYS = Weekdays()
SOME_START = datetime(2026, 1, 1, tzinfo=UTC)
"""The start for timetables that do not depend on it."""


@dataclass(frozen=True, slots=True)
class TimetableContext:
    """The settings of a schedule for all its parts: zone, start (UTC), policies, the seed of ``H``,
    working days.
    """

    zone: str
    anchor: datetime
    gap: DstGap = DstGap.RUN_AFTER
    overlap: DstOverlap = DstOverlap.FIRST
    seed: str = ""
    days: OpenDays = WEEKDAYS


# The union of several timetables: fires when one of them fires, once for each instant.


_MOST_ITERATED = 1_000


@dataclass(frozen=True, slots=True)
class Union:
    """Fires whenever one of its parts does."""

    parts: tuple[Timetable, ...]

    def next(self, after: datetime) -> Fire | None:
        """Return the first fire of any part strictly after; None if no part fires again."""
        fires = [fire for part in self.parts if (fire := part.next(after))]
        return _joined(fires, min(fire.nominal for fire in fires)) if fires else None

    def previous(self, before: datetime) -> Fire | None:
        """Return the last fire of any part strictly before; None if there is none."""
        fires = [fire for part in self.parts if (fire := part.previous(before))]
        return _joined(fires, max(fire.nominal for fire in fires)) if fires else None

    def count(self, after: datetime, until: datetime) -> Count:
        """Return the number of distinct fires in (after, until]. If the parts have more than a
        thousand, it is the maximum over the parts, a lower bound.

        Fires at the same instant can only be found by iterating, and a calendar requests hundreds
        of ranges at once.
        """
        counts = [part.count(after, until) for part in self.parts]
        if sum(one.number for one in counts) > _MOST_ITERATED:
            return Count(max(one.number for one in counts), exact=False)
        number, fire = 0, self.next(after)
        while fire is not None and fire.nominal <= until:
            number, fire = number + 1, self.next(fire.nominal)
        return Count(number)


def _joined(fires: list[Fire], nominal: datetime) -> Fire:
    remarks = [remark for fire in fires if fire.nominal == nominal for remark in fire.remarks]
    return Fire(nominal, tuple(dict.fromkeys(remarks)))
