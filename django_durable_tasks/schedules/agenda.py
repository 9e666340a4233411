"""The effective runs of a schedule: a timetable within bounds, with fire times rolled off closed
days and single fire times overridden.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time, timedelta
from itertools import islice, pairwise
from typing import NamedTuple, Protocol
from zoneinfo import ZoneInfo

from django_durable_tasks.choices import Action
from django_durable_tasks.exceptions import InvalidSchedule
from django_durable_tasks.schedules.business_days import (
    FARTHEST,
    ONE_DAY,
    BusinessDays,
    Roll,
    days_from,
)
from django_durable_tasks.schedules.timetables.types import (
    TICK,
    BothWays,
    Count,
    Direction,
    Fire,
    Timetable,
    walk,
)
from django_durable_tasks.schedules.timetables.zones import (
    FIRST_YEAR,
    LAST_YEAR,
    OffsetPeriod,
    instant,
    reading,
    stretches,
    zone,
)

# The types of an agenda: a planned run, a range that does not run, an override, and the interface.


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


@dataclass(frozen=True, slots=True)
class Override:
    """One fire time that an operator changed; ``move_to`` is for MOVE only."""

    fire_time: datetime
    action: Action | str
    move_to: datetime | None = None
    reason: str = ""
    by: str = ""


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


# Restricted timetables (within bounds, or without some fire times), and the agenda without
# changes.


@dataclass(frozen=True, slots=True)
class BoundedTimetable(BothWays[Fire]):
    """The fires from ``start`` to ``end``, both included."""

    fires: Timetable
    start: datetime | None
    end: datetime | None

    def step(self, moment: datetime, way: Direction) -> Fire | None:
        near, far = (self.start, self.end)[:: way.value]
        if near is not None and way.is_beyond(near, moment):
            moment = near - way.tick
        fire = way.step(self.fires, moment)
        if fire is None or (far is not None and way.is_beyond(fire.nominal, far)):
            return None
        return fire

    def count(self, after: datetime, until: datetime) -> Count:
        """Return the number of fires in (after, until]."""
        if self.start is not None and after < self.start:
            after = self.start - TICK
        if self.end is not None and until > self.end:
            until = self.end
        return self.fires.count(after, until) if after < until else Count(0)


@dataclass(frozen=True, slots=True)
class TimetableExcept(BothWays[Fire]):
    """A timetable without these instants; each of them must be a fire of it."""

    fires: Timetable
    out: frozenset[datetime]

    def step(self, moment: datetime, way: Direction) -> Fire | None:
        fire = way.step(self.fires, moment)
        while fire is not None and fire.nominal in self.out:
            fire = way.step(self.fires, fire.nominal)
        return fire

    def count(self, after: datetime, until: datetime) -> Count:
        """Return the number of fires in (after, until]."""
        counted = self.fires.count(after, until)
        gone = sum(after < fire_time <= until for fire_time in self.out)
        return Count(max(counted.number - gone, 0), counted.exact)


@dataclass(frozen=True, slots=True)
class EveryFire(BothWays[PlannedRun]):
    """The agenda in which each fire runs at its fire time."""

    fires: Timetable

    def step(self, moment: datetime, way: Direction) -> PlannedRun | None:
        return _on_time(way.step(self.fires, moment))

    def count(self, after: datetime, until: datetime) -> Count:
        """Return the number of runs in (after, until]."""
        return self.fires.count(after, until)

    def closed(self, after: datetime, until: datetime) -> list[SkippedRange]:
        """Return nothing: every fire runs."""
        return []

    def at_nominal(self, nominal: datetime) -> PlannedRun | None:
        """Return the run of this fire time; None if it is not a fire time."""
        return _on_time(fire_at(self.fires, nominal))


def _on_time(fire: Fire | None) -> PlannedRun | None:
    return None if fire is None else PlannedRun(fire.nominal, fire.nominal, fire.remarks)


def fire_at(fires: Timetable, nominal: datetime) -> Fire | None:
    """Return the fire of exactly this instant; None if there is none."""
    fire = fires.next(nominal - TICK)
    return fire if fire is not None and fire.nominal == nominal else None


# Conversion between wall times of a zone and instants. A repeated wall time is its first pass. A
# wall time in a gap is the end of the gap.


@dataclass(frozen=True, slots=True)
class WallClock:
    """The clock of one zone; instants are aware and UTC, wall times naive."""

    name: str
    _zone: ZoneInfo = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_zone", zone(self.name))

    def shown(self, moment: datetime) -> datetime:
        """Return the wall time of an instant."""
        return moment.astimezone(self._zone).replace(tzinfo=None, fold=0)

    def lands(self, wall: datetime) -> datetime:
        """Return the instant of a wall time: its first pass, or the end of its gap."""
        moment = wall.replace(tzinfo=self._zone).astimezone(UTC)
        return moment if self.shown(moment) == wall else instant(self._last_change(moment))

    def leaves(self, wall: datetime) -> datetime:
        """Return the instant of a wall time: its last pass, or the end of its gap."""
        moment = wall.replace(tzinfo=self._zone, fold=1).astimezone(UTC)
        return moment if self.shown(moment) == wall else self.lands(wall)

    def reach(self, moment: datetime) -> datetime:
        """Return the last wall time whose instant is at or before this one."""
        local = moment.astimezone(self._zone)
        return (
            self.shown(instant(self._last_change(moment)) - TICK)
            if local.fold
            else local.replace(tzinfo=None)
        )

    def near(self, moment: datetime, wall: datetime) -> datetime:
        """Return the instant at which the clock shows this wall time with the offset of
        ``moment``; at most the end and at least the start of this offset.
        """
        then, stretch = moment + (wall - self.shown(moment)), self._stretch(moment)
        if reading(then) < stretch.start:
            return instant(stretch.start)
        return then if reading(then) < stretch.end else instant(stretch.end)

    def _stretch(self, moment: datetime) -> OffsetPeriod:
        second, year = reading(moment), min(max(moment.year, FIRST_YEAR), LAST_YEAR)
        periods = stretches(self.name, year)
        return next((period for period in periods if second < period.end), periods[-1])

    def _last_change(self, moment: datetime) -> int:
        """Return the second at which the offset of this instant began. Longer ranges are cut at the
        turn of the year.
        """
        stretch = self._stretch(moment)
        before = self._stretch(instant(stretch.start) - timedelta(seconds=1))
        return before.start if before.offset == stretch.offset else stretch.start


# The day to which a time on a closed day is rolled, and the range of times of that day with the
# same result.


class RolledDay(NamedTuple):
    """The target day, None if no day is open; the same for all times after ``above``, up to and
    including ``up_to``.
    """

    day: date | None
    above: time | None
    up_to: time | None


def landing(days: BusinessDays, day: date, hour: time, roll: Roll) -> RolledDay:
    """Return the target of a time that is closed on its day; SKIP has none."""
    if roll is Roll.SKIP:
        return RolledDay(None, days.closes(day), None)
    if roll is Roll.PRECEDING:
        return _nearest(days, day, hour, -ONE_DAY)
    following = _nearest(days, day, hour, ONE_DAY)
    if roll is Roll.FOLLOWING or (
        following.day is not None and _month(following.day) == _month(day)
    ):
        return following
    preceding = _nearest(days, day, hour, -ONE_DAY)
    return preceding._replace(above=_later(following.above, preceding.above))


def _nearest(days: BusinessDays, day: date, hour: time, step: timedelta) -> RolledDay:
    target, above = days.next_open(day, hour, step)
    up_to = None if target is None else days.closes(target)
    return RolledDay(target, _later(days.closes(day), above), up_to)


def _later(*times: time | None) -> time | None:
    return max(filter(None, times), default=None)


def _month(day: date) -> tuple[int, int]:
    return day.year, day.month


# Divides time into segments in which a calendar treats all fire times alike, so that they need not
# be examined singly.
#
# The fire times of a segment are all open, or all rolled to the same day. Within a segment the
# offset of the zone does not change.


_LONGEST = 31  # maximum number of days in one segment
_CALM = 10  # for this many days it is cheaper to examine each day than to search


class Segment(NamedTuple):
    """A half-open range of instants; ``day`` is the day to which its fires are rolled."""

    start: datetime
    end: datetime
    open: bool
    day: date | None

    def last(self, way: Direction) -> datetime:
        """Return the instant beyond which a walk in this direction has left the segment."""
        return self.end - TICK if way is Direction.FORWARD else self.start


@dataclass(frozen=True, slots=True)
class CalendarSegments:
    """The segments of one calendar, roll and zone."""

    days: BusinessDays
    roll: Roll
    clock: WallClock

    def why_closed(self, moment: datetime) -> str:
        """Return why this instant is closed; "" if it is open."""
        return self.days.why_closed(self.clock.shown(moment))

    def landing(self, moment: datetime) -> RolledDay:
        """Return the target of a fire at this closed instant."""
        wall = self.clock.shown(moment)
        return landing(self.days, wall.date(), wall.time(), self.roll)

    def piece(self, moment: datetime) -> Segment:
        """Return the segment that contains an instant."""
        wall = self.clock.shown(moment)
        day, hour = wall.date(), wall.time()
        if self.days.open_at(day, hour):
            return self._run(moment, day, opened=True)
        if self.roll is Roll.SKIP:
            return self._run(moment, day, opened=False)
        target = landing(self.days, day, hour, self.roll)
        return self._between(
            moment, _past(day, target.above), _through(day, target.up_to), target.day, opened=False
        )

    def planned(self, fire: Fire, day: date | None) -> PlannedRun:
        """Return the run of a fire, rolled to this day unless ``day`` is None."""
        if day is None:
            return PlannedRun(fire.nominal, fire.nominal, fire.remarks)
        wall = self.clock.shown(fire.nominal)
        wall_time = datetime.combine(day, wall.time())
        at = self.clock.lands(wall_time)
        remarks = [
            f"rolled from {wall:%Y-%m-%d %H:%M} ({self.days.why_closed(wall)}) by {self.roll}"
        ]
        if (landed := self.clock.shown(at)) != wall_time:
            remarks.append(
                f"DST gap: {wall_time:%H:%M} does not exist on {day} in {self.clock.name}; runs"
                f" right after it, at {landed:%H:%M}"
            )
        return PlannedRun(fire.nominal, at, (*fire.remarks, *remarks), rolled=True)

    def beyond(self, fire: Fire, day: date, moment: datetime) -> timedelta:
        """Return the distance from an instant's rolled wall time to the limit of its range."""
        return self.clock.reach(moment) - datetime.combine(
            day, self.clock.shown(fire.nominal).time()
        )

    def calm(self, first: datetime, last: datetime) -> bool:
        """Return whether no fire is rolled into this range, because it and the days around it are
        open. The test is cheap and may return False in other cases.
        """
        day, end = self.clock.shown(first).date() - ONE_DAY, self.clock.shown(last).date() + ONE_DAY
        if (end - day).days > _CALM:
            return False
        return all(self._whole(day + n * ONE_DAY, opened=True) for n in range((end - day).days + 1))

    def open_until(self, first: datetime, last: datetime) -> time:
        """Return the latest wall time that is open on a day of this range or next to it. Fires at
        later times are not rolled into it.
        """
        day, end = self.clock.shown(first).date() - ONE_DAY, self.clock.shown(last).date() + ONE_DAY
        latest = time.min
        while day <= end:
            if self.days.is_open(day):
                latest = max(latest, self.days.closes(day) or time.max)
                if latest == time.max:
                    break
            day += ONE_DAY
        return latest

    def sources(self, at: datetime, way: Direction, hour: time = time.max) -> datetime:
        """Return an instant from which a walk meets all fires until this wall time that are rolled
        to ``at`` or beyond it.
        """
        if self.roll is (Roll.PRECEDING if way is Direction.FORWARD else Roll.FOLLOWING):
            return at - way.tick
        edge = time.max if way is Direction.FORWARD else time.min
        day = self._nearest_open(self.clock.shown(at).date(), hour, -way.value * ONE_DAY)
        if not way.is_beyond(at, self.clock.lands(datetime.combine(day, edge))):
            # The clock was put forward over the end of this day, or back over this midnight.
            day = self._nearest_open(day, hour, -way.value * ONE_DAY)
        if way is Direction.FORWARD:
            return self.clock.lands(datetime.combine(day + ONE_DAY, time.min)) - TICK
        return self.clock.leaves(datetime.combine(day, time.min))

    def _run(self, moment: datetime, day: date, *, opened: bool) -> Segment:
        """Return the segment of whole days that are all open or all closed; it may end within a
        half day.
        """
        hour = self.days.closes(day)
        first = day if hour and not opened else self._alike(day, -ONE_DAY, opened=opened)
        last = day if hour and opened else self._alike(day, ONE_DAY, opened=opened)
        low, high = (None, hour) if opened else (hour, None)
        return self._between(moment, _past(first, low), _through(last, high), None, opened=opened)

    def _between(
        self, moment: datetime, low: datetime, high: datetime, day: date | None, *, opened: bool
    ) -> Segment:
        return Segment(self.clock.near(moment, low), self.clock.near(moment, high), opened, day)

    def _alike(self, day: date, step: timedelta, *, opened: bool) -> date:
        """Return the last day of the uninterrupted range of entirely open, or entirely closed,
        days.
        """
        end = day
        for following in islice(days_from(day, step), _LONGEST):
            if not self._whole(following, opened=opened):
                break
            end = following
        return end

    def _whole(self, day: date, *, opened: bool) -> bool:
        return self.days.is_open(day) is opened and self.days.closes(day) is None

    def _nearest_open(self, day: date, hour: time, step: timedelta) -> date:
        nearest, _ = self.days.next_open(day, hour, step)
        return day + (FARTHEST - 1) * step if nearest is None else nearest


