"""Numbers and datetimes from users are validated; errors have name, value and remedy."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.option_values import instant, maybe_seconds, seconds


@given(st.floats(min_value=0, max_value=3e9) | st.integers(min_value=0, max_value=3_000_000_000))
def test_a_number_is_seconds(number: float) -> None:
    assert seconds("timeout", number) == number


@given(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=30_000)))
def test_a_timedelta_is_its_seconds(value: timedelta) -> None:
    assert seconds("timeout", value) == value.total_seconds()


@pytest.mark.parametrize(
    "value",
    [
        -1,
        -0.001,
        timedelta(seconds=-1),
        math.nan,
        math.inf,
        -math.inf,
        "1",
        None,
        True,
        1j,
        1e300,
        10**400,
    ],
)
def test_other_types_are_refused_by_name(value: object) -> None:
    with pytest.raises(InvalidOption, match="timeout="):
        seconds("timeout", value)


def test_a_minimum_is_reported() -> None:
    with pytest.raises(InvalidOption, match=r"lease=1: it must be 3 seconds or more"):
        seconds("lease", 1, minimum=3)


def test_none_is_accepted_where_allowed() -> None:
    assert maybe_seconds("timeout", None) is None


@pytest.mark.parametrize("zone", [UTC, ZoneInfo("Europe/London")])
def test_an_aware_datetime_is_an_instant(zone: tzinfo) -> None:
    moment = datetime(2026, 11, 20, 12, tzinfo=zone)
    assert instant("run_at", moment) is moment


def test_a_naive_datetime_is_refused_with_the_remedy() -> None:
    with pytest.raises(InvalidOption, match=r"run_at=.*is naive: give it a time zone"):
        instant("run_at", datetime(2026, 11, 20))


class _Aimless(tzinfo):
    def utcoffset(self, _: datetime | None) -> None:
        return None

    def dst(self, _: datetime | None) -> None:
        return None

    def tzname(self, _: datetime | None) -> None:
        return None


@pytest.mark.parametrize(
    "value", ["2026-11-20", 0, None, datetime(2026, 11, 20, tzinfo=_Aimless())]
)
def test_an_invalid_instant_is_refused(value: object) -> None:
    with pytest.raises(InvalidOption, match="run_at="):
        instant("run_at", value)
