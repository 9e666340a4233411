"""A demand names the priorities that a claim searches."""

from __future__ import annotations

import pytest

from django_durable_tasks.states.demand import ALL_LEVELS, QueueDemand, priorities_of


@pytest.mark.parametrize(
    ("levels", "least", "expected"),
    [
        (ALL_LEVELS, 0, [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]),
        (ALL_LEVELS, 8, [9, 8]),
        (1 << 9 | 1 << 4 | 1, 0, [9, 4, 0]),
        (1 << 9 | 1 << 4 | 1, 4, [9, 4]),
        (1, 9, []),
        (0, 0, []),
    ],
)
def test_priorities_are_those_of_the_bits_from_the_lowest_one_on(
    levels: int, least: int, expected: list[int]
) -> None:
    assert QueueDemand("a", 5, least, levels).priorities == expected


def test_bits_beyond_the_highest_priority_are_ignored() -> None:
    assert priorities_of(1 << 12 | 1 << 3) == [3]


@pytest.mark.parametrize(("number", "expected"), [(3, 3), (5, 5), (9, 5)])
def test_a_demand_is_only_reduced(number: int, expected: int) -> None:
    demand = QueueDemand("a", 5, 2, 1 << 4)
    assert demand.at_most(number) == QueueDemand("a", expected, 2, 1 << 4)
