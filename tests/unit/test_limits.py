"""Scopes, rates and token buckets; who is let in, and a fair share: rules alone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.rules.limits import (
    Bucket,
    Rate,
    Room,
    admitted,
    allowance_of,
    checked_scope,
    of_share,
    rate_of,
    refilled,
    share_of,
    shared,
    whole,
)

START = datetime(2026, 1, 1, tzinfo=UTC)
rates = st.builds(
    lambda number, unit, burst: rate_of("rate", f"{number}/{unit}", burst),
    st.integers(1, 10_000), st.sampled_from("smhd"), st.none() | st.integers(1, 500),
)  # fmt: skip
# A clock may also go back, as a database's does when it fails over.
steps = st.lists(st.tuples(st.floats(-30, 600), st.integers(0, 200)), max_size=40)


@given(rates, steps)
def test_no_more_starts_than_burst_and_what_came_back_since(rate: Rate, story: list[tuple[float, int]]) -> None:
    now, latest, bucket, taken = START, START, None, 0
    for seconds, wanted in story:
        now += timedelta(seconds=seconds)
        latest = max(latest, now)
        bucket = refilled(bucket, rate, now)
        starts = min(wanted, whole(bucket.tokens))
        bucket = Bucket(bucket.tokens - starts, bucket.at)
        taken += starts
        elapsed = (latest - START).total_seconds()
        assert taken <= rate.burst + rate.per_second * max(elapsed, 0.0) + 1e-3
        assert bucket.tokens <= rate.burst


@given(rates)
def test_a_rate_is_reached_by_who_asks_often(rate: Rate) -> None:
    bucket, now, taken, wait = None, START, 0, 1 / rate.per_second
    for _ in range(50):
        bucket = refilled(bucket, rate, now)
        starts = whole(bucket.tokens)
        bucket, taken = Bucket(bucket.tokens - starts, bucket.at), taken + starts
        now += timedelta(seconds=wait, microseconds=2)  # a timedelta is cut to microseconds
    assert taken >= int(rate.burst) + 48


def test_a_burst_is_one_seconds_rate_and_at_least_one() -> None:
    assert [rate_of("rate", text).burst for text in ("10/m", "5/s", "1000/h")] == [1.0, 5.0, 1.0]
    assert str(rate_of("rate", "10/m")) == "10/m"


@pytest.mark.parametrize("text", ["", "10", "10/x", "-1/s", "0/s", "1.5/s", " 1/s", 10, None])
def test_what_is_no_rate_is_refused(text: object) -> None:
    with pytest.raises(InvalidOption, match="such as"):
        rate_of("rate_limit", text)


@pytest.mark.parametrize("scope", ["global", "queue:mail", "task:shop.tasks.mail", "tenant:7", "key:a:b c"])
def test_scopes_that_may_be_limited(scope: str) -> None:
    assert checked_scope(scope) == scope


@pytest.mark.parametrize(
    "scope", ["", "mail", "queue:", "tenant:acme", "share:mail:7", "key:\n", "key:" + "x" * 250, 7]
)
def test_what_is_no_scope_is_refused(scope: object) -> None:
    with pytest.raises(InvalidOption, match="is no scope"):
        checked_scope(scope)


def test_a_limit_says_something() -> None:
    assert allowance_of("global", {"max_concurrency": 0}).places == 0
    for nothing in ({}, {"burst": 3}, {"speed": 3}, None, 5):
        with pytest.raises(InvalidOption):
            allowance_of("global", nothing)


@given(st.lists(st.lists(st.sampled_from("abc"), max_size=3, unique=True), max_size=30))
def test_whoever_is_let_in_fits_and_the_first_that_fits_is_let_in(wishes: list[list[str]]) -> None:
    room = Room(places={"a": 3, "b": 0}, tokens={"c": 2.5})
    rows = [(number, scopes) for number, scopes in enumerate(wishes)]
    refused = admitted(rows, room)
    let_in = [scopes for number, scopes in rows if number not in refused]
    counts = {scope: sum(scope in scopes for scopes in let_in) for scope in "abc"}
    assert counts["a"] <= 3
    assert counts["b"] == 0
    assert counts["c"] == room.spent["c"] <= 2
    assert all(scope in wishes[int(str(number))] for number, scope in refused.items())
    assert not any(not scopes for number, scopes in rows if number in refused)


@given(st.integers(1, 5_000), st.integers(0, 200))
def test_a_share_leaves_room_for_somebody_else(window: int, tenants: int) -> None:
    share = share_of(window, tenants)
    assert 1 <= share <= max(10, window // 2 + 1)
    assert share < window or window < 3


def test_a_share_names_its_queue_and_its_tenant() -> None:
    assert shared(of_share("a:b", 7)) == ("a:b", 7)
    assert shared("queue:mail") is None
