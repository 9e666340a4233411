"""Distributions are sums."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from django_durable_tasks.contrib.metrics.series import (
    BUCKETS,
    CountedDurations,
    Distribution,
    Duration,
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
