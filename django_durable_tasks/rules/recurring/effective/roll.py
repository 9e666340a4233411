"""Where a roll takes an hour of a closed day, and for which hours of that day the answer is the
same.
"""

from __future__ import annotations

from datetime import date, time, timedelta
from typing import NamedTuple

from django_durable_tasks.rules.recurring.calendars import BusinessDays, Roll

ONE_DAY = timedelta(days=1)


class Landing(NamedTuple):
    """The day rolled to, None if no day is open; the same for all hours after ``above``, up to and
    with ``up_to``.
    """

    day: date | None
    above: time | None
    up_to: time | None


def landing(days: BusinessDays, day: date, hour: time, roll: Roll) -> Landing:
    """Return where an hour rolls to that is closed on its day; nowhere by SKIP."""
    if roll is Roll.SKIP:
        return Landing(None, days.closes(day), None)
    if roll is Roll.PRECEDING:
        return _nearest(days, day, hour, -ONE_DAY)
    following = _nearest(days, day, hour, ONE_DAY)
    if roll is Roll.FOLLOWING or (
        following.day is not None and _month(following.day) == _month(day)
    ):
        return following
    preceding = _nearest(days, day, hour, -ONE_DAY)
    return preceding._replace(above=_later(following.above, preceding.above))


def _nearest(days: BusinessDays, day: date, hour: time, step: timedelta) -> Landing:
    above = days.closes(day)
    for one in days.may_open(day, step):
        if days.open_at(one, hour):
            return Landing(one, above, days.closes(one))
        above = _later(above, days.closes(one))
    return Landing(None, above, None)


def _later(one: time | None, other: time | None) -> time | None:
    return max(filter(None, (one, other)), default=None)


def _month(day: date) -> tuple[int, int]:
    return day.year, day.month
