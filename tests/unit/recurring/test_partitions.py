"""The periods of the partitions of the ledger."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from django_durable_tasks.rules.recurring.partitions import (
    AHEAD,
    Partition,
    expired,
    missing,
    missing_now,
    period_end,
)

DAY = timedelta(days=1)
NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)
"""A Wednesday."""
MOMENTS = st.datetimes(datetime(1990, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))


def _first(end: datetime) -> Partition:
    return Partition("first", None, end)


DEFAULT = Partition("default", None, None)


@given(MOMENTS, st.integers(1, 400))
def test_a_period_ends_after_its_moments_and_at_midnight(moment: datetime, days: int) -> None:
    end = period_end(moment, days)
    assert timedelta() < end - moment <= days * DAY
    assert end == end.replace(hour=0, minute=0, second=0, microsecond=0)
    assert period_end(end - timedelta(microseconds=1), days) == end


def test_periods_of_seven_days_are_weeks_from_monday() -> None:
    assert period_end(NOW, 7) == datetime(2026, 3, 9, tzinfo=UTC)
    assert period_end(NOW, 1) == datetime(2026, 3, 5, tzinfo=UTC)


@given(MOMENTS, st.integers(1, 60), st.integers(-500, 30))
def test_missing_partitions_are_adjacent_and_reach_a_week_ahead(
    now: datetime, days: int, ended: int
) -> None:
    past = period_end(now + ended * DAY, 1)
    existing = [_first(past), DEFAULT]
    found = missing(existing, now, days)
    ends = [one.end for one in existing[:1] + found]
    assert ends[-1] is not None
    assert ends[-1] > now + AHEAD
    assert all(two.first == end for two, end in zip(found[1:], ends[1:], strict=False))
    assert missing([*existing, *found], now, days) == []
    assert len({one.name for one in found}) == len(found)
    assert all(one.first is not None and one.first >= past for one in found)


def test_a_ledger_without_partitions_misses_none() -> None:
    assert missing([], NOW, 1) == []


def test_partitions_expire_when_their_last_fire_time_does() -> None:
    day = Partition("day", NOW, NOW + DAY)
    existing = [day, _first(NOW), DEFAULT]
    assert expired(existing, NOW - DAY) == []
    assert expired(existing, NOW) == [existing[1]]
    assert expired(existing, NOW + DAY) == [existing[1], day]


def test_the_next_day_needs_a_partition() -> None:
    assert missing_now([_first(NOW + DAY - timedelta(seconds=1)), DEFAULT], NOW)
    assert not missing_now([_first(NOW + DAY), DEFAULT], NOW)
