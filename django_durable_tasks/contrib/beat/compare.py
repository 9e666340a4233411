"""Compares beat with this package: when django-celery-beat would fire a row, by Celery's own
schedules, and when it has fired.
"""

from __future__ import annotations

import dataclasses
import logging
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from typing import Any

from celery import current_app, schedules
from celery.exceptions import ImproperlyConfigured
from django.db import DatabaseError, InterfaceError

from django_durable_tasks import conf
from django_durable_tasks.cluster.nodes import HeartbeatMonitor
from django_durable_tasks.contrib.beat.models import ShadowFire
from django_durable_tasks.contrib.beat.periodic_tasks import BeatRow, Crontab, utc_text
from django_durable_tasks.exceptions import InvalidSchedule
from django_durable_tasks.models import DEFAULT_TENANT_ID, RecurringTask
from django_durable_tasks.schedules import options as schedule_options
from django_durable_tasks.schedules.agenda import Agenda
from django_durable_tasks.schedules.options import BEAT
from django_durable_tasks.schedules.schedule_cache import agenda_of
from django_durable_tasks.schedules.timetables.types import walk
from django_durable_tasks.schedules.timetables.zones import clock_changes, zone
from django_durable_tasks.store import tables
from django_durable_tasks.store.clock import host_now
from django_durable_tasks.store.connections import dedicated_connection

# When django-celery-beat would fire a row. Nothing is fired here: a simulated clock is passed to
# ``remaining_estimate``, as beat does with the real clock.

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


def fields_of(crontab: Crontab) -> schedule_options.Fields | None:
    """Return the numbers that Celery parses from the five fields; None if it cannot. Raises
    InvalidSchedule for an unknown zone.
    """
    zone(crontab.timezone)
    try:
        read = _crontab(crontab, _Clock(host_now()))
    except (ValueError, TypeError, schedules.ParseException):
        return None
    return schedule_options.fields_of(read)


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


def fires(row: BeatRow, now: datetime, last: datetime | None = None) -> Iterator[datetime]:
    """Yield the instants (UTC) at which beat fires from ``now`` on, without delays.

    ``last`` is its last run. Without it the row's own is used, so that an overdue run comes at
    once.
    """
    if row.clocked is not None:
        yield max(row.clocked, now)
        return
    clock = _Clock(now)
    schedule: Any
    if row.crontab is not None:
        schedule = _crontab(row.crontab, clock)
    elif row.interval is not None:
        number, unit = row.interval
        schedule = schedules.schedule(timedelta(**{unit: number}), nowfun=clock)
    else:
        event, latitude, longitude = row.solar or ("", 0.0, 0.0)
        schedule = schedules.solar(event, latitude, longitude, nowfun=clock)
    at, before = now, last or _last_run(row, now)
    if row.start_time is not None and row.start_time > now:
        # A crontab does not run before the first fire after its start_time.
        at = row.start_time
        if row.crontab is not None:
            start, ends_in, _ = schedule.remaining_delta(at.astimezone(schedule.tz))
            at = (start + ends_in).astimezone(UTC)
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
        # The last run of a running beat that has not stored it yet. None if one is overdue longer.
        last, ran = _last_run(row, now), None
        due = next(fires(row, last, last), None)
        if due is not None and now - _WRITTEN < due <= now:
            ran = now
            if row.interval is not None:
                step = timedelta(**{row.interval[1]: row.interval[0]})
                ran = last + (now - last) // step * step
        beat = list(islice(fires(row, now, ran), _SHOWN))
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
                way = "forward" if change.shift > timedelta(0) else "back"
                alone = {"beat": set(theirs) - set(ours), "here it": set(ours) - set(theirs)}
                fired = [
                    f"{side} alone fires at {_some(sorted(times))}"
                    for side, times in alone.items()
                    if times
                ]
                differences.append(
                    f"DST: when the clock of {name} goes {way}, {utc_text(change.at)},"
                    f" {'; '.join(fired)}"
                )
    return Comparison(here, beat, tuple(differences))


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


def _some(times: Sequence[datetime]) -> str:
    more = f" and {len(times) - _SHOWN} times more" if len(times) > _SHOWN else ""
    return ", ".join(map(utc_text, times[:_SHOWN])) + more


# A fire of beat belongs to the last fire time before it: beat sends one message for all fire times
# that it missed. A message that is early by less than the difference of two clocks belongs to the
# next fire time.


EARLY = timedelta(seconds=1)


def matched(
    here: Sequence[datetime], beat: Sequence[datetime], tolerance: timedelta
) -> tuple[dict[datetime, float], list[datetime], list[datetime]]:
    """Pair fire times with fires of beat one to one; ``tolerance`` is the longest lag. Return the
    pairs as fire times with their lags (seconds that beat was late), and what has no pair: the fire
    times here, and the fires of beat.
    """
    lags: dict[datetime, float] = {}
    only_beat = []
    for fire in beat:
        last = bisect_right(here, fire + EARLY) - 1
        if last < 0 or here[last] in lags or fire - here[last] > tolerance:
            only_beat.append(fire)
        else:
            lags[here[last]] = (fire - here[last]).total_seconds()
    return lags, [at for at in here if at not in lags], only_beat


