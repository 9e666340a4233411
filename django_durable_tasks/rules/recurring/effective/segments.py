"""The time line cut where a calendar opens, closes, or sends its fires elsewhere, so that no fire
is looked at in vain.

A piece holds fire times of one kind: all open, or all rolled to one day. Within a piece the clock
does not change.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import NamedTuple

from django_durable_tasks.rules.recurring.calendars import FARTHEST, BusinessDays, Roll, days_from
from django_durable_tasks.rules.recurring.effective.roll import ONE_DAY, Landing, landing
from django_durable_tasks.rules.recurring.effective.types import TICK, Planned
from django_durable_tasks.rules.recurring.effective.wall_clock import Walls
from django_durable_tasks.rules.recurring.timetables.types import Fire

_LONGEST = 31  # days in one piece
_CALM = 10  # days within which it is cheaper to look at each day than to search


class Piece(NamedTuple):
    """A half-open range of instants; ``day`` is where its fires are rolled to."""

    start: datetime
    end: datetime
    open: bool
    day: date | None


@dataclass(frozen=True, slots=True)
class Cuts:
    """The pieces of one calendar, roll and zone."""

    days: BusinessDays
    roll: Roll
    walls: Walls

    def why_closed(self, moment: datetime) -> str:
        """Return why this instant is closed; "" when it is open."""
        return self.days.why_closed(self.walls.shown(moment))

    def landing(self, moment: datetime) -> Landing:
        """Return where a fire of this closed instant is rolled to."""
        wall = self.walls.shown(moment)
        return landing(self.days, wall.date(), wall.time(), self.roll)

    def piece(self, moment: datetime) -> Piece:
        """Return the piece around an instant."""
        wall = self.walls.shown(moment)
        day, hour = wall.date(), wall.time()
        if self.days.open_at(day, hour):
            return self._run(moment, day, opened=True)
        if self.roll is Roll.SKIP:
            return self._run(moment, day, opened=False)
        found = landing(self.days, day, hour, self.roll)
        return self._between(
            moment, _past(day, found.above), _through(day, found.up_to), found.day, opened=False
        )

    def planned(self, fire: Fire, day: date | None) -> Planned:
        """Return the run of a fire, rolled to this day unless it is None."""
        if day is None:
            return Planned(fire.nominal, fire.nominal, fire.notes)
        wall = self.walls.shown(fire.nominal)
        wanted = datetime.combine(day, wall.time())
        at = self.walls.lands(wanted)
        notes = [f"rolled from {wall:%Y-%m-%d %H:%M} ({self.days.why_closed(wall)}) by {self.roll}"]
        if (landed := self.walls.shown(at)) != wanted:
            notes.append(
                f"DST gap: {wanted:%H:%M} does not exist on {day} in {self.walls.name}; runs right"
                f" after it, at {landed:%H:%M}"
            )
        return Planned(fire.nominal, at, (*fire.notes, *notes), rolled=True)

    def beyond(self, fire: Fire, day: date, moment: datetime) -> timedelta:
        """Return how far the reach of an instant lies after the wall time that the fire is rolled
        to.
        """
        return self.walls.reach(moment) - datetime.combine(
            day, self.walls.shown(fire.nominal).time()
        )

    def calm(self, first: datetime, last: datetime) -> bool:
        """Tell cheaply whether nothing is rolled into this range: it and the days around it are
        open.
        """
        day, end = self.walls.shown(first).date() - ONE_DAY, self.walls.shown(last).date() + ONE_DAY
        if (end - day).days > _CALM:
            return False
        return all(self._whole(day + n * ONE_DAY, opened=True) for n in range((end - day).days + 1))

    def sources_after(self, at: datetime) -> datetime:
        """Return an instant after which lie all fires that can be rolled to ``at`` or later."""
        if self.roll is Roll.PRECEDING:
            return at - TICK
        day = self._nearest_whole(self.walls.shown(at).date(), -ONE_DAY)
        if (
            self.walls.lands(datetime.combine(day, time.max)) >= at
        ):  # the clock jumped over the end of this day
            day = self._nearest_whole(day, -ONE_DAY)
        return self.walls.lands(datetime.combine(day + ONE_DAY, time.min)) - TICK

    def sources_before(self, at: datetime) -> datetime:
        """Return an instant before which lie all fires that can be rolled to ``at`` or earlier."""
        if self.roll is Roll.FOLLOWING:
            return at + TICK
        day = self._nearest_whole(self.walls.shown(at).date(), ONE_DAY)
        if (
            self.walls.lands(datetime.combine(day, time.min)) <= at
        ):  # the clock was put back over this midnight
            day = self._nearest_whole(day, ONE_DAY)
        return self.walls.leaves(datetime.combine(day, time.min))

    def _run(self, moment: datetime, day: date, *, opened: bool) -> Piece:
        """Return the piece of whole days that are all open, or all closed; an end may be a half
        day's hour.
        """
        hour = self.days.closes(day)
        first = day if hour and not opened else self._alike(day, -ONE_DAY, opened=opened)
        last = day if hour and opened else self._alike(day, ONE_DAY, opened=opened)
        low, high = (None, hour) if opened else (hour, None)
        return self._between(moment, _past(first, low), _through(last, high), None, opened=opened)

    def _between(
        self, moment: datetime, low: datetime, high: datetime, day: date | None, *, opened: bool
    ) -> Piece:
        return Piece(self.walls.since(moment, low), self.walls.until(moment, high), opened, day)

    def _alike(self, day: date, step: timedelta, *, opened: bool) -> date:
        """Return the last of the days that are open, or closed, as a whole without a break."""
        end = day
        for one, _ in zip(days_from(day, step), range(_LONGEST), strict=False):
            if not self._whole(one, opened=opened):
                break
            end = one
        return end

    def _whole(self, day: date, *, opened: bool) -> bool:
        return self.days.is_open(day) is opened and self.days.closes(day) is None

    def _nearest_whole(self, day: date, step: timedelta) -> date:
        whole = (one for one in self.days.may_open(day, step) if self._whole(one, opened=True))
        return next(whole, day + (FARTHEST - 1) * step)


def _past(day: date, hour: time | None) -> datetime:
    return datetime.combine(day, time.min) if hour is None else datetime.combine(day, hour) + TICK


def _through(day: date, hour: time | None) -> datetime:
    return (
        datetime.combine(day + ONE_DAY, time.min)
        if hour is None
        else datetime.combine(day, hour) + TICK
    )
