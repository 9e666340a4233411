"""The points of a chart cover its period without gaps; quantiles lie in the bucket of the value."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_durable_tasks.contrib.metrics.charts import PERIODS, ChartPoint, chart_points, quantile
from django_durable_tasks.contrib.metrics.series import BUCKETS, MINUTE, Distribution, minute_of

_INSTANTS = st.datetimes(datetime(2026, 1, 1), datetime(2026, 12, 31)).map(
    lambda naive: naive.replace(tzinfo=UTC)
)


@pytest.mark.parametrize("period", PERIODS.values(), ids=PERIODS)
@given(now=_INSTANTS)
def test_the_points_reach_from_the_start_to_the_present_minute(period, now) -> None:  # type: ignore[no-untyped-def]
    found = chart_points(period, period.start(now), now)
    assert len(found) == period.points
    at = period.start(now)
    for point in found:
        assert point.start == at
        at += MINUTE * point.minutes
    assert at == minute_of(now) + MINUTE
    assert all(point.minutes == period.step for point in found[:-1])
    assert 1 <= found[-1].minutes <= period.step


def test_a_period_that_begins_later_has_a_shorter_first_point() -> None:
    now = datetime(2026, 11, 25, 12, 7, 30, tzinfo=UTC)
    found = chart_points(PERIODS["24h"], datetime(2026, 11, 25, 11, 20, tzinfo=UTC), now)
    assert [(f"{point.start:%H:%M}", point.minutes) for point in found] == [
        ("11:15", 10),
        ("11:30", 15),
        ("11:45", 15),
        ("12:00", 8),
    ]


def test_the_rate_is_per_minute() -> None:
    point = ChartPoint(datetime(2026, 1, 1, tzinfo=UTC), 15)
    point.add("SUCCESS", 20, {})
    point.add("SUCCESS", 10, {})
    assert (point.rate("SUCCESS"), point.rate("FAILED")) == (2.0, 0.0)


@given(
    values=st.lists(st.floats(0, 3_600), min_size=1, max_size=40),
    share=st.sampled_from((0.5, 0.95)),
)
def test_a_quantile_lies_in_the_bucket_of_the_value(values: list[float], share: float) -> None:
    counted = Distribution()
    for value in values:
        counted.observe(value)
    found = quantile(counted.numbers, share)
    assert found is not None
    wanted = share * len(values)
    exact = next(v for n, v in enumerate(sorted(values), start=1) if n >= wanted)
    upper = next(bound for bound in BUCKETS if exact <= bound)
    lower = max((bound for bound in BUCKETS if bound < exact), default=0.0)
    assert lower <= found <= upper


def test_nothing_and_longer_durations_than_the_last_bound() -> None:
    assert quantile(Distribution().numbers, 0.5) is None
    longest = Distribution()
    longest.observe(timedelta(days=1).total_seconds())
    assert quantile(longest.numbers, 0.95) == BUCKETS[-1]
