"""The recorded fires of beat, compared with those that this package would have created."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice

from django.db import DatabaseError, InterfaceError

from django_durable_tasks.cluster.nodes import HeartbeatMonitor
from django_durable_tasks.contrib.beat.models import ShadowFire
from django_durable_tasks.exceptions import InvalidSchedule
from django_durable_tasks.models import DEFAULT_TENANT_ID, RecurringTask
from django_durable_tasks.schedules.options import BEAT
from django_durable_tasks.schedules.schedule_cache import agenda_of
from django_durable_tasks.schedules.timetables.types import walk
from django_durable_tasks.store import tables
from django_durable_tasks.store.connections import dedicated_connection

# A fire of beat belongs to the last fire time before it: beat sends one message for all fire times
# that it missed. A message that is early by less than the difference of two clocks belongs to the
# next fire time.


EARLY = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class FireMatch:
    """Fire times with their lags (seconds that beat was late), and the fires of one side only."""

    lags: dict[datetime, float]
    only_here: list[datetime]
    only_beat: list[datetime]


def matched(here: Sequence[datetime], beat: Sequence[datetime], tolerance: timedelta) -> FireMatch:
    """Pair fire times with fires of beat one to one; ``tolerance`` is the longest lag."""
    lags: dict[datetime, float] = {}
    only_beat = []
    for fire in beat:
        last = bisect_right(here, fire + EARLY) - 1
        if last < 0 or here[last] in lags or fire - here[last] > tolerance:
            only_beat.append(fire)
        else:
            lags[here[last]] = (fire - here[last]).total_seconds()
    return FireMatch(lags, [at for at in here if at not in lags], only_beat)


# The recorded fires of beat, and those that this package would have created meanwhile, including
# paused rows.
#
# The latter are computed from the row when the comparison runs, so they are not stored.


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


def compare(
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
    recorded = (
        ShadowFire.objects.using(tables.database())
        .filter(recorded_at__range=(start - tolerance, end + tolerance))
        .order_by("recorded_at")
    )
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
    return [
        _shadow(name, by_name.get(name), fired_at.get(name, []), start, end, tolerance)
        for name in sorted(chosen)
    ]


def _shadow(
    name: str,
    row: RecurringTask | None,
    fired_at: list[datetime],
    start: datetime,
    end: datetime,
    tolerance: timedelta,
) -> Shadow:
    if row is None:
        alone = [at for at in fired_at if start <= at <= end]
        return Shadow(
            name, 0, [], alone, None, None, "there is no recurring task of this name: import it"
        )
    # Beat may send a fire time from before the import late.
    begin = start if row.start_time <= start else row.start_time + tolerance
    try:
        runs = walk(agenda_of(row), start - tolerance - timedelta(microseconds=1), end)
        here = [run.at for run in islice(runs, MOST + 1)]
    except InvalidSchedule as error:
        return Shadow(name, 0, [], fired_at, None, None, str(error))
    remark = ""
    if len(here) > MOST:
        here, remark = (
            here[:MOST],
            f"more than {MOST:,} fires: only the first were compared, narrow the range",
        )
        end = here[-1]
    match = matched(here, fired_at, tolerance)
    lags = sorted(lag for at, lag in match.lags.items() if begin <= at <= end)
    median, most = (lags[len(lags) // 2], lags[-1]) if lags else (None, None)
    here, beat = (
        [at for at in alone if begin <= at <= end] for alone in (match.only_here, match.only_beat)
    )
    return Shadow(name, len(lags), here, beat, median, most, remark)
