"""An independent reference: a table of what the wall clock showed, minute by minute, from which
cron fires are read.

It shares no code with the package: zones are read from the tzdata files, expressions by a few plain
lines, and nothing here uses offsets, transitions or intervals.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from functools import cache
from importlib import resources
from zoneinfo import ZoneInfo

_NAMES = {"SUN": 0, "MON": 1, "TUE": 2, "WED": 3, "THU": 4, "FRI": 5, "SAT": 6}
# A step without an end ("1/3") ends with the field, that of weekdays with Saturday.
_BOUNDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))
MINUTE = timedelta(minutes=1)
_MARGIN = timedelta(hours=26)  # longer than any clock change in these years


@cache
def table(name: str) -> bytes:
    """Return the file of a zone."""
    return resources.files("tzdata.zoneinfo").joinpath(*name.split("/")).read_bytes()


@cache
def clock_of(name: str) -> ZoneInfo:
    """Return the zone from its file."""
    with resources.files("tzdata.zoneinfo").joinpath(*name.split("/")).open("rb") as file:
        return ZoneInfo.from_file(file)


class Expression:
    """A cron expression of numbers, weekday names, stars, ranges, lists and steps."""

    def __init__(self, text: str) -> None:
        words = text.split()
        minutes, hours, self.dates, self.months, weekdays = (
            self._read(word, *bounds) for word, bounds in zip(words, _BOUNDS, strict=True)
        )
        self.weekdays = {number % 7 for number in weekdays}
        self.times = sorted(hour * 60 + minute for hour in hours for minute in minutes)
        self.wildcard = "*" in (words[0][0], words[1][0])
        self.either = "*" not in (words[2][0], words[4][0])

    @staticmethod
    def _read(word: str, low: int, high: int) -> set[int]:
        found: set[int] = set()
        for item in word.split(","):
            values, _, step = item.partition("/")
            first, _, last = values.replace("*", f"{low}-{high}").partition("-")
            start = _NAMES.get(first.upper(), -1) if first.isalpha() else int(first)
            end = (
                (high if step else start)
                if not last
                else _NAMES.get(last.upper(), -1)
                if last.isalpha()
                else int(last)
            )
            found |= set(range(start, end + 1, int(step or 1)))
        return found

    def on(self, day: date) -> bool:
        """Return whether the day matches."""
        by_date, by_weekday = day.day in self.dates, day.isoweekday() % 7 in self.weekdays
        return day.month in self.months and (
            (by_date or by_weekday) if self.either else (by_date and by_weekday)
        )


class Diary:
    """For each minute that the wall clock showed: the instants at which it did."""

    def __init__(self, name: str, start: datetime, end: datetime, step: timedelta = MINUTE) -> None:
        self.step, self.start, self.end = step, start, end
        self.shown: dict[datetime, list[datetime]] = {}
        zone, moment = clock_of(name), start - _MARGIN
        while moment < end + _MARGIN:
            self.shown.setdefault(moment.astimezone(zone).replace(tzinfo=None), []).append(moment)
            moment += step

    def fires(
        self, expression: Expression, gap: str = "RUN_AFTER", overlap: str = "FIRST"
    ) -> list[datetime]:
        """Return every fire in [start, end)."""
        if expression.wildcard:
            gap, overlap = "SKIP", "BOTH"
        found: set[datetime] = set()
        for slot in self._slots(expression):
            found.update(self._instants(slot, gap, overlap))
        return sorted(moment for moment in found if self.start <= moment < self.end)

    def _slots(self, expression: Expression) -> Iterator[datetime]:
        first, last = min(self.shown), max(self.shown)
        for number in range((last.date() - first.date()).days + 1):
            day = first.date() + timedelta(days=number)
            if expression.on(day):
                midnight = datetime.combine(day, datetime.min.time())
                slots = (midnight + timedelta(minutes=time) for time in expression.times)
                yield from (slot for slot in slots if first <= slot <= last)

    def _instants(self, slot: datetime, gap: str, overlap: str) -> list[datetime]:
        if moments := self.shown.get(slot):
            return (
                moments
                if overlap == "BOTH"
                else moments[:1]
                if overlap == "FIRST"
                else moments[-1:]
            )
        if gap == "SKIP":
            return []
        while slot not in self.shown:
            slot += self.step
        return self.shown[slot][:1]


def changing_days(name: str, first: int, last: int) -> Iterator[datetime]:
    """Yield each day in UTC, of the years from first to last, in which the zone's clock changed."""
    zone, day = clock_of(name), datetime(first, 1, 1, tzinfo=UTC)
    before = day.astimezone(zone).utcoffset()
    while day.year <= last:
        after = (day + timedelta(days=1)).astimezone(zone).utcoffset()
        if after != before:
            yield day
        day, before = day + timedelta(days=1), after
