"""Sunrise, sunset, noon and twilights at a place, accurate to about a minute.

Source: the solar equations of NOAA's Global Monitoring Laboratory (after Meeus, Astronomical
Algorithms), each event refined at its own time. Sunrise and sunset are those of the upper
limb with refraction (zenith 90.833 degrees), twilights are those of the centre; as
django-celery-beat has them from ephem. Instants are whole seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import acos, asin, cos, degrees, radians, sin, tan
from typing import Any

from django_durable_tasks.exceptions import InvalidSchedule
from django_durable_tasks.schedules.timetables.types import (
    TICK,
    BothWays,
    Count,
    Direction,
    Fire,
    TimetableContext,
)

_HORIZON, _CIVIL, _NAUTICAL, _ASTRONOMICAL = 90.833, 96.0, 102.0, 108.0
_EVENTS = {  # the zenith angle in degrees, and the side of noon
    "dawn_astronomical": (_ASTRONOMICAL, 1),
    "dawn_nautical": (_NAUTICAL, 1),
    "dawn_civil": (_CIVIL, 1),
    "sunrise": (_HORIZON, 1),
    "solar_noon": (0.0, 0),
    "sunset": (_HORIZON, -1),
    "dusk_civil": (_CIVIL, -1),
    "dusk_nautical": (_NAUTICAL, -1),
    "dusk_astronomical": (_ASTRONOMICAL, -1),
}
_LONGEST_NIGHT = 370  # days; an event that does not occur within a year never occurs
_WALKED_DAYS = 4_000
_J2000 = 730_120.5  # 1 January 2000, 12:00 UTC, in days as date.toordinal counts them
_CENTURY = 36_525.0
_FIRST_DAY, _LAST_DAY = 800, 3_651_000  # the calendar, less than two years at either end


@dataclass(frozen=True, slots=True)
class Solar(BothWays[Fire]):
    """Fires ``offset`` after the event of each day at the place; days without the event (polar
    regions) have no fire.
    """

    event: str
    latitude: float
    longitude: float
    offset: timedelta

    def step(self, moment: datetime, way: Direction) -> Fire | None:
        """Return the nearest fire; None if the event does not occur within a year."""
        moment, sign = moment - self.offset, way.value
        today = moment.toordinal()
        for day in range(today - sign, today + sign * _LONGEST_NIGHT, sign):
            if (event := self._on(day)) and way.is_beyond(event, moment):
                return Fire(event + self.offset)
        return None

    def count(self, after: datetime, until: datetime) -> Count:
        """Return the number of fires in (after, until]. They are counted day by day, so above about
        ten years the number is a lower bound.
        """
        low, high = after - self.offset, until - self.offset
        days = range(low.toordinal() - 1, high.toordinal() + 2)[:_WALKED_DAYS]
        number = sum(1 for day in days if (event := self._on(day)) and low < event <= high)
        return Count(number, exact=not days or days[-1] > high.toordinal())

    def _on(self, day: int) -> datetime | None:
        """Return the event of the solar day whose noon is within half a day of the day's noon in
        UTC.
        """
        if not _FIRST_DAY <= day <= _LAST_DAY:
            return None
        (zenith, side), latitude = _EVENTS[self.event], radians(self.latitude)
        minutes: float = 720 - 4 * self.longitude
        for _ in range(4):
            declination, equation = _sun(day + minutes / 1440)
            angle = 0.0  # how many degrees the earth turns between the event and noon
            if side:
                cosine = cos(radians(zenith)) / (cos(latitude) * cos(declination)) - tan(
                    latitude
                ) * tan(declination)
                if not -1.0 <= cosine <= 1.0:
                    return None  # the sun does not reach that height
                angle = degrees(acos(cosine))
            minutes = 720 - 4 * (self.longitude + side * angle) - equation
        return datetime.fromordinal(day).replace(tzinfo=UTC) + timedelta(
            seconds=round(minutes * 60)
        )


def _sun(day: float) -> tuple[float, float]:
    """Return the declination in radians and the equation of time in minutes."""
    time = (day - _J2000) / _CENTURY
    longitude = radians((280.46646 + time * (36_000.76983 + time * 0.0003032)) % 360)
    anomaly = radians(357.52911 + time * (35_999.05029 - 0.0001537 * time))
    eccentricity = 0.016708634 - time * (0.000042037 + 0.0000001267 * time)
    centre = (
        sin(anomaly) * (1.914602 - time * (0.004817 + 0.000014 * time))
        + sin(2 * anomaly) * (0.019993 - 0.000101 * time)
        + sin(3 * anomaly) * 0.000289
    )
    node = radians(125.04 - 1934.136 * time)
    apparent = longitude + radians(centre - 0.00569 - 0.00478 * sin(node))
    mean_tilt = (
        23 + (26 + (21.448 - time * (46.815 + time * (0.00059 - time * 0.001813))) / 60) / 60
    )
    tilt = radians(mean_tilt + 0.00256 * cos(node))
    y = tan(tilt / 2) ** 2
    equation = (
        y * sin(2 * longitude)
        - 2 * eccentricity * sin(anomaly)
        + 4 * eccentricity * y * sin(anomaly) * cos(2 * longitude)
        - 0.5 * y * y * sin(4 * longitude)
        - 1.25 * eccentricity * eccentricity * sin(2 * anomaly)
    )
    return asin(sin(tilt) * sin(apparent)), 4 * degrees(equation)


def checked(part: Mapping[str, Any], setting: TimetableContext) -> dict[str, Any]:
    """Return the canonical part; degrees north and east are positive, offset in seconds. Raises
    InvalidSchedule.
    """
    if part["solar"] not in tuple(_EVENTS):
        raise InvalidSchedule.of("solar", part["solar"], f"give one of {', '.join(_EVENTS)}.")
    return {
        "solar": part["solar"],
        "latitude": _within("latitude", part.get("latitude"), 90),
        "longitude": _within("longitude", part.get("longitude"), 180),
        "offset": _within("offset", part.get("offset", 0), 86_400),
    }


def build(part: Mapping[str, Any], setting: TimetableContext) -> Solar:
    """Return the timetable of a checked part."""
    return Solar(
        part["solar"], part["latitude"], part["longitude"], timedelta(seconds=part["offset"])
    )


def never(part: Mapping[str, Any], setting: TimetableContext) -> str:
    """Return why the event never occurs at the place, or an empty text."""
    if build(part, setting).next(setting.anchor - TICK):
        return ""
    return f"solar={part['solar']!r} never comes at latitude {part['latitude']:g}."


def _within(name: str, value: object, limit: float) -> float:
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if (
        isinstance(number, bool)
        or not isinstance(number, int | float)
        or not -limit <= number <= limit
    ):
        raise InvalidSchedule.of(name, value, f"give a number from {-limit:g} to {limit:g}.")
    return float(number)
