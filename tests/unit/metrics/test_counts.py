"""What the metrics count: distributions, minutes, the points of charts, and bounded names."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_durable_tasks.contrib.metrics.admin import PERIODS, ChartPoint, chart_points, quantile
from django_durable_tasks.contrib.metrics.counts import is_due
from django_durable_tasks.contrib.metrics.exposition import (
    QueueGauge,
    busiest_queues,
    fullest_limits,
)
from django_durable_tasks.contrib.metrics.series import (
    BUCKETS,
    DELAYS,
    MINUTE,
    OTHER,
    CountedDurations,
    Distribution,
    Duration,
    minute_of,
)

_SECONDS = st.floats(-10, 1e7)


def test_the_buckets_reach_from_five_milliseconds_to_an_hour() -> None:
    assert (BUCKETS[0], BUCKETS[-1]) == (0.005, 3_600)
    assert sorted(BUCKETS) == list(BUCKETS)


@given(values=st.lists(_SECONDS))
def test_each_duration_is_in_the_first_bucket_that_holds_it(values: list[float]) -> None:
    found = Distribution()
    for value in values:
        found.observe(value)
    assert sum(found.numbers) == len(values)
    for index, bound in enumerate(BUCKETS):
        assert sum(found.numbers[: index + 1]) == sum(value <= bound for value in values)


@given(first=st.lists(_SECONDS), second=st.lists(_SECONDS))
def test_distributions_can_be_added_and_stored(first: list[float], second: list[float]) -> None:
    def counted(values: list[float]) -> CountedDurations:
        found = CountedDurations(len(values))
        for value in values:
            found.observe(Duration.RUN, value)
        return found

    total = counted(first)
    total.add(counted(second))
    stored = CountedDurations.stored(total.number, total.durations_as_json())
    assert stored.number == len(first) + len(second)
    whole = counted([*first, *second]).durations.get("run", Distribution())
    assert stored.durations.get("run", Distribution()).numbers == whole.numbers


def test_a_damaged_value_is_read_as_none() -> None:
    assert Distribution.from_json("x") == Distribution.from_json([1.0, 2]) == Distribution()
    assert CountedDurations.stored(3, None) == CountedDurations(3)


# Each minute is counted while it lasts and after each delay; a catch-up counts it once.


START = datetime(2026, 3, 7, 10, 0, tzinfo=UTC)
END = START + MINUTE


def test_a_minute_is_counted_while_it_lasts_and_after_each_delay() -> None:
    counted: list[timedelta] = []
    now = START
    while now < START + timedelta(hours=2):
        if is_due(START, START + counted[-1] if counted else None, now):
            counted.append(now - START)
        now += timedelta(seconds=5)
    lasting = [timedelta(seconds=seconds) for seconds in range(0, 60, 5)]
    assert counted == [*lasting, *(MINUTE + delay for delay in DELAYS)]


def test_a_minute_is_counted_once_after_an_outage() -> None:
    assert is_due(START, None, END + DELAYS[-1])
    assert is_due(START, START, END + DELAYS[-1])
    assert not is_due(START, END + DELAYS[-1], END + 2 * DELAYS[-1])


# The points of a chart cover its period without gaps; quantiles lie in the bucket of the value.


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


# Names beyond the limit are summed, so that generated names cannot fill a scrape.


def test_the_queues_with_few_tasks_are_summed_as_other() -> None:
    queues = {f"q{number}": QueueGauge(number, 1, float(number), 1, 1) for number in range(5)}
    found = busiest_queues(queues, 2)
    assert set(found) == {"q4", "q3", OTHER}
    assert found[OTHER] == QueueGauge(0 + 1 + 2, 3, 2.0, 3, 3)
    assert busiest_queues(queues, 5) == queues


def test_the_limits_that_are_used_most_are_kept() -> None:
    limits = {"a": (1, 10), "b": (9, 10), "c": (0, 0), "d": (5, 5)}
    assert fullest_limits(limits, 2) == {"b": (9, 10), "d": (5, 5)}