# The recorded fires of beat, and those that this package would have created meanwhile, including
# paused rows. The latter are computed from the row when the comparison runs, and not stored.


logger = logging.getLogger("django_durable_tasks.shadow")
MOST = 10_000
"""More fires of one schedule than this are not compared; use a shorter range."""
# A week: a comparison with beat contains each weekday, and its fires are of no use afterwards.
RETENTION = timedelta(days=7)
# Rows that a run of the job deletes, in a few milliseconds.
PRUNED = 100


@dataclass(frozen=True, slots=True)
class Shadow:
    """One schedule in a range: pairs, fires of one side only, and the lag of beat (seconds)."""

    name: str
    matched: int
    only_here: list[datetime]
    only_beat: list[datetime]
    lag_median: float | None
    lag_most: float | None
    remark: str = ""

    @property
    def differs(self) -> bool:
        """Whether the two sides differ."""
        return bool(self.only_here or self.only_beat or self.remark)


def record_fire(name: str, task: str, celery_id: str) -> None:
    """Record a message of beat. An error is logged and never stops beat."""
    try:
        with dedicated_connection():
            record = ShadowFire(name=name[:200], task=task[:200], celery_id=celery_id[:200])
            ShadowFire.objects.using(tables.database()).bulk_create([record])
    except (DatabaseError, InterfaceError):
        logger.exception("A fire time of beat was not recorded: %s", name)


def prune(now: datetime, monitor: HeartbeatMonitor) -> int:
    """Job: delete one batch of fires after their retention; return how many were deleted."""
    with dedicated_connection():
        rows = ShadowFire.objects.using(tables.database())
        expired = rows.filter(recorded_at__lt=now - RETENTION).order_by("recorded_at")
        deleted = list(expired.values_list("pk", flat=True)[:PRUNED])
        if deleted:
            rows.filter(pk__in=deleted).delete()
    return len(deleted)


def recorded_since() -> datetime | None:
    """Return the time of the oldest stored fire."""
    rows = ShadowFire.objects.using(tables.database()).order_by("recorded_at")
    oldest: datetime | None = rows.values_list("recorded_at", flat=True).first()
    return oldest


def shadows(
    start: datetime,
    end: datetime,
    tolerance: timedelta,
    *,
    names: Iterable[str] = (),
    live: Iterable[str] | None = None,
) -> list[Shadow]:
    """Return both sides of [start, end] for each schedule that beat has or has fired, in the order
    of names.

    ``live`` are the names that are enabled in beat; None if they are unknown.
    """
    stored = ShadowFire.objects.using(tables.database()).order_by("recorded_at")
    recorded = stored.filter(recorded_at__range=(start - tolerance, end + tolerance))
    fired_at: dict[str, list[datetime]] = defaultdict(list)
    for name, at in recorded.values_list("name", "recorded_at").iterator():
        fired_at[name].append(at)
    selected, fired = set(names), None if live is None else set(live)
    rows = RecurringTask.objects.using(tables.database()).for_tenant(DEFAULT_TENANT_ID)
    by_name = {
        row.name: row for row in rows.filter(source=BEAT) if fired is None or row.name in fired
    }
    by_name |= {row.name: row for row in rows.filter(name__in=fired_at)}
    chosen = {name for name in {*fired_at, *by_name} if not selected or name in selected}
    result = []
    for name in sorted(chosen):
        row, fires_of_beat = by_name.get(name), fired_at.get(name, [])
        if row is None:
            alone = [at for at in fires_of_beat if start <= at <= end]
            remark = "there is no recurring task of this name: import it"
            result.append(Shadow(name, 0, [], alone, None, None, remark))
            continue
        # Beat may send a fire time from before the import late.
        begin = start if row.start_time <= start else row.start_time + tolerance
        until, remark = end, ""
        try:
            runs = walk(agenda_of(row), start - tolerance - timedelta(microseconds=1), until)
            here = [run.at for run in islice(runs, MOST + 1)]
        except InvalidSchedule as error:
            result.append(Shadow(name, 0, [], fires_of_beat, None, None, str(error)))
            continue
        if len(here) > MOST:
            remark = f"more than {MOST:,} fires: only the first were compared, narrow the range"
            here = here[:MOST]
            until = here[-1]
        lag_of, only_here, only_beat = matched(here, fires_of_beat, tolerance)
        lags = sorted(lag for at, lag in lag_of.items() if begin <= at <= until)
        median, most = (lags[len(lags) // 2], lags[-1]) if lags else (None, None)
        here, beat = (
            [at for at in side if begin <= at <= until] for side in (only_here, only_beat)
        )
        result.append(Shadow(name, len(lags), here, beat, median, most, remark))
    return result
