"""A reader that follows ids reads each row exactly once, whatever the order of the commits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from django_durable_tasks.metrics import series
from django_durable_tasks.metrics.series import GAP_IDS_MAX, GAP_KEPT, GAPS_MAX, IdGap


@given(order=st.permutations(range(1, 13)), steps=st.lists(st.integers(1, 5), max_size=12))
def test_each_id_is_read_once_whatever_the_order_of_the_commits(
    order: list[int], steps: list[int]
) -> None:
    committed, read, last, missing = set[int](), list[int](), 0, list[IdGap]()
    pending = list(order)
    for size in [*steps, len(order)]:
        committed |= set(pending[:size])
        del pending[:size]
        late = [one for one in committed if any(gap.first <= one <= gap.last for gap in missing)]
        new = sorted(one for one in committed if one > last)
        missing = series.gaps_without(missing, late) + series.new_gaps(last, new, 0.0)
        last = new[-1] if new else last
        read += [*late, *new]
    assert sorted(read) == sorted(order)
    assert missing == []


def test_ids_of_a_transaction_that_was_rolled_back_are_given_up() -> None:
    (gap,) = series.new_gaps(0, [1, 2, 6], 100.0)
    assert gap == IdGap(3, 5, 100.0)
    assert series.kept_gaps([gap], 100.0 + GAP_KEPT - 1) == [gap]
    assert series.kept_gaps([gap], 100.0 + GAP_KEPT) == []


def test_a_clock_that_was_set_back_does_not_keep_a_gap_for_longer() -> None:
    assert series.kept_gaps([IdGap(3, 5, 10_000.0)], 100.0) == [IdGap(3, 5, 100.0)]


def test_the_number_and_the_size_of_gaps_are_bounded() -> None:
    assert series.new_gaps(0, [1_000_000], 0.0) == [IdGap(1_000_000 - GAP_IDS_MAX, 999_999, 0.0)]
    many = series.new_gaps(0, list(range(2, 3 * GAPS_MAX, 2)), 0.0)
    assert len(many) > GAPS_MAX
    assert series.kept_gaps(many, 0.0) == many[-GAPS_MAX:]


def test_a_gap_is_divided_by_the_ids_that_appear() -> None:
    assert series.gaps_without([IdGap(1, 9, 0.0)], [1, 4, 5, 9]) == [
        IdGap(2, 3, 0.0),
        IdGap(6, 8, 0.0),
    ]
