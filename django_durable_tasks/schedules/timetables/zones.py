"""Time zones from the ``tzdata`` package, and the stretches of one UTC offset in them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from functools import cache, lru_cache
from importlib import resources
from itertools import accumulate, pairwise
from typing import NamedTuple
from zoneinfo import ZoneInfo

from django_durable_tasks.exceptions import InvalidSchedule
from django_durable_tasks.texts import nearest

# Time zones by name, always from the ``tzdata`` package, so that all nodes with the same package
# compute the same fire times.
#
# The system's time zone database is never used: it may be years older, and then some zones are an
# hour off.


_REFUSED = {
    "localtime": "it means a different zone on each machine",
    "Factory": "it is a placeholder for a time zone that is not configured",
}


@cache
def tzdata_version() -> str:
    """Return the release of the time zone database in use, for example 2026f."""
    with resources.files("tzdata.zoneinfo").joinpath("tzdata.zi").open(encoding="ascii") as table:
        return table.readline().rpartition(" ")[2].strip()


@cache
def zone_names() -> frozenset[str]:
    """Return all valid names of time zones."""
    names = resources.files("tzdata").joinpath("zones").read_text(encoding="ascii").split()
    return frozenset(names) - _REFUSED.keys()


def zone_name(value: object) -> str:
    """Return the validated name of a zone given as text, ZoneInfo, pytz zone or datetime.UTC;
    raises InvalidSchedule.
    """
    if value is UTC:
        return "UTC"
    name = (
        value
        if isinstance(value, str)
        else getattr(value, "key", None) or getattr(value, "zone", None)
    )
    if not isinstance(name, str):
        raise InvalidSchedule.of(
            "timezone", value, "give the name of a zone, for example 'Europe/Berlin'."
        )
    if name in zone_names():
        return name
    name = name[:60]
    family, _, zone_in_family = name.partition("/")
    folded = {listed.casefold(): listed for listed in zone_names()}
    if name in _REFUSED:
        objection = f"{_REFUSED[name]}; name the zone itself, for example 'Europe/Berlin' or 'UTC'."
    elif family in {"right", "posix"}:
        objection = f"tables under {family}/ are not used here; write {zone_in_family!r}."
    elif near := nearest(name.casefold(), folded):
        objection = f"no such zone; did you mean {folded[near]}?"
    else:
        objection = "no such zone; write for example 'Europe/Berlin'."
    raise InvalidSchedule.of("timezone", name, objection)


@cache
def zone(name: str) -> ZoneInfo:
    """Return the zone of this name from the tzdata package; raises InvalidSchedule with the closest
    names.
    """
    with (
        resources.files("tzdata.zoneinfo").joinpath(*zone_name(name).split("/")).open("rb") as table
    ):
        return ZoneInfo.from_file(table, key=name)


# The stretches of one UTC offset of a zone. All conversions between wall times and instants are
# based on them.
#
# Times are whole seconds; day 1 of the calendar (date.toordinal) begins at second 86,400. An
# instant is counted by its reading in UTC, a wall time by its local reading.


DAY = 86_400
FIRST_YEAR, LAST_YEAR = 2, 9_998  # beyond these the offset of a zone leaves the range of datetime
_MARGIN = 3 * DAY  # longer than any clock change in the time zone database
_PROBE = DAY  # no zone has two changes within three days


class OffsetPeriod(NamedTuple):
    """A half-open range of instants with one offset.

    ``floor`` is the latest wall time shown before it: an earlier wall time is a repetition, a start
    above it is a gap. ``ceiling`` is the earliest wall time shown after it: from there on this
    stretch is repeated.
    """

    start: int
    end: int
    offset: int
    floor: int
    ceiling: int


def reading(moment: datetime) -> int:
    """Return an instant or wall time as whole seconds."""
    return moment.toordinal() * DAY + moment.hour * 3600 + moment.minute * 60 + moment.second


def instant(second: int) -> datetime:
    """Return the aware UTC datetime of an instant in seconds."""
    return datetime.fromordinal(second // DAY).replace(tzinfo=UTC) + timedelta(seconds=second % DAY)


def wall(second: int) -> datetime:
    """Return the naive datetime of a wall time in seconds."""
    return datetime.fromordinal(second // DAY) + timedelta(seconds=second % DAY)


def year_of(second: int) -> int:
    """Return the calendar year of a second."""
    return date.fromordinal(min(max(second // DAY, 1), date.max.toordinal())).year


def upwards(name: str, second: int) -> Iterator[OffsetPeriod]:
    """Yield the stretch that contains the instant and all later ones, to the end of the
    calendar.
    """
    for year in range(max(year_of(second), FIRST_YEAR), LAST_YEAR + 1):
        for stretch in stretches(name, year):
            if stretch.end > second:
                yield stretch


def downwards(name: str, second: int) -> Iterator[OffsetPeriod]:
    """Yield the stretch that contains the instant and all earlier ones, to the start of the
    calendar.
    """
    for year in range(min(year_of(second), LAST_YEAR), FIRST_YEAR - 1, -1):
        for stretch in reversed(stretches(name, year)):
            if stretch.start <= second:
                yield stretch


@lru_cache(maxsize=8192)
def stretches(name: str, year: int) -> tuple[OffsetPeriod, ...]:
    """Return the stretches of a zone in a UTC year, also divided at the turn of the year."""
    start, end = date(year, 1, 1).toordinal() * DAY, date(year + 1, 1, 1).toordinal() * DAY
    edges = [start - _MARGIN, *_changes(name, start - _MARGIN, end + _MARGIN)]
    offsets = [_offset(name, edge) for edge in edges]
    ends = [*edges[1:], end + _MARGIN]
    floors = [
        start - 2 * _MARGIN,
        *accumulate((edge + offset for edge, offset in zip(ends, offsets, strict=True)), max),
    ]
    begins = [edge + offset for edge, offset in zip(edges, offsets, strict=True)]
    ceilings = [*list(accumulate(reversed(begins), min))[-2::-1], end + 2 * _MARGIN]
    whole = zip(edges, ends, offsets, floors, ceilings, strict=False)
    return tuple(
        _within(OffsetPeriod(*values), start, end)
        for values in whole
        if values[0] < end and values[1] > start
    )


def _within(stretch: OffsetPeriod, start: int, end: int) -> OffsetPeriod:
    """Return the part inside the year. The division is not a clock change, so the wall time
    continues over it.
    """
    inside = stretch._replace(start=max(stretch.start, start), end=min(stretch.end, end))
    return inside._replace(
        floor=max(stretch.floor, start + stretch.offset)
        if stretch.start < start
        else stretch.floor,
        ceiling=min(stretch.ceiling, end + stretch.offset)
        if stretch.end > end
        else stretch.ceiling,
    )


def _changes(name: str, start: int, end: int) -> Iterator[int]:
    """Yield the instants at which the offset changes, found by sampling and bisection."""
    before = _offset(name, start)
    for low in range(start, end, _PROBE):
        high = min(low + _PROBE, end)
        if (after := _offset(name, high)) != before:
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (low, middle) if _offset(name, middle) == after else (middle, high)
            yield high
            before = after


def _offset(name: str, second: int) -> int:
    offset = instant(second).astimezone(zone(name)).utcoffset()
    return 0 if offset is None else round(offset.total_seconds())


class ClockChange(NamedTuple):
    """The instant (UTC) of a change, and the difference. A positive one leaves a gap in the wall
    times.
    """

    at: datetime
    shift: timedelta


def clock_changes(zone: str, start: datetime, end: datetime) -> Iterator[ClockChange]:
    """Yield the changes of a zone's clock in (start, end], in order; raises InvalidSchedule for an
    unknown zone.
    """
    first, last = reading(start), reading(end)
    for before, after in pairwise(upwards(zone, first)):
        if after.start > last:
            return
        if before.offset != after.offset and after.start > first:
            yield ClockChange(instant(after.start), timedelta(seconds=after.offset - before.offset))
