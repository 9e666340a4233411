"""Ids sort by creation time."""

from __future__ import annotations

import uuid

from hypothesis import given
from hypothesis import strategies as st

from django_durable_tasks.task_values import first_uuid7_of, new_task_id, uuid7

moments = st.integers(min_value=0, max_value=2**48 - 1)
noise = st.binary(min_size=10, max_size=10)


@given(moments, noise, moments, noise)
def test_ids_of_different_milliseconds_sort_by_time(
    first: int, a: bytes, second: int, b: bytes
) -> None:
    if first != second:
        assert (uuid7(first, a) < uuid7(second, b)) == (first < second)


@given(moments, noise)
def test_an_id_contains_its_version_variant_and_millisecond(moment: int, random: bytes) -> None:
    made = uuid7(moment, random)
    assert (made.version, made.variant, made.int >> 80) == (7, uuid.RFC_4122, moment)


@given(moments, noise)
def test_the_first_id_of_a_millisecond_is_not_above_any_other(moment: int, random: bytes) -> None:
    assert first_uuid7_of(moment) <= uuid7(moment, random)


def test_a_thousand_new_ids_are_a_thousand() -> None:
    ids = [new_task_id() for _ in range(1_000)]
    assert len(set(ids)) == 1_000
    assert [made.int >> 80 for made in ids] == sorted(made.int >> 80 for made in ids)
