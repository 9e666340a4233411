"""The periods of the partitions of the ledger: whole days of UTC, aligned so that each process
computes the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

AHEAD = timedelta(days=7)
"""Partitions exist for the fire times of at least this time."""
PREFIX = "durable_tasks_occurrence_"
_EPOCH = datetime(2000, 1, 3, tzinfo=UTC)
"""A Monday, so that partitions of 7 days are weeks."""


class Partition(NamedTuple):
    """The partition of the fire times from ``first`` until before ``end``. None: no bound. The
    default partition has neither.
    """

    name: str
    first: datetime | None
    end: datetime | None


class PartitionGauge(NamedTuple):
    """The number of partitions without the default one, and the seconds since the end of the oldest
    one, 0 if it has not ended.
    """

    number: int = 0
    oldest_age: float = 0.0


def measured(existing: Sequence[Partition], now: datetime) -> PartitionGauge:
    """Return the values of the metrics."""
    ends = [one.end for one in existing if one.end is not None]
    oldest_age = (now - min(ends)).total_seconds() if ends else 0.0
    return PartitionGauge(len(ends), max(0.0, oldest_age))


def period_end(moment: datetime, days: int) -> datetime:
    """Return the end of the period of ``days`` days that contains this moment."""
    period = timedelta(days=days)
    return _EPOCH + ((moment - _EPOCH) // period + 1) * period


def missing(existing: Sequence[Partition], now: datetime, days: int) -> list[Partition]:
    """Return the partitions to be created: they continue the existing ones without a gap, up to a
    week after ``now``.

    After a change of ``days``, the first of them ends at the next end of a period.
    """
    first = max((one.end for one in existing if one.end is not None), default=None)
    found: list[Partition] = []
    if first is None:
        return found
    # Days without a partition in the past stay in the default partition.
    first = max(first, period_end(now, days) - timedelta(days=days))
    while first <= now + AHEAD:
        end = period_end(first, days)
        found.append(Partition(f"{PREFIX}{first:%Y%m%d}", first, end))
        first = end
    return found


def expired(existing: Sequence[Partition], cutoff: datetime) -> list[Partition]:
    """Return the partitions whose fire times are all before ``cutoff``, the oldest first."""
    old = [one for one in existing if one.end is not None and one.end <= cutoff]
    return sorted(old, key=lambda one: one.end or cutoff)


def missing_now(existing: Sequence[Partition], now: datetime) -> bool:
    """Return whether no partition exists for the fire times of the next day."""
    ends = [one.end for one in existing if one.end is not None]
    return max(ends, default=now) < now + timedelta(days=1)
