"""Computes when django-celery-beat would fire a row, with Celery's own schedules, and the
differences from this package.

Nothing is fired here: a simulated clock is passed to ``remaining_estimate``, as beat does with the
real clock.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from typing import Any

from celery import current_app, schedules
from celery.exceptions import ImproperlyConfigured

from django_durable_tasks import conf
from django_durable_tasks.contrib.beat.tables import BeatRow, Crontab, utc_text
from django_durable_tasks.schedules.agenda import Agenda
from django_durable_tasks.schedules.options import Fields
from django_durable_tasks.schedules.options import fields_of as fields_of_celerys
from django_durable_tasks.schedules.timetables.types import walk
from django_durable_tasks.schedules.timetables.zones import ClockChange, clock_changes, zone
from django_durable_tasks.store.clock import host_now

_SHOWN = 3
_STEADY = 20
_AHEAD = timedelta(days=400)  # each zone with clock changes has one within a year
_AROUND = timedelta(hours=4)
_WRITTEN = timedelta(minutes=3)  # Scheduler.sync_every: beat stores its last runs no more often
_LONG_AGO = timedelta(
    days=365 * 30
)  # the last run that beat assumes for a row with a start_time that never ran


@dataclass(frozen=True, slots=True)
class Comparison:
    """The next fire times here and in beat (None: unknown), and the differences as text."""

    here: list[datetime]
    beat: list[datetime] | None
    differences: tuple[str, ...]


class _Clock:
    def __init__(self, at: datetime) -> None:
        self.at = at

    def __call__(self) -> datetime:
        return self.at


def seen_by_beat(row: BeatRow) -> BeatRow:
    """Return the row as beat interprets it: with DJANGO_CELERY_BEAT_TZ_AWARE = False in the zone of
    Celery.
    """
    if row.crontab is None or conf.beat_knows_zones():
        return row
    return dataclasses.replace(
        row, crontab=dataclasses.replace(row.crontab, timezone=str(current_app.timezone))
    )


def fields_of(crontab: Crontab) -> Fields | None:
    """Return the numbers that Celery parses from the five fields; None if it cannot. Raises
    InvalidSchedule for an unknown zone.
    """
    zone(crontab.timezone)
    try:
        read = _crontab(crontab, _Clock(host_now()))
    except (ValueError, TypeError, schedules.ParseException):
        return None
    return fields_of_celerys(read)


def _crontab(crontab: Crontab, clock: _Clock) -> Any:
    minute, hour, day, month, weekday = crontab.texts
    schedule = schedules.crontab(
        minute=minute,
        hour=hour,
        day_of_month=day,
        month_of_year=month,
        day_of_week=weekday,
        nowfun=clock,
    )
    schedule.tz = zone(crontab.timezone)
    return schedule


def _schedule(row: BeatRow, clock: _Clock) -> Any:
    if row.crontab is not None:
        return _crontab(row.crontab, clock)
    if row.interval is not None:
        number, unit = row.interval
        return schedules.schedule(timedelta(**{unit: number}), nowfun=clock)
    event, latitude, longitude = row.solar or ("", 0.0, 0.0)
    return schedules.solar(event, latitude, longitude, nowfun=clock)


def fires(row: BeatRow, now: datetime, last: datetime | None = None) -> Iterator[datetime]:
    """Yield the instants (UTC) at which beat fires from ``now`` on, without delays.

    ``last`` is its last run. Without it the row's own is used, so that an overdue run comes at
    once.
    """
    if row.clocked is not None:
        yield max(row.clocked, now)
        return
    clock = _Clock(now)
    schedule = _schedule(row, clock)
    at, before = max(now, _gate(row, schedule, now)), last or _last_run(row, now)
    while row.expires is None or at < row.expires:
        clock.at = at
        remaining = schedule.remaining_estimate(before.astimezone(schedule.tz))
        if remaining > timedelta(0):
            at += remaining
            continue
        yield at
        if row.one_off:
            return
        before = at


def _gate(row: BeatRow, schedule: Any, now: datetime) -> datetime:
    """Return the instant before which beat does not run the row: its start_time, or for a crontab
    the first fire after it.
    """
    if row.start_time is None or row.start_time <= now:
        return now
    if row.crontab is None:
        return row.start_time
    start, ends_in, _ = schedule.remaining_delta(row.start_time.astimezone(schedule.tz))
    first: datetime = start + ends_in
    return first.astimezone(UTC)


def _last_run(row: BeatRow, now: datetime) -> datetime:
    if row.last_run_at is not None:
        return row.last_run_at
    return (row.date_changed or now) - (_LONG_AGO if row.start_time is not None else timedelta(0))


# Comparison ---------------------------------------------------------------------------------------


def compared(row: BeatRow, agenda: Agenda, now: datetime) -> Comparison:
    """Return the next fires of both, with the differences and their reasons until every clock has
    changed once.
    """
    here = list(islice(_ours(row, agenda, now), _SHOWN))
    try:
        beat = list(islice(fires(row, now, _ran(row, now)), _SHOWN))
    except (ImproperlyConfigured, ModuleNotFoundError):  # Celery 5.7 and 5.6 without ephem
        return Comparison(
            here, None, ("SOLAR: beat's fire times are unknown here, the package ephem is missing",)
        )
    differences = []
    if beat and beat[0] == now and now not in here:
        first = utc_text(here[0]) if here else "never"
        differences.append(
            "OWED: a run is due since before now, and beat would send it at once; here the first"
            f" is {first}"
        )
    if row.solar is not None:
        differences += _times(beat, here, tolerance=timedelta(minutes=2))
    if row.crontab is not None:
        name = row.crontab.timezone
        changes = [] if row.one_off else list(clock_changes(name, now, now + _AHEAD))
        end = changes[0].at - _AROUND if changes else now + _AHEAD
        differences += _times(*_both(row, agenda, now, end, most=_STEADY))
        for change in changes:
            theirs, ours = _both(row, agenda, change.at - _AROUND, change.at + _AROUND)
            if theirs != ours:
                differences.append(_around(name, change, theirs, ours))
    return Comparison(here, beat, tuple(differences))


def _ran(row: BeatRow, now: datetime) -> datetime | None:
    """Return the last run of a running beat that has not stored it yet; None if a run is overdue
    for longer.
    """
    last = _last_run(row, now)
    due = next(fires(row, last, last), None)
    if due is None or not now - _WRITTEN < due <= now:
        return None
    if row.interval is None:
        return now
    step = timedelta(**{row.interval[1]: row.interval[0]})
    return last + (now - last) // step * step


def _ours(row: BeatRow, agenda: Agenda, now: datetime) -> Iterator[datetime]:
    """Yield the fires of the imported row; a one-off task is imported with max_runs=1."""
    runs = (run.at for run in walk(agenda, now))
    return islice(runs, 1 if row.one_off or row.clocked is not None else None)


def _both(
    row: BeatRow, agenda: Agenda, start: datetime, end: datetime, most: int | None = None
) -> tuple[list[datetime], list[datetime]]:
    beat, here = fires(row, start, last=start), _ours(row, agenda, start)
    return [*islice(takewhile(end.__gt__, beat), most)], [
        *islice(takewhile(end.__gt__, here), most)
    ]


def _times(
    beat: Sequence[datetime], here: Sequence[datetime], tolerance: timedelta = timedelta(0)
) -> Iterator[str]:
    apart = [pair for pair in zip(beat, here, strict=False) if abs(pair[0] - pair[1]) > tolerance]
    if apart:
        yield f"TIMES: beat fires at {utc_text(apart[0][0])}, here it is {utc_text(apart[0][1])}"
    elif len(beat) != len(here) and not tolerance:
        yield f"TIMES: {len(beat)} fires of beat are {len(here)} here"


def _around(
    name: str, change: ClockChange, beat: Sequence[datetime], here: Sequence[datetime]
) -> str:
    way = "forward" if change.shift > timedelta(0) else "back"
    theirs, ours = sorted(set(beat) - set(here)), sorted(set(here) - set(beat))
    gap_rules = [
        f"{who} alone fires at {_some(times)}"
        for who, times in (("beat", theirs), ("here it", ours))
        if times
    ]
    return (
        f"DST: when the clock of {name} goes {way}, {utc_text(change.at)}, {'; '.join(gap_rules)}"
    )


def _some(times: Sequence[datetime]) -> str:
    more = f" and {len(times) - _SHOWN} times more" if len(times) > _SHOWN else ""
    return ", ".join(map(utc_text, times[:_SHOWN])) + more
