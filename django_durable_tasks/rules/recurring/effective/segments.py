"""Divides time into segments in which a calendar treats all fire times alike, so that they need not
be examined singly.

The fire times of a segment are all open, or all rolled to the same day. Within a segment the offset
of the zone does not change.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import NamedTuple

from django_durable_tasks.rules.recurring.calendars import FARTHEST, BusinessDays, Roll, days_from
from django_durable_tasks.rules.recurring.effective.roll import ONE_DAY, RolledDay, landing
from django_durable_tasks.rules.recurring.effective.types import TICK, PlannedRun
from django_durable_tasks.rules.recurring.effective.wall_clock import WallClock
from django_durable_tasks.rules.recurring.timetables.types import Fire

_LONGEST = 31  # maximum number of days in one segment
_CALM = 10  # for this many days it is cheaper to examine each day than to search


class Segment(NamedTuple):
    """A half-open range of instants; ``day`` is the day to which its fires are rolled."""

    start: datetime
    end: datetime
    open: bool
    day: date | None


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
        found = landing(self.days, day, hour, self.roll)
        return self._between(
            moment, _past(day, found.above), _through(day, found.up_to), found.day, opened=False
        )

    def planned(self, fire: Fire, day: date | None) -> PlannedRun:
        """Return the run of a fire, rolled to this day unless ``day`` is None."""
        if day is None:
            return PlannedRun(fire.nominal, fire.nominal, fire.remarks)
        wall = self.clock.shown(fire.nominal)
        wanted = datetime.combine(day, wall.time())
        at = self.clock.lands(wanted)
        remarks = [
            f"rolled from {wall:%Y-%m-%d %H:%M} ({self.days.why_closed(wall)}) by {self.roll}"
        ]
        if (landed := self.clock.shown(at)) != wanted:
            remarks.append(
                f"DST gap: {wanted:%H:%M} does not exist on {day} in {self.clock.name}; runs right"
                f" after it, at {landed:%H:%M}"
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

    def sources_after(self, at: datetime) -> datetime:
        """Return an instant before which no fire can be rolled to ``at`` or later."""
        if self.roll is Roll.PRECEDING:
            return at - TICK
        day = self._nearest_whole(self.clock.shown(at).date(), -ONE_DAY)
        if (
            self.clock.lands(datetime.combine(day, time.max)) >= at
        ):  # the clock was put forward over the end of this day
            day = self._nearest_whole(day, -ONE_DAY)
        return self.clock.lands(datetime.combine(day + ONE_DAY, time.min)) - TICK

    def sources_before(self, at: datetime) -> datetime:
        """Return an instant after which no fire can be rolled to ``at`` or earlier."""
        if self.roll is Roll.FOLLOWING:
            return at + TICK
        day = self._nearest_whole(self.clock.shown(at).date(), ONE_DAY)
        if (
            self.clock.lands(datetime.combine(day, time.min)) <= at
        ):  # the clock was put back over this midnight
            day = self._nearest_whole(day, ONE_DAY)
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
        return Segment(self.clock.since(moment, low), self.clock.until(moment, high), opened, day)

    def _alike(self, day: date, step: timedelta, *, opened: bool) -> date:
        """Return the last day of the uninterrupted range of entirely open, or entirely closed,
        days.
        """
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