def _past(day: date, hour: time | None) -> datetime:
    return datetime.combine(day, time.min) if hour is None else datetime.combine(day, hour) + TICK


def _through(day: date, hour: time | None) -> datetime:
    return (
        datetime.combine(day + ONE_DAY, time.min)
        if hour is None
        else datetime.combine(day, hour) + TICK
    )


# The agenda of a timetable on a calendar: fire times on closed days are skipped, or rolled to an
# open day.
#
# A roll keeps the wall time, so runs are not in the order of their fire times: Saturday 17:00
# rolled to Monday comes after Sunday 09:00 rolled to Monday. Fires that are rolled to the same
# instant run once: the fire of that day, otherwise the one with the earliest fire time. The work
# of each call is bounded, also if the calendar is closed for long.


_SEARCHED = 2_000  # segments examined per answer
_MOST_CLOSED = 400  # segments examined to count fires and to list closed ranges
_ONE_BY_ONE = 400  # rolled fires examined one by one per answer
_REMARKED = 6


@dataclass(frozen=True, slots=True)
class OnOpenDays(BothWays[PlannedRun]):
    """The runs of a timetable on a calendar."""

    fires: Timetable
    cuts: CalendarSegments

    def step(self, moment: datetime, way: Direction) -> PlannedRun | None:
        if self.cuts.roll is Roll.SKIP:
            return self._next_open(moment, way)
        fire = way.step(self.fires, moment)
        if fire is not None and self.cuts.calm(*sorted((moment, fire.nominal))):
            return self.cuts.planned(fire, None)
        meeting = self._search(moment, way)
        if meeting and way is Direction.BACK:
            # The fires that run at the same instant are joined in their order.
            meeting = self._search(meeting[0].at - TICK, Direction.FORWARD)
        return _one_run(meeting) if meeting else None

    def count(self, after: datetime, until: datetime) -> Count:
        """Return the number of runs in (after, until]. For a long range with rolls this is at least
        the number of runs that are not rolled.
        """
        rolled = 0
        if self.cuts.roll is not Roll.SKIP:
            rolled = len(list(islice(walk(self, after, until), _ONE_BY_ONE)))
            if rolled < _ONE_BY_ONE:
                return Count(rolled)
        pieces, complete = self._pieces(after, until)
        counts = [self._within(fire, piece, until) for fire, piece in pieces if piece.open]
        exact = not rolled and complete and all(count.exact for count in counts)
        return Count(max(rolled, sum(count.number for count in counts)), exact)

    def closed(self, after: datetime, until: datetime) -> list[SkippedRange]:
        """Return the fire times in (after, until] that do not run: skipped, or rolled onto a fire
        that runs.
        """
        pieces, complete = self._pieces(after, until)
        closed_pieces = [(fire, piece) for fire, piece in pieces if not piece.open]
        if not closed_pieces:
            return []
        if self.cuts.roll is Roll.SKIP:
            return [self._skipped(closed_pieces, until, complete)]
        return self._not_rolled(closed_pieces, until, complete)

    def at_nominal(self, nominal: datetime) -> PlannedRun | SkippedRange | None:
        """Return the run of this fire time, or why it does not run; None if it is not a
        fire time.
        """
        fire = fire_at(self.fires, nominal)
        if fire is None:
            return None
        if not (why := self.cuts.why_closed(nominal)):
            return self.cuts.planned(fire, None)
        kind, run = self._rolled(fire)
        return run or SkippedRange(
            nominal, nominal, 1, True, SKIPPED_CALENDAR, f"{self._closed_by()}: {why}{kind}"
        )

    def _next_open(self, moment: datetime, way: Direction) -> PlannedRun | None:
        for _ in range(_SEARCHED):
            fire = way.step(self.fires, moment)
            if fire is None:
                return None
            if not self.cuts.why_closed(fire.nominal):
                return self.cuts.planned(fire, None)
            moment = self.cuts.piece(fire.nominal).last(way)
        return None

    def _search(self, moment: datetime, way: Direction) -> list[PlannedRun]:
        """Return the nearest run beyond the instant, from all segments whose fires can run then:
        one for each segment with a fire that runs at this time.
        """
        nearest: list[PlannedRun] = []
        cursor, limit = self.cuts.sources(moment + way.tick, way), None
        for _ in range(_SEARCHED):
            fire = way.step(self.fires, cursor)
            if fire is None or (limit is not None and not way.is_beyond(limit, fire.nominal)):
                break
            piece = self.cuts.piece(fire.nominal)
            cursor = piece.last(way)
            if piece.open and not way.is_beyond(fire.nominal, moment):
                cursor = moment if way.is_beyond(cursor, moment) else cursor
                continue
            run = self._nearest_in(piece, fire, moment, way)
            if run is not None and not (nearest and way.is_beyond(run.at, nearest[0].at)):
                is_same = nearest and run.at == nearest[0].at
                nearest = [*nearest, run] if is_same else [run]
                hour = self.cuts.open_until(*sorted((moment, run.at)))
                limit = self.cuts.sources(run.at, way.opposite, hour)
        return nearest

    def _nearest_in(
        self, piece: Segment, fire: Fire, moment: datetime, way: Direction
    ) -> PlannedRun | None:
        """Return the nearest run of a segment beyond the instant; ``fire`` is its first one."""
        if piece.open or piece.day is None:
            return self.cuts.planned(fire, None) if piece.open else None
        # A run at ``moment`` itself is not beyond it, in either direction.
        gap = TICK if way is Direction.BACK else timedelta(0)
        distance = self.cuts.beyond(fire, piece.day, moment - gap)
        if (distance >= timedelta(0)) is (way is Direction.FORWARD):
            nearest = way.step(self.fires, fire.nominal + distance + gap)
            if nearest is None or not piece.start <= nearest.nominal < piece.end:
                return None
            fire = nearest
        return self.cuts.planned(fire, piece.day)

    def _rolled(self, fire: Fire) -> tuple[str, PlannedRun | None]:
        """Return the run of a fire on a closed day; otherwise why it does not run."""
        if self.cuts.roll is Roll.SKIP:
            return "", None
        day = self.cuts.landing(fire.nominal).day
        if day is None:
            return f"; {self.cuts.roll} finds no open day within ten years", None
        meeting = self._search(self.cuts.planned(fire, day).at - TICK, Direction.FORWARD)
        run = _one_run(meeting) if meeting else None
        if run is None or run.nominal == fire.nominal:
            return "", run
        return f"; by {self.cuts.roll} it meets a fire that runs", None

    def _pieces(self, after: datetime, until: datetime) -> tuple[list[tuple[Fire, Segment]], bool]:
        """Return the segments that contain fires of (after, until], each with its first fire; False
        if there are more.
        """
        pieces: list[tuple[Fire, Segment]] = []
        while len(pieces) < _MOST_CLOSED:
            fire = self.fires.next(after)
            if fire is None or fire.nominal > until:
                return pieces, True
            piece = self.cuts.piece(fire.nominal)
            pieces.append((fire, piece))
            after = piece.end - TICK
        return pieces, False

    def _within(self, first: Fire, piece: Segment, until: datetime) -> Count:
        return self.fires.count(first.nominal - TICK, min(piece.end - TICK, until))

    def _skipped(
        self, pieces: list[tuple[Fire, Segment]], until: datetime, complete: bool
    ) -> SkippedRange:
        counts = [self._within(fire, piece, until) for fire, piece in pieces]
        last = self._last(pieces[-1][1], until) if complete else self._last(None, until)
        reasons: dict[str, None] = {}  # in the order of the days, each once
        for fire, piece in pieces:
            for number in range((piece.end - fire.nominal).days + 1):
                moment = fire.nominal + number * ONE_DAY
                if moment < min(piece.end, until + TICK):
                    reasons[self.cuts.why_closed(moment)] = None
        more = ", …" if len(reasons) > _REMARKED else ""
        listed = ", ".join(islice(reasons, _REMARKED)) + more
        exact = complete and all(count.exact for count in counts)
        number = sum(count.number for count in counts)
        reason = f"{self._closed_by()}: {listed}"
        return SkippedRange(pieces[0][0].nominal, last, number, exact, SKIPPED_CALENDAR, reason)

    def _not_rolled(
        self, pieces: list[tuple[Fire, Segment]], until: datetime, complete: bool
    ) -> list[SkippedRange]:
        by_kind: dict[str, list[datetime]] = {}
        exact = complete
        for fire, piece in pieces:
            fires, whole = self._some(
                fire, min(piece.end - TICK, until), max(1, _ONE_BY_ONE // len(pieces))
            )
            exact = exact and whole
            for closed_fire in fires:
                kind, run = self._rolled(closed_fire)
                if run is None:
                    by_kind.setdefault(kind, []).append(closed_fire.nominal)
        return [
            SkippedRange(
                fires[0],
                fires[-1] if exact else self._last(None, until),
                len(fires),
                exact,
                SKIPPED_CALENDAR,
                f"{self._closed_by()}{kind}",
            )
            for kind, fires in by_kind.items()
        ]

    def _some(self, fire: Fire, until: datetime, most: int) -> tuple[list[Fire], bool]:
        """Return the fires from this one on up to ``until``, limited in number; False if there are
        more.
        """
        fires = [fire, *islice(walk(self.fires, fire.nominal, until), most)]
        return fires[:most], len(fires) <= most

    def _last(self, piece: Segment | None, until: datetime) -> datetime:
        fire = self.fires.previous(until + TICK if piece is None else min(piece.end, until + TICK))
        return until if fire is None else fire.nominal

    def _closed_by(self) -> str:
        return f"calendar {self.cuts.days.name!r} is closed"


def _one_run(meeting: list[PlannedRun]) -> PlannedRun:
    """Return the one run of all fires at the same instant, with a remark about the others."""
    run, *merged = sorted(meeting, key=lambda fired: (fired.rolled, fired.nominal))
    words = [
        f"also for {fired.nominal:%Y-%m-%dT%H:%M:%SZ}, {fired.remarks[-1]}"
        for fired in merged[:_REMARKED]
    ]
    return replace(run, remarks=(*run.remarks, *words)) if words else run


# The agenda with fire times that an operator skipped, moved or added. Calendars and bounds do not
# apply to them.


@dataclass(frozen=True, slots=True)
class Overridden(BothWays[PlannedRun]):
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

    def step(self, moment: datetime, way: Direction) -> PlannedRun | None:
        run, place = way.step(self.rest, moment), way.place(self._at, moment)
        if place is None:
            return run
        override_run = self.runs[place]
        return override_run if run is None or way.is_beyond(run.at, override_run.at) else run

    def count(self, after: datetime, until: datetime) -> Count:
        """Return the number of runs in (after, until]."""
        counted = self.rest.count(after, until)
        times = self._at[bisect_right(self._at, after) : bisect_right(self._at, until)]
        return replace(counted, number=counted.number + sum(not self._is_taken(at) for at in times))

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
        override_run = next((run for run in self.runs if run.nominal == nominal), None)
        return self.rest.at_nominal(nominal) if override_run is None else override_run

    def _left_out(self) -> list[tuple[datetime, str]]:
        skipped = [
            (override.fire_time, f"skipped by hand{_because(override)}")
            for override in self.skipped
        ]
        met = [*self.met, *(run for run in self.runs if self._is_taken(run.at))]
        return [
            *skipped,
            *((run.nominal, f"{run.remarks[-1]}; it meets a fire that runs") for run in met),
        ]

    def _is_taken(self, at: datetime) -> bool:
        run = self.rest.next(at - TICK)
        return run is not None and run.at == at


def checked(overrides: Iterable[Override]) -> list[Override]:
    """Return the overrides with their instants in UTC; raises InvalidSchedule if they contradict
    each other.
    """
    by_fire_time: dict[datetime, Override] = {}
    for override in overrides:
        if override.action not in set(Action):
            raise InvalidSchedule(f"override action={override.action!r}: give SKIP, MOVE or ADD.")
        if (override.action == Action.MOVE) != (override.move_to is not None):
            raise InvalidSchedule(
                f"override of {override.fire_time}: MOVE, and nothing else, takes move_to."
            )
        fire_time = override.fire_time.astimezone(UTC)
        if fire_time in by_fire_time:
            raise InvalidSchedule(f"override of {fire_time}: there are two; a fire time has one.")
        by_fire_time[fire_time] = replace(
            override,
            fire_time=fire_time,
            move_to=override.move_to and override.move_to.astimezone(UTC),
        )
    return list(by_fire_time.values())


def _run(override: Override) -> PlannedRun:
    if override.move_to is None:
        return PlannedRun(
            override.fire_time,
            override.fire_time,
            (f"added by hand{_because(override)}",),
            overridden=True,
        )
    remark = (
        f"moved by hand from {override.fire_time:%Y-%m-%dT%H:%M:%SZ} to"
        f" {override.move_to:%Y-%m-%dT%H:%M:%SZ}{_because(override)}"
    )
    return PlannedRun(override.fire_time, override.move_to, (remark,), overridden=True)


def _because(override: Override) -> str:
    return f": {override.reason}" if override.reason else ""


# Composes an agenda of the layers that a schedule needs.


def agenda(
    timetable: Timetable,
    *,
    zone: str,
    days: BusinessDays | None = None,
    roll: Roll = Roll.SKIP,
    start: datetime | None = None,
    end: datetime | None = None,
    overrides: Sequence[Override] = (),
) -> Agenda:
    """Return the agenda of this timetable.

    ``start`` and ``end`` bound the fire times, both included; runs that a calendar rolls or an
    operator moves may be outside of them. Rolling keeps the wall time of the day. Raises
    InvalidSchedule if the end is before the start.
    """
    if start is not None and start.year > LAST_YEAR:
        raise InvalidSchedule(
            f"start_time={start}: schedules are computed up to the year {LAST_YEAR}.",
            option="start_time",
        )
    if start is not None and end is not None and end < start:
        raise InvalidSchedule(
            f"end_time={end} is before start_time={start}: no fire lies between.", option="end_time"
        )
    fires = timetable
    if start is not None or end is not None:
        fires = BoundedTimetable(
            fires, start and start.astimezone(UTC), end and end.astimezone(UTC)
        )
    edits = {override: fire_at(fires, override.fire_time) for override in checked(overrides)}
    # The others have no effect: the schedule does not fire at their time.
    effective = [
        change for change, fire in edits.items() if change.action == Action.ADD or fire is not None
    ]
    if effective:
        out = (override.fire_time for override, fire in edits.items() if fire is not None)
        fires = TimetableExcept(fires, frozenset(out))
    remaining = (
        EveryFire(fires)
        if days is None
        else OnOpenDays(fires, CalendarSegments(days, Roll(roll), WallClock(zone)))
    )
    if not effective:
        return remaining
    runs = sorted(
        (_run(change) for change in effective if change.action != Action.SKIP),
        key=lambda run: (run.at, run.nominal),
    )
    met = tuple(late for early, late in pairwise(runs) if early.at == late.at)
    skipped = tuple(change for change in effective if change.action == Action.SKIP)
    return Overridden(remaining, tuple(run for run in runs if run not in met), met, skipped)
