"""The effective schedule by brute force: every fire is mapped separately, and every minute of a
zone is examined.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

from django_durable_tasks.schedules.business_days import BusinessDays, Roll
from django_durable_tasks.schedules.timetables.types import Count, Fire

DAY, MINUTE = timedelta(days=1), timedelta(minutes=1)
MARGIN = 45 * DAY
LENGTH = 18 * DAY


@dataclass(frozen=True)
class Instants:
    """The timetable of a list."""

    fires: Sequence[datetime]

    def next(self, after: datetime) -> Fire | None:
        """Return the first fire strictly after."""
        place = bisect_right(self.fires, after)
        return Fire(self.fires[place]) if place < len(self.fires) else None

    def previous(self, before: datetime) -> Fire | None:
        """Return the last fire strictly before."""
        place = bisect_left(self.fires, before)
        return Fire(self.fires[place - 1]) if place else None

    def count(self, after: datetime, until: datetime) -> Count:
        """Return the fires in (after, until]."""
        return Count(max(bisect_right(self.fires, until) - bisect_right(self.fires, after), 0))


@cache
def first_shown(zone: str, start: datetime) -> dict[datetime, datetime]:
    """Return for every wall minute of some months the first instant that shows it."""
    table: dict[datetime, datetime] = {}
    clock, moment = ZoneInfo(zone), start - MARGIN
    while moment < start + LENGTH + MARGIN:
        table.setdefault(moment.astimezone(clock).replace(tzinfo=None, fold=0), moment)
        moment += MINUTE
    return table


def lands(zone: str, start: datetime, wall: datetime) -> datetime:
    """Return the instant of a wall minute, or the first existing one after it."""
    table = first_shown(zone, start)
    while wall not in table:
        wall += MINUTE
    return table[wall]


def target(days: BusinessDays, wall: datetime, roll: Roll) -> date | None:
    """Return the day that a closed wall time is rolled to, at most 40 days away."""

    def nearest(step: int) -> date | None:
        days_on = (wall + step * n * DAY for n in range(1, 40))
        return next((one.date() for one in days_on if not days.why_closed(one)), None)

    following, preceding = nearest(1), nearest(-1)
    if roll is Roll.MODIFIED_FOLLOWING:
        same_month = following is not None and (following.year, following.month) == (
            wall.year,
            wall.month,
        )
        return following if same_month else preceding
    return {Roll.FOLLOWING: following, Roll.PRECEDING: preceding, Roll.SKIP: None}[roll]


def stream(
    fires: Sequence[datetime], zone: str, start: datetime, days: BusinessDays, roll: Roll
) -> dict[datetime, datetime]:
    """Return the nominal time of each run by the instant at which it runs, in order."""
    runs: dict[datetime, tuple[bool, datetime]] = {}
    for nominal in fires:
        wall = nominal.astimezone(ZoneInfo(zone)).replace(tzinfo=None, fold=0)
        at, rolled = nominal, bool(days.why_closed(wall))
        if rolled:
            day = target(days, wall, roll)
            if day is None:
                continue
            at = lands(zone, start, datetime.combine(day, wall.time()))
        runs[at] = min(runs.get(at, (True, datetime.max.replace(tzinfo=UTC))), (rolled, nominal))
    return {at: runs[at][1] for at in sorted(runs)}
