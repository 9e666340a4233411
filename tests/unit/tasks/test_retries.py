"""Delays between attempts are computed as documented."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.tasks.options import Retry, RetryPolicy, policy

NO_JITTER = 0.5  # the random factor of one
failures = st.integers(min_value=1, max_value=1_000)
draws = st.floats(min_value=0, max_value=1, exclude_max=True)
bases = st.just(0.0) | st.floats(min_value=0.001, max_value=100_000)


def _delay(
    failures: int, *, draw: float = NO_JITTER, jitter: bool = False, **options: Any
) -> float:
    values: dict[str, Any] = {"backoff": "EXPONENTIAL", "base": 1.0, "maximum": 3600.0} | options
    return policy(values["backoff"], values["base"], values["maximum"], jitter).delay(
        failures, draw
    )


def test_the_default_delays_double_from_a_second_to_an_hour() -> None:
    waits = [RetryPolicy().delay(number, NO_JITTER) for number in range(1, 15)]
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3600, 3600]


@given(failures, bases, st.floats(min_value=0, max_value=100_000))
def test_exponential_is_base_doubled_up_to_the_maximum(
    number: int, base: float, maximum: float
) -> None:
    expected = (
        min(base * 2.0 ** (number - 1), maximum) if number < 900 else maximum if base else 0.0
    )
    assert _delay(number, base=base, maximum=maximum) == pytest.approx(expected)


@given(failures, bases)
def test_linear_is_base_times_failures(number: int, base: float) -> None:
    assert _delay(number, backoff="LINEAR", base=base) == pytest.approx(base * number)


@given(failures, bases)
def test_fixed_is_base_whatever_the_maximum(number: int, base: float) -> None:
    assert _delay(number, backoff="FIXED", base=base, maximum=1) == base


@given(st.lists(st.integers(min_value=0, max_value=10_000), min_size=1, max_size=8), failures)
def test_a_list_is_read_by_index_and_its_last_element_is_used_for_later_retries(
    waits: list[int], number: int
) -> None:
    assert _delay(number, backoff=waits) == waits[min(number, len(waits)) - 1]


def test_a_list_may_contain_timedeltas() -> None:
    assert _delay(2, backoff=[1, timedelta(minutes=2)]) == 120


@given(failures)
def test_a_callable_gets_the_number_of_failures(number: int) -> None:
    assert _delay(number, backoff=lambda seen: seen * 3) == number * 3


def test_a_callable_may_return_a_timedelta() -> None:
    assert _delay(1, backoff=lambda _: timedelta(hours=1)) == 3600


@pytest.mark.parametrize("wait", [-1, math.nan, math.inf, "soon", None, True])
def test_the_return_value_of_a_callable_is_validated(wait: object) -> None:
    with pytest.raises(InvalidOption, match="backoff"):
        _delay(1, backoff=lambda _: wait)


@given(failures, draws, st.sampled_from(["FIXED", "LINEAR", "EXPONENTIAL"]))
def test_jitter_stays_between_half_and_one_and_a_half(number: int, draw: float, shape: str) -> None:
    plain = _delay(number, backoff=shape)
    jittered = _delay(number, backoff=shape, draw=draw, jitter=True)
    assert plain * 0.5 <= jittered <= plain * 1.5


@given(failures, draws)
def test_without_jitter_the_random_factor_is_ignored(number: int, draw: float) -> None:
    assert _delay(number, draw=draw) == _delay(number, draw=NO_JITTER)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("SOMETIMES", 1, 1, True), "backoff='SOMETIMES': give FIXED"),
        (([], 1, 1, True), r"backoff=\[\].*at least one"),
        (([1, -1], 1, 1, True), "backoff=-1"),
        (("FIXED", -1, 1, True), "backoff_base=-1"),
        (("FIXED", math.nan, 1, True), "backoff_base=nan"),
        (("FIXED", 1, "1", True), "backoff_max='1'"),
        ((42, 1, 1, True), "backoff=42"),
    ],
)
def test_an_invalid_policy_is_refused_by_name_and_value(options: Any, words: str) -> None:
    with pytest.raises(InvalidOption, match=words):
        policy(*options)


def test_a_body_may_request_a_retry_after_a_delay() -> None:
    assert Retry(after=timedelta(minutes=1)).after == 60
    assert Retry().after is None
    assert str(Retry(reason="the bank is closed")) == "the bank is closed"


@pytest.mark.parametrize("after", [-1, math.nan, math.inf, "1", 1e300])
def test_an_invalid_retry_request_is_refused(after: Any) -> None:
    with pytest.raises(InvalidOption, match=r"Retry\.after"):
        Retry(after=after)
