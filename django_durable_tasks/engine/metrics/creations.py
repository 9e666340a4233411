"""Counts the tasks that were created in each minute, by their ids.

An id begins with the time of its creation (UUIDv7), so a minute is a range of the primary key and
creating a task costs nothing more. A transaction that creates tasks may commit long after. A minute
is therefore counted again after each of DELAYS, and the total grows by what is new.
"""

from __future__ import annotations

import uuid
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from django.db.models import Count

from django_durable_tasks import conf
from django_durable_tasks.engine.db import tables
from django_durable_tasks.engine.metrics.totals import (
    CountPosition,
    Increments,
    counted_as,
    minutes,
    read_position,
    record,
    tenant_of,
)
from django_durable_tasks.rules.metrics.counts import MetricKind, SeriesKey
from django_durable_tasks.rules.metrics.minutes import (
    DELAYS,
    MINUTE,
    minute_of,
    next_minute,
    skipped_to,
)
from django_durable_tasks.rules.tasks.identifiers import first_uuid7_of


@dataclass(slots=True)
class PartialCount:
    """What was counted of a minute so far; ``past`` is the last id that was read."""

    index: int
    minute: datetime
    revision: int
    past: uuid.UUID
    numbers: Counter[SeriesKey] = field(default_factory=Counter)


class CreationCounter:
    """Counts one part of a minute per call, and writes a minute when it is complete.

    A process that dies in between has written nothing, and the next one starts the minute again.
    """

    def __init__(self) -> None:
        self._partial: PartialCount | None = None

    def __call__(self, now: datetime, limit: int) -> int:
        """Read at most ``limit`` ids; return 1 if a minute is incomplete or another one is due."""
        position = read_position(MetricKind.CREATED)
        nexts = _nexts(position, now)
        due = next_minute(nexts, now, _oldest(now))
        if due is None:
            self._partial = None
            if not position.details:  # counting begins with this minute
                record(position, _at(position, nexts), Increments())
            return 0
        part = self._partial
        if part is None or (part.index, part.minute, part.revision) != (*due, position.revision):
            part = PartialCount(*due, position.revision, _first_id(due[1]))
        self._partial = part
        if _read_part(part, limit):
            return 1
        self._partial = None
        nexts = [skipped_to(nexts, index, now, _oldest(now)) for index in range(len(DELAYS))]
        nexts[part.index] = part.minute + MINUTE
        record(position, _at(position, nexts), _increments(part))
        return 1


def first_uncounted_id() -> uuid.UUID | None:
    """Return the id from which tasks are not counted yet; None if counting has not begun."""
    position = read_position(MetricKind.CREATED)
    return _first_id(_instant(position.details[0])) if position.details else None


def _oldest(now: datetime) -> datetime:
    """Return the time before which minutes may have been pruned, and are not counted."""
    return now - timedelta(seconds=conf.settings().METRICS_RETENTION) + 2 * MINUTE


def _nexts(position: CountPosition, now: datetime) -> list[datetime]:
    if len(position.details) != len(DELAYS):
        return [minute_of(now)] * len(DELAYS)
    return [_instant(seconds) for seconds in position.details]


def _at(position: CountPosition, nexts: list[datetime]) -> CountPosition:
    return position.moved(0, [int(minute.timestamp()) for minute in nexts])


def _instant(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _first_id(minute: datetime) -> uuid.UUID:
    return first_uuid7_of(int(minute.timestamp() * 1_000))


def _read_part(part: PartialCount, limit: int) -> bool:
    """Count the next ``limit`` ids of a minute; return whether there may be more."""
    end = _first_id(part.minute + MINUTE)
    ids = tables.tasks().filter(pk__gte=part.past, pk__lt=end).order_by("pk")
    last = ids.values_list("pk", flat=True)[limit - 1 : limit].first()
    these = ids.filter(pk__lte=last) if last is not None else ids
    groups = these.order_by().values_list("tenant_id", "queue", "name")
    for tenant_id, queue, name, number in groups.annotate(number=Count("pk")):
        key = SeriesKey(MetricKind.CREATED, tenant_of(tenant_id), queue, name, "")
        part.numbers[key] += number
    if last is None:
        return False
    part.past = uuid.UUID(int=last.int + 1)
    return True


def _increments(part: PartialCount) -> Increments:
    """Return what this count of the minute has found and the earlier ones have not.

    The sum is also limited, because a change of METRICS_TENANTS or METRICS_SERIES_MAX between two
    counts makes known tasks appear under new keys.
    """
    rows = minutes().filter(minute=part.minute, series__kind=MetricKind.CREATED)
    before = dict(rows.order_by().values_list("series_id", "number"))
    names, found = counted_as(part.numbers.keys(), MetricKind.CREATED), Counter[SeriesKey]()
    for key, number in part.numbers.items():
        found[names[key]] += number
    increments, left = Increments(), sum(found.values()) - sum(before.values())
    for key, number in sorted(found.items()):
        new = min(left, number - before.get(key.digest(), 0))
        if new > 0:
            increments.of(key, part.minute).number += new
            left -= new
    return increments
