"""The day to which a time on a closed day is rolled, and the range of times of that day with the
same result.
"""

from __future__ import annotations

from datetime import date, time, timedelta
from typing import NamedTuple

from django_durable_tasks.rules.recurring.calendars import BusinessDays, Roll

ONE_DAY = timedelta(days=1)


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
    above = days.closes(day)
    for one in days.may_open(day, step):
        if days.open_at(one, hour):
            return RolledDay(one, above, days.closes(one))
        above = _later(above, days.closes(one))
    return RolledDay(None, above, None)


def _later(one: time | None, other: time | None) -> time | None:
    return max(filter(None, (one, other)), default=None)


def _month(day: date) -> tuple[int, int]:
    return day.year, day.month
