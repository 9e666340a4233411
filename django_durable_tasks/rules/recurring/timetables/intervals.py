"""A fixed interval of elapsed time, counted from an anchor: no drift, independent of clock
changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django_durable_tasks.exceptions import InvalidOption, InvalidSchedule
from django_durable_tasks.rules.recurring.timetables.types import Count, Fire, TimetableContext
from django_durable_tasks.rules.tasks.durations import seconds

_SHORTEST = 0.001  # a node could not start more fires per second
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Interval:
    """Fires at ``anchor + k * step`` for every k from 0; counted in whole microseconds."""

    anchor: datetime
    step: timedelta

    def next(self, after: datetime) -> Fire | None:
        """Return the first grid point strictly after; None beyond the year 9999."""
        if after < self.anchor:
            return Fire(self.anchor)
        try:
            return Fire(self.anchor + ((after - self.anchor) // self.step + 1) * self.step)
        except OverflowError:
            return None

    def previous(self, before: datetime) -> Fire | None:
        """Return the last grid point strictly before; None up to the anchor."""
        if before <= self.anchor:
            return None
        return Fire(self.anchor + ((before - self.anchor - _MICROSECOND) // self.step) * self.step)

    def count(self, after: datetime, until: datetime) -> Count:
        """Return the number of grid points in (after, until], in closed form."""
        if until <= after:
            return Count(0)
        return Count(max(self._up_to(until) - self._up_to(after), 0))

    def _up_to(self, moment: datetime) -> int:
        return (moment - self.anchor) // self.step + 1 if moment >= self.anchor else 0


def checked(part: Mapping[str, Any], setting: TimetableContext) -> dict[str, Any]:
    """Return the canonical part; raises InvalidSchedule for an interval that is not positive, too
    long, or not a duration.
    """
    value = part["interval"]
    try:
        length = seconds("interval", value)
    except InvalidOption as error:
        raise InvalidSchedule(str(error)) from error
    if length < _SHORTEST:
        raise InvalidSchedule(f"interval={value!r}: it must be {_SHORTEST:g} seconds or more.")
    return {"interval": length}


def build(part: Mapping[str, Any], setting: TimetableContext) -> Interval:
    """Return the timetable of a checked part."""
    return Interval(setting.anchor, timedelta(seconds=part["interval"]))
