"""The points of charts equal a count of the minutes, and their cost is bounded."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from typing import NamedTuple

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_durable_tasks.choices import Status
from django_durable_tasks.contrib.metrics import admin, counts
from django_durable_tasks.contrib.metrics.admin import (
    PERIODS,
    ChartPoint,
    endings,
    read_points,
)
from django_durable_tasks.contrib.metrics.series import MINUTE, Duration, minute_of
from django_durable_tasks.contrib.metrics.series import MetricKind as Kind
from django_durable_tasks.store.clock import database_now
from tests.database.metrics.counting import SETTLED_SOON, a_minute, count_all, recount
from tests.factories import a_task, many_tasks

pytestmark = pytest.mark.django_db


@pytest.fixture
def now() -> datetime:
    return database_now()


class _Data(NamedTuple):
    points: list[ChartPoint]
    is_cut: bool


def _read(period: str, now: datetime, queue: str = "", name: str = "") -> _Data:
    chosen = {field: value for field, value in (("queue", queue), ("name", name)) if value}
    return _Data(*read_points(endings(None).filter(**chosen), PERIODS[period], now))


def _totals(data: _Data) -> Counter[str]:
    found = Counter[str]()
    for point in data.points:
        found.update(point.numbers)
    return found


@pytest.mark.django_db(transaction=True)
def test_the_points_of_real_endings_equal_a_recount() -> None:
    a_task(Status.SUCCESS)
    many_tasks(3, Status.FAILED)
    count_all()
    data = _read("1h", database_now())
    assert _totals(data) == recount() == {"SUCCESS": 1, "FAILED": 3}
    (point,) = (one for one in data.points if one.numbers)
    assert 0.5 <= (point.quantile(Duration.RUN, 0.5) or 0) <= 2.5


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("minutes", [1, 7, 12, 60])
def test_settled_minutes_are_counted_in_the_same_points(
    monkeypatch: pytest.MonkeyPatch, minutes: int
) -> None:
    monkeypatch.setattr(counts, "DELAYS", SETTLED_SOON)
    many_tasks(3, Status.SUCCESS)
    now = database_now()
    job = count_all(now)
    count_all(now + timedelta(minutes=minutes), job)
    data = _read("24h", now + timedelta(minutes=minutes))
    (point,) = (one for one in data.points if one.numbers)
    assert point.start <= now < point.start + 15 * MINUTE
    assert sum(point.durations["run"].numbers) == 3


@pytest.mark.parametrize("period", PERIODS)
def test_each_minute_is_counted_in_the_point_that_contains_it(period: str, now: datetime) -> None:
    chosen = PERIODS[period]
    start, end = chosen.start(now), minute_of(now)
    inside = [start, start + MINUTE * (chosen.step - 1), start + MINUTE * chosen.step, end]
    for number, minute in enumerate(dict.fromkeys(inside), start=1):
        a_minute(minute, number, seconds=0.2)
    a_minute(start - MINUTE, 1_000)
    data = _read(period, now)
    wanted = Counter[datetime]()
    for number, minute in enumerate(dict.fromkeys(inside), start=1):
        within = (minute - start) // (MINUTE * chosen.step)
        wanted[start + MINUTE * chosen.step * within] += number
    assert {one.start: one.numbers["SUCCESS"] for one in data.points if one.numbers} == wanted
    for point in data.points:
        if point.numbers:
            assert sum(point.durations["run"].numbers) == point.numbers["SUCCESS"]
            assert point.durations["run"].total == pytest.approx(0.2 * point.numbers["SUCCESS"])
    assert not data.is_cut


def test_endings_of_both_kinds_are_added_and_other_counts_left_out(now: datetime) -> None:
    a_minute(now, 2, status="CANCELLED")
    a_minute(now, 3, status="CANCELLED", kind=Kind.ENDED)
    a_minute(now, 5, status="FENCED")
    a_minute(now, 5, status="DUPLICATE")
    a_minute(now, 5, status="", kind=Kind.CREATED)
    assert _totals(_read("1h", now)) == {"CANCELLED": 5}


def test_a_queue_and_a_task_are_selected(now: datetime) -> None:
    a_minute(now, 1, queue="mail", name="send")
    a_minute(now, 2, queue="mail", name="read")
    a_minute(now, 4, queue="bulk", name="send")
    found = {
        (queue, name): _totals(_read("1h", now, queue, name))["SUCCESS"]
        for queue in ("", "mail", "bulk", "none")
        for name in ("", "send")
    }
    assert found == {
        ("", ""): 7,
        ("", "send"): 5,
        ("mail", ""): 3,
        ("mail", "send"): 1,
        ("bulk", ""): 4,
        ("bulk", "send"): 4,
        ("none", ""): 0,
        ("none", "send"): 0,
    }


def test_the_series_of_other_tenants_and_of_all_are_left_out(now: datetime) -> None:
    for tenant in (0, 1, 2):
        a_minute(now, 1, tenant=tenant, queue=f"queue{tenant}")
    found = {
        tenants: set(endings(tenants).values_list("queue", flat=True))
        for tenants in (frozenset({1}), frozenset(), None)
    }
    assert found == {
        frozenset({1}): {"queue1"},
        frozenset(): set(),
        None: {"queue0", "queue1", "queue2"},
    }


def test_a_period_with_too_many_rows_begins_later(
    now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "ROWS_MAX", 10)
    for ago in range(30):
        a_minute(now - timedelta(minutes=ago), 1)
    data = _read("24h", now)
    assert data.is_cut
    assert _totals(data) == {"SUCCESS": 10}
    assert sum(point.minutes for point in data.points) == 10
    monkeypatch.setattr(admin, "ROWS_MAX", 30)
    whole = _read("24h", now)
    assert not whole.is_cut
    assert _totals(whole) == {"SUCCESS": 30}


@pytest.mark.parametrize("limit", [10, 10**9])
def test_the_number_of_statements_does_not_depend_on_the_rows(
    now: datetime, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(admin, "ROWS_MAX", limit)
    counts = set()
    for number in (1, 50):
        for ago in range(number):
            a_minute(now - timedelta(minutes=60 * number + ago), 1, name=f"task{ago}")
        with CaptureQueriesContext(connection) as captured:
            _read("7d", now)
        counts.add(len(captured))
    assert counts == {2}
