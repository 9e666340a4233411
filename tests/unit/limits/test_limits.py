"""The rules of limits: scopes, rates, token buckets, admission, and tenant shares."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.limits.scopes import (
    AdmissionRequest,
    Allowance,
    Bucket,
    Capacity,
    PerKey,
    Rate,
    accumulated,
    admitted,
    allowance_of,
    checked_scope,
    key_of,
    rate_of,
    rotate_after,
    scope_of_share,
    select_releasable,
    share_of,
    shared,
    whole,
)
from django_durable_tasks.tasks.options import CallOptions, call_options, task_options

START = datetime(2026, 1, 1, tzinfo=UTC)
rates = st.builds(
    lambda number, unit, burst: rate_of("rate", f"{number}/{unit}", burst),
    st.integers(1, 10_000),
    st.sampled_from("smhd"),
    st.none() | st.integers(1, 500),
)
# A clock may also go back, as that of a database after a failover.
steps = st.lists(st.tuples(st.floats(-30, 600), st.integers(0, 200)), max_size=40)


def _capped(bucket: Bucket, rate: Rate) -> Bucket:
    return Bucket(min(rate.holds(), bucket.tokens), bucket.at)


@given(rates, steps)
def test_no_more_starts_than_the_burst_and_the_refilled_tokens(
    rate: Rate, story: list[tuple[float, int]]
) -> None:
    now, elapsed, bucket, taken = START, 0.0, None, 0
    for seconds, wanted in story:
        now += timedelta(seconds=seconds)
        elapsed += max(seconds, 0.0)
        bucket = _capped(accumulated(bucket, rate, now), rate)
        starts = min(wanted, whole(bucket.tokens))
        bucket = Bucket(bucket.tokens - starts, bucket.at)
        taken += starts
        assert taken <= rate.burst + rate.per_second * elapsed + 1e-3
        assert bucket.tokens <= rate.burst


@given(rates)
def test_frequent_requests_reach_the_rate(rate: Rate) -> None:
    bucket, now, taken, wait = None, START, 0, 1 / rate.per_second
    for _ in range(50):
        bucket = _capped(accumulated(bucket, rate, now), rate)
        starts = whole(bucket.tokens)
        bucket, taken = Bucket(bucket.tokens - starts, bucket.at), taken + starts
        now += timedelta(seconds=wait, microseconds=2)  # a timedelta is truncated to microseconds
    assert taken >= int(rate.burst) + 48


def test_the_default_burst_is_one_seconds_rate_and_at_least_one() -> None:
    assert [rate_of("rate", text).burst for text in ("10/m", "5/s", "1000/h")] == [1.0, 5.0, 1.0]
    assert str(rate_of("rate", "10/m")) == "10/m"


@pytest.mark.parametrize("text", ["", "10", "10/x", "-1/s", "0/s", "1.5/s", " 1/s", 10, None])
def test_an_invalid_rate_is_refused(text: object) -> None:
    with pytest.raises(InvalidOption, match="such as"):
        rate_of("rate_limit", text)


@pytest.mark.parametrize(
    "scope", ["global", "queue:mail", "task:shop.tasks.mail", "tenant:7", "key:a:b c"]
)
def test_valid_scopes_are_accepted(scope: str) -> None:
    assert checked_scope(scope) == scope


@pytest.mark.parametrize(
    "scope", ["", "mail", "queue:", "tenant:acme", "share:mail:7", "key:\n", "key:" + "x" * 250, 7]
)
def test_invalid_scopes_are_refused(scope: object) -> None:
    with pytest.raises(InvalidOption, match="is no scope"):
        checked_scope(scope)


def test_a_limit_needs_a_value() -> None:
    assert allowance_of("global", {"max_concurrency": 0}).places == 0
    for nothing in ({}, {"burst": 3}, {"speed": 3}, None, 5):
        with pytest.raises(InvalidOption):
            allowance_of("global", nothing)


@given(st.lists(st.lists(st.sampled_from("abc"), max_size=3, unique=True), max_size=30))
def test_admitted_tasks_fit_and_the_first_that_fits_is_admitted(wishes: list[list[str]]) -> None:
    capacity = Capacity(places={"a": 3, "b": 0}, tokens={"c": 2.5})
    rows = [AdmissionRequest(number, scopes) for number, scopes in enumerate(wishes)]
    refused = admitted(rows, capacity)
    let_in = [row.scopes for row in rows if row.row not in refused]
    counts = {scope: sum(scope in scopes for scopes in let_in) for scope in "abc"}
    assert counts["a"] <= 3
    assert counts["b"] == 0
    assert counts["c"] == capacity.spent["c"] <= 2
    assert all(scope in wishes[int(str(number))] for number, scope in refused.items())
    assert not any(not row.scopes for row in rows if row.row in refused)


_asking = st.lists(
    st.tuples(
        st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True), st.integers(1, 5)
    ),
    max_size=30,
)


@given(_asking, st.integers(0, 8), st.integers(0, 8), st.floats(0, 20))
def test_admitted_tasks_never_weigh_more_than_the_capacity(
    wishes: list[tuple[list[str], int]], first: int, second: int, tokens: float
) -> None:
    capacity = Capacity(
        places={"a": first, "b": second},
        tokens={"c": tokens},
        rates={"c": rate_of("rate", "4/s", 4)},
    )
    rows = [
        AdmissionRequest(number, scopes, weight, (number,))
        for number, (scopes, weight) in enumerate(wishes)
    ]
    refused = admitted(rows, capacity)
    weights = {
        scope: sum(row.weight for row in rows if row.row not in refused and scope in row.scopes)
        for scope in "abc"
    }
    assert weights["a"] <= first
    assert weights["b"] <= second
    assert weights["c"] == capacity.spent["c"] <= min(tokens, 4) + 1e-6


def test_behind_a_task_that_is_too_heavy_for_now_no_task_of_its_scope_is_admitted() -> None:
    capacity = Capacity(places={"a": 4, "b": 9}, heaviest={"a": 4})
    rows = [
        AdmissionRequest(1, ["a"], 2),
        AdmissionRequest(2, ["a"], 3),
        AdmissionRequest(3, ["a"], 1),
        AdmissionRequest(4, ["b"], 1),
    ]
    assert admitted(rows, capacity) == {2: "a", 3: "a"}


def test_a_task_heavier_than_the_whole_limit_does_not_block_others() -> None:
    capacity = Capacity(places={"a": 2}, heaviest={"a": 2})
    assert admitted([AdmissionRequest(1, ["a"], 3), AdmissionRequest(2, ["a"], 1)], capacity) == {
        1: "a"
    }


def test_tasks_of_later_rounds_leave_the_capacity_that_the_task_ahead_needs() -> None:
    heavy = AdmissionRequest("heavy", ["a"], 3, (0, 5))
    capacity = Capacity(places={"a": 4}, ahead={"a": heavy})
    urgent, old = (
        AdmissionRequest("urgent", ["a"], 1, (-9, 8)),
        AdmissionRequest("old", ["a"], 1, (0, 4)),
    )
    assert capacity.refuses("a", AdmissionRequest("two", ["a"], 2, (0, 6)))
    assert admitted([AdmissionRequest("late", ["a"], 1, (0, 6))], capacity) == {}
    assert admitted([AdmissionRequest("later", ["a"], 1, (0, 7)), heavy], capacity) == {
        "later": "a"
    }
    capacity = Capacity(places={"a": 2}, ahead={"a": heavy})
    assert admitted([urgent, old], capacity) == {}


@given(st.integers(1, 30), rates)
def test_tokens_accumulate_for_a_heavy_task_unless_the_burst_is_configured(
    weight: int, rate: Rate
) -> None:
    waited = START + timedelta(seconds=(weight + 1) / rate.per_second)
    capacity = Capacity(
        tokens={"a": accumulated(Bucket(0.0, START), rate, waited).tokens}, rates={"a": rate}
    )
    assert capacity.refuses("a", AdmissionRequest(1, ["a"], weight)) == (
        rate.fixed and weight > rate.burst
    )
    assert Allowance(None, rate).heaviest == (int(rate.burst) if rate.fixed else None)


def test_the_burst_grows_for_the_heaviest_task_and_not_for_a_light_one() -> None:
    heavy, light = (
        AdmissionRequest("heavy", ["a"], 3, (0, 5)),
        AdmissionRequest("light", ["a"], 1, (0, 6)),
    )
    capacity = Capacity(tokens={"a": 50.0}, rates={"a": rate_of("rate", "1/d")}, ahead={"a": heavy})
    assert admitted([light, heavy], capacity) == {"light": "a"}
    assert capacity.spent["a"] == 3


def test_a_task_that_cannot_start_anyway_does_not_block_the_waitlist() -> None:
    rows = [
        AdmissionRequest(1, ["a"], 9),
        AdmissionRequest(2, ["a"], 2, other_scopes=["b"]),
        AdmissionRequest(3, ["a"], 1, other_scopes=["b"]),
        AdmissionRequest(4, ["a"], 2),
        AdmissionRequest(5, ["a"], 2),
        AdmissionRequest(6, ["a"]),
    ]
    capacity = Capacity(places={"a": 3, "b": 0}, heaviest={"a": 4})
    assert select_releasable({"a": rows}, capacity, 9) == ([4], {2: ["b"], 3: ["b"]})


def test_waitlists_alternate_and_one_stops_if_its_next_task_does_not_fit() -> None:
    lines = {
        "a": [
            AdmissionRequest(1, ["a"]),
            AdmissionRequest(2, ["a"], 3),
            AdmissionRequest(3, ["a"]),
        ],
        "b": [AdmissionRequest(4, ["b"]), AdmissionRequest(5, ["b"]), AdmissionRequest(6, ["b"])],
    }
    assert select_releasable(lines, Capacity(places={"a": 3}), 9)[0] == [1, 4, 5, 6]
    assert select_releasable(lines, Capacity(places={"a": 3}), 3)[0] == [1, 4, 5]
    assert rotate_after(["c", "a", "b"], "b") == ["c", "a", "b"]
    assert rotate_after(["c", "a", "b"], "") == ["a", "b", "c"]


def test_a_task_counts_for_one_key() -> None:
    assert key_of(PerKey("10/m", "{0}"), PerKey(2, "{0}")) == "{0}"
    assert key_of(None, 3) is None
    with pytest.raises(InvalidOption, match="give both limits the same template"):
        key_of(PerKey("10/m", "{0}"), PerKey(2, "{customer}"))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("max_concurrency", PerKey("10/m", "{0}")),
        ("rate_limit", PerKey(2, "{0}")),
        ("weight", 0),
        ("weight", 1_001),
    ],
)
def test_invalid_limit_options_are_refused(option: str, value: object) -> None:
    with pytest.raises(InvalidOption, match=option):
        task_options("shop.mail", {option: value})


def test_two_keys_of_one_task_are_refused_at_the_decorator() -> None:
    with pytest.raises(InvalidOption, match="two keys"):
        task_options(
            "shop.mail", {"rate_limit": PerKey("1/s", "{0}"), "max_concurrency": PerKey(1, "{1}")}
        )


def test_weight_and_limits_of_a_call() -> None:
    assert call_options(CallOptions(), {"weight": 3}).weight == 3
    with pytest.raises(InvalidOption, match="weight=0"):
        call_options(CallOptions(), {"weight": 0})


def test_a_clock_far_behind_is_a_new_one_and_adds_no_tokens_for_the_step_back() -> None:
    rate, bucket = rate_of("rate", "1/s", 10), Bucket(2.0, START)
    assert accumulated(bucket, rate, START - timedelta(seconds=3)) == bucket
    back = START - timedelta(hours=1)
    assert accumulated(bucket, rate, back) == Bucket(2.0, back)
    assert accumulated(
        Bucket(2.0, back), rate, back + timedelta(seconds=3)
    ).tokens == pytest.approx(5.0)


@given(st.integers(1, 5_000), st.integers(0, 200))
def test_a_share_leaves_capacity_for_another_tenant(window: int, tenants: int) -> None:
    share = share_of(window, tenants)
    assert 1 <= share <= max(10, window // 2 + 1)
    assert share < window or window < 3


def test_a_share_names_its_queue_and_its_tenant() -> None:
    assert shared(scope_of_share("a:b", 7)) == ("a:b", 7)
    assert shared("queue:mail") is None
