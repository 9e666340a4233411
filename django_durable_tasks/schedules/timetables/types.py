"""The types of all timetables, walks over their fires, and the union of several timetables."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import Enum, StrEnum
from functools import partial
from operator import attrgetter
from typing import Generic, Protocol, TypeVar

# The types of all timetables: a fire, a count, the policies for clock changes, and the interface.


@dataclass(frozen=True, slots=True)
class Fire:
    """One fire time: its identity in the ledger (aware, UTC), and its remarks."""

    nominal: datetime
    remarks: tuple[str, ...] = ()

    @property
    def at(self) -> datetime:
        """When it is triggered: a timetable moves no fire."""
        return self.nominal


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


# Walks over the fires of a timetable or the runs of an agenda, in both directions.


TICK = timedelta(microseconds=1)


class _Point(Protocol):
    @property
    def at(self) -> datetime: ...


PointT = TypeVar("PointT", bound=_Point)
_PointT_co = TypeVar("_PointT_co", bound=_Point, covariant=True)


class Walkable(Protocol[_PointT_co]):
    """A timetable or an agenda."""

    def next(self, after: datetime) -> _PointT_co | None:
        """Return the first one strictly after."""

    def previous(self, before: datetime) -> _PointT_co | None:
        """Return the last one strictly before."""


class Direction(Enum):
    """The direction of a walk. "Beyond" an instant is after it, or before it in a walk back."""

    FORWARD = 1
    BACK = -1

    @property
    def tick(self) -> timedelta:
        """The shortest step in this direction."""
        return self.value * TICK

    @property
    def opposite(self) -> Direction:
        """The other direction."""
        return Direction(-self.value)

    def step(self, walked: Walkable[PointT], moment: datetime) -> PointT | None:
        """Return the nearest one strictly beyond the instant."""
        return walked.next(moment) if self is Direction.FORWARD else walked.previous(moment)

    def is_beyond(self, moment: datetime, other: datetime) -> bool:
        """Return whether the first instant is strictly beyond the second one."""
        return moment > other if self is Direction.FORWARD else moment < other

    def place(self, instants: Sequence[datetime], moment: datetime) -> int | None:
        """Return the index of the nearest of these ascending instants strictly beyond."""
        if self is Direction.FORWARD:
            place = bisect_right(instants, moment)
            return place if place < len(instants) else None
        return bisect_left(instants, moment) - 1 if instants and instants[0] < moment else None


def walk(
    walked: Walkable[PointT],
    moment: datetime,
    until: datetime | None = None,
    way: Direction = Direction.FORWARD,
) -> Iterator[PointT]:
    """Yield all that are strictly beyond the instant, up to and including ``until``."""
    while (point := way.step(walked, moment)) is not None:
        if until is not None and way.is_beyond(point.at, until):
            return
        yield point
        moment = point.at


class BothWays(Generic[PointT]):
    """A timetable or an agenda with one method for both directions."""

    __slots__ = ()

    def step(self, moment: datetime, way: Direction) -> PointT | None:
        """Return the nearest one strictly beyond the instant; None if there is none."""
        raise NotImplementedError

    def next(self, after: datetime) -> PointT | None:
        """Return the first one strictly after."""
        return self.step(after, Direction.FORWARD)

    def previous(self, before: datetime) -> PointT | None:
        """Return the last one strictly before."""
        return self.step(before, Direction.BACK)


_Moment = TypeVar("_Moment", int, datetime)
_Found = TypeVar("_Found")


class Remembered(Generic[_Moment, _Found]):
    """A search for the nearest one strictly beyond a moment that remembers its last result: it is
    the result for every moment between the searched one and the found one.

    So a part that seldom or never fires is searched once, and not for each fire of the other parts:
    with 20 such parts a preview took 25 s. Threads may share it, because what it remembers is
    replaced as a whole.
    """

    __slots__ = ("_at", "_known", "_search", "_way")

    def __init__(
        self,
        search: Callable[[_Moment], _Found | None],
        at: Callable[[_Found], _Moment],
        way: Direction,
    ) -> None:
        self._search: Callable[[_Moment], _Found | None] = search
        self._at: Callable[[_Found], _Moment] = at
        self._way = way
        self._known: tuple[_Moment, _Found | None] | None = None

    def __call__(self, moment: _Moment) -> _Found | None:
        """Return the nearest one strictly beyond the moment; None if there is none."""
        if self._known is not None:
            searched, result = self._known
            at = None if result is None else self._at(result)
            if self._way is Direction.FORWARD:
                is_result = searched <= moment and (at is None or moment < at)
            else:
                is_result = moment <= searched and (at is None or at < moment)
            if is_result:
                return result
        result = self._search(moment)
        self._known = moment, result
        return result


# The union of several timetables: fires when one of them fires, once for each instant.


_MOST_ITERATED = 1_000


class Union(BothWays[Fire]):
    """Fires whenever one of its parts does."""

    __slots__ = ("_searches", "parts")

    def __init__(self, parts: tuple[Timetable, ...]) -> None:
        self.parts = parts
        self._searches = {
            way: [Remembered(partial(way.step, part), attrgetter("nominal"), way) for part in parts]
            for way in Direction
        }

    def step(self, moment: datetime, way: Direction) -> Fire | None:
        fires = [fire for search in self._searches[way] if (fire := search(moment))]
        if not fires:
            return None
        times = [fire.nominal for fire in fires]
        nominal = min(times) if way is Direction.FORWARD else max(times)
        remarks = [remark for fire in fires if fire.nominal == nominal for remark in fire.remarks]
        return Fire(nominal, tuple(dict.fromkeys(remarks)))

    def count(self, after: datetime, until: datetime) -> Count:
        """Return the number of distinct fires in (after, until]. If the parts have more than a
        thousand, it is the maximum over the parts, a lower bound.

        Fires at the same instant can only be found by iterating, and a calendar requests hundreds
        of ranges at once.
        """
        counts = [part.count(after, until) for part in self.parts]
        if sum(count.number for count in counts) > _MOST_ITERATED:
            return Count(max(count.number for count in counts), exact=False)
        return Count(sum(1 for _fire in walk(self, after, until)))
