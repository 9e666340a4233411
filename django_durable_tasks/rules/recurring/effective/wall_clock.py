"""Conversion between wall times of a zone and instants. A repeated wall time is its first pass. A
wall time in a gap is the end of the gap.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from django_durable_tasks.rules.recurring.effective.types import TICK
from django_durable_tasks.rules.recurring.timetables.zone_offsets import (
    FIRST_YEAR,
    LAST_YEAR,
    OffsetPeriod,
    instant,
    reading,
    stretches,
)
from django_durable_tasks.rules.recurring.timetables.zones import zone


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

    def until(self, moment: datetime, wall: datetime) -> datetime:
        """Return the instant at which the clock next shows this later wall time, at most the next
        change of its offset.
        """
        then, end = moment + (wall - self.shown(moment)), self._stretch(moment).end
        return then if reading(then) < end else instant(end)

    def since(self, moment: datetime, wall: datetime) -> datetime:
        """Return the instant at which the clock last showed this earlier wall time, at least the
        last change of its offset.
        """
        then, start = moment - (self.shown(moment) - wall), self._stretch(moment).start
        return then if reading(then) >= start else instant(start)

    def _stretch(self, moment: datetime) -> OffsetPeriod:
        second, year = reading(moment), min(max(moment.year, FIRST_YEAR), LAST_YEAR)
        found = stretches(self.name, year)
        return next((one for one in found if second < one.end), found[-1])

    def _last_change(self, moment: datetime) -> int:
        """Return the second at which the offset of this instant began. Longer ranges are cut at the
        turn of the year.
        """
        stretch = self._stretch(moment)
        before = self._stretch(instant(stretch.start) - timedelta(seconds=1))
        return before.start if before.offset == stretch.offset else stretch.start
