"""The arithmetic of quotas and of the request rate."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_durable_tasks import conf
from django_durable_tasks.contrib.api.quotas import (
    Quotas,
    RequestRate,
    check_quotas,
    quotas_of,
    request_rate_of,
)
from django_durable_tasks.exceptions import InvalidOption


def test_a_rate_is_read_from_a_text() -> None:
    assert request_rate_of("600/m") == RequestRate(600, 60)
    assert str(RequestRate(600, 60)) == "600/m"
    assert request_rate_of("") is None
    assert quotas_of({"open_tasks": 5, "requests": None}) == Quotas(open_tasks=5)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"open_task": 5}, "open_tasks"),
        ({"open_tasks": -1}, "open_tasks=-1"),
        ({"open_tasks": True}, "open_tasks=True"),
        ({"payload_bytes": "5"}, "payload_bytes='5'"),
        ({"requests": "0/m"}, "requests='0/m'"),
        ({"requests": "5 per minute"}, "requests='5 per minute'"),
        ({"requests": "999999999/s"}, "requests='999999999/s'"),
    ],
)
def test_a_wrong_quota_is_named(values: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidOption, match=named.replace("(", r"\(")):
        quotas_of(values)


@given(
    number=st.integers(1, 10**6),
    seconds=st.sampled_from([1, 60, 3_600, 86_400]),
    ahead=st.integers(-(10**12), 10**12),
)
def test_what_is_left_and_the_waits_agree(number: int, seconds: int, ahead: int) -> None:
    rate = RequestRate(number, seconds)
    bounded = min(max(ahead, 0), rate.window)
    admitted = rate.decision(True, ahead)
    assert 0 <= admitted.left <= number
    assert admitted.retry_after == 0
    refused = rate.decision(False, ahead)
    # A wait is needed exactly if the next request does not fit into the window.
    assert (refused.retry_after > 0) == (bounded + rate.interval > rate.window)
    assert refused.retry_after <= max(refused.reset, 1)


@pytest.mark.parametrize("quotas", [{"open_task": 1}, {"requests": "often"}, {"open_tasks": -1}])
def test_the_check_names_a_wrong_setting(settings: Any, quotas: dict[str, Any]) -> None:
    settings.DURABLE_TASKS = {"QUOTAS": quotas}
    found = [one for one in check_quotas() if one.id == "durable_tasks.E001"]
    assert len(found) == 1
    assert "QUOTAS" in found[0].msg


def test_tenants_are_bounded_by_default_unless_the_setting_takes_it_away(settings: Any) -> None:
    settings.DURABLE_TASKS = {"QUOTAS": {"open_tasks": 5}}
    bounds = {"recurring_tasks": 1_000, "runs_per_day": 1_440, "calendars": 100}
    assert conf.quotas() == {"open_tasks": 5, "requests": "6000/m", **bounds}
    settings.DURABLE_TASKS = {"QUOTAS": {"requests": None}}
    assert quotas_of(conf.quotas()).requests is None
