"""Rows of django-celery-beat become schedules with the same fire times, and differences are
reported.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, NamedTuple

import celery
import pytest
from celery import schedules
from hypothesis import assume, given
from hypothesis import strategies as st

from django_durable_tasks.contrib.beat import compare
from django_durable_tasks.contrib.beat.compare import EARLY, matched
from django_durable_tasks.contrib.beat.periodic_tasks import (
    BeatRow,
    Crontab,
    imported,
)
from django_durable_tasks.exceptions import InvalidSchedule
from django_durable_tasks.models import RecurringTask
from django_durable_tasks.schedules.options import columns
from django_durable_tasks.schedules.schedule_cache import agenda_from
from tests.unit.recurring.timetables.test_real_schedules import CRONS

NOW = datetime(2026, 11, 21, 13, 0, 30, tzinfo=UTC)


def _crontab(cron: str, zone: str = "UTC") -> Crontab:
    minute, hour, day, month, weekday = cron.split()
    return Crontab(minute, hour, day, month, weekday, zone)


def _row(cron: str = "", zone: str = "UTC", **given: Any) -> BeatRow:
    crontab = _crontab(cron, zone) if cron else None
    return BeatRow(
        **{
            "name": "nightly",
            "task": "shop.tasks.report",
            "crontab": crontab,
            "last_run_at": NOW,
            **given,
        }
    )


class Import(NamedTuple):
    options: dict[str, Any]
    remarks: list[str]


def _import(row: BeatRow, *, durable: bool = True, on_redis: bool = False) -> Import:
    fields = compare.fields_of(row.crontab) if row.crontab else None
    return Import(*imported(row, NOW, fields, durable=durable, on_redis=on_redis))


def _compare(row: BeatRow) -> compare.Comparison:
    values = columns(row.name, _import(row).options)
    return compare.compared(
        row, agenda_from(RecurringTask(name=row.name, **{"start_time": NOW, **values}), None), NOW
    )


# Fire times ---------------------------------------------------------------------------------------


def _texts(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    spans = st.tuples(number, number).map(lambda pair: f"{pair[0]}-{pair[1]}")
    steps = st.tuples(st.one_of(st.just("*"), spans), st.integers(1, 9)).map(
        lambda pair: f"{pair[0]}/{pair[1]}"
    )
    parts = st.one_of(number.map(str), spans, steps)
    return st.one_of(st.just("*"), st.lists(parts, min_size=1, max_size=3).map(",".join))


as_celery_57 = pytest.mark.skipif(
    celery.__version__ < "5.7",
    reason="Celery 5.6 computes other fire times of crontabs; import-beat describes those of 5.7",
)
"""The newest versions these tests run with."""


@given(st.tuples(_texts(0, 59), _texts(0, 23), _texts(1, 31), _texts(1, 12), _texts(0, 6)))
def test_every_crontab_fires_as_celery_reads_it(fields: tuple[str, str, str, str, str]) -> None:
    row = _row(" ".join(fields))
    assert row.crontab is not None
    assume(compare.fields_of(row.crontab) is not None)
    values = columns(row.name, _import(row).options)
    agenda = agenda_from(RecurringTask(name=row.name, **{"start_time": NOW, **values}), None)
    assert list(islice(compare._ours(row, agenda, NOW), 10)) == list(
        islice(compare.fires(row, NOW), 10)
    )


@pytest.mark.parametrize(
    ("cron", "kept"),
    [
        ("*/5 * * * *", {"cron": "*/5 * * * *"}),
        ("0 22-2 * * *", {"cron": "0 0,1,2,22,23 * * *"}),
        ("0 9 * * mon-fri", {"cron": "0 9 * * 1,2,3,4,5"}),
        ("0 9 * * */2", {"cron": "0 9 * * 0,2,4,6"}),
        ("0-59 9 1-31 * 1", {"cron": "* 9 * * 1"}),
        (
            "0 9 1 1 1",
            {"rrule": "FREQ=DAILY;BYMONTH=1;BYMONTHDAY=1;BYDAY=MO;BYHOUR=9;BYMINUTE=0;BYSECOND=0"},
        ),
    ],
)
def test_a_crontab_is_stored_as_celery_reads_it(cron: str, kept: dict[str, str]) -> None:
    options = _import(_row(cron, "Europe/London")).options
    assert {kind: options[kind] for kind in ("cron", "rrule") if kind in options} == kept
    assert options["timezone"] == "Europe/London"


def test_the_crontabs_of_a_large_project_fire_as_in_beat_except_at_clock_changes() -> None:
    unread = set()
    for cron in CRONS:
        for name in ("UTC", "Europe/Berlin", "America/New_York"):
            row = _row(cron, name)
            if row.crontab is not None and compare.fields_of(row.crontab) is None:
                unread.add(cron)
                continue
            kinds = {text.partition(":")[0] for text in _compare(row).differences}
            assert kinds <= (set() if name == "UTC" else {"DST"}), cron
    assert len(unread) < 8
    assert all(re.search(r"\b\d+/\d", cron) for cron in unread), "Celery reads no a/b, and all else"


def test_both_restricted_day_fields_are_reported() -> None:
    assert any(remark.startswith("DAYS") for remark in _import(_row("0 9 1 * 1")).remarks)
    assert _import(_row("0 9 1 * *")).remarks == []


@as_celery_57
def test_a_clock_gap_and_a_repeated_hour_are_reported_with_their_instants() -> None:
    [gap] = _compare(_row("30 2 * * *", "America/New_York")).differences
    assert "goes forward, 2027-03-14T07:00:00Z" in gap
    assert (
        "beat alone fires at 2027-03-14T07:30:00Z; here it alone fires at 2027-03-14T07:00:00Z"
        in gap
    )
    [twice] = _compare(_row("*/5 * * * *", "America/New_York")).differences
    assert "goes back" in twice
    assert "here it alone fires at 2027-11-07T06:00:00Z" in twice
    assert "9 times more" in twice


def test_equal_behaviour_is_not_reported() -> None:
    for row in (
        _row("30 2 * * *"),
        _row("0 9 * * *", "America/New_York"),
        _row("0 0 1 * *", "Europe/London"),
    ):
        comparison = _compare(row)
        assert comparison.differences == ()
        assert comparison.here == comparison.beat


def test_a_run_that_beat_has_missed_is_reported() -> None:
    [owed] = _compare(_row("30 2 * * *", last_run_at=NOW - timedelta(days=2))).differences
    assert owed.startswith("OWED")
    assert "2026-11-22T02:30:00Z" in owed


def test_a_run_that_a_running_beat_has_not_recorded_yet_is_not_missed() -> None:
    for row in (_row("* * * * *"), _row(interval=(7, "seconds"))):
        comparison = _compare(replace(row, last_run_at=NOW - timedelta(seconds=100)))
        assert comparison.differences == ()
        assert comparison.here == comparison.beat


def test_an_interval_continues_from_beats_last_run() -> None:
    row = _row(interval=(2, "hours"), last_run_at=NOW - timedelta(minutes=30))
    comparison = _compare(row)
    assert (
        comparison.here
        == comparison.beat
        == [NOW + timedelta(minutes=minutes) for minutes in (90, 210, 330)]
    )
    assert [remark.partition(":")[0] for remark in _import(row).remarks] == ["INTERVAL"]


@pytest.mark.parametrize("unit", ["days", "hours", "minutes", "seconds"])
def test_an_interval_of_every_period_has_beats_length(unit: str) -> None:
    comparison = _compare(_row(interval=(7, unit)))
    assert comparison.here == comparison.beat


@as_celery_57
def test_a_future_start_time_becomes_the_start() -> None:
    start = NOW + timedelta(days=3)
    for row in (_row(interval=(1, "days")), _row("30 2 * * *"), _row("*/5 * * * *")):
        comparison = _compare(replace(row, start_time=start, last_run_at=None, date_changed=NOW))
        assert comparison.here == comparison.beat
        assert comparison.here[0] >= start


def test_a_clocked_task_runs_once() -> None:
    at = NOW + timedelta(days=1)
    row = _row(clocked=at, one_off=True)
    assert _import(row).options["max_runs"] == 1
    comparison = _compare(row)
    assert comparison.here == comparison.beat == [at]


def test_solar_schedules_cannot_be_compared_without_ephem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ephem", None)
    comparison = _compare(_row(solar=("sunset", 51.5, -0.1)))
    assert (len(comparison.here), comparison.beat) == (3, None)
    assert "ephem is missing" in comparison.differences[0]


def test_a_project_with_crontabs_in_celerys_zone_keeps_that_zone(settings: Any) -> None:
    row = _row("30 2 * * *", "America/New_York")
    assert compare.seen_by_beat(row) == row
    settings.DJANGO_CELERY_BEAT_TZ_AWARE = False
    found = compare.seen_by_beat(row).crontab
    assert found is not None
    assert found.timezone == "UTC"


# Task and options ---------------------------------------------------------------------------------


def test_a_durable_task_keeps_its_supported_options() -> None:
    row = _row(
        "30 2 * * *",
        args="[1]",
        kwargs='{"a": 2}',
        queue="reports",
        expire_seconds=90,
        description="Nightly.",
        expires=NOW + timedelta(days=9),
    )
    options = _import(row).options
    wanted = {
        "args": [1],
        "kwargs": {"a": 2},
        "queue": "reports",
        "expires_in": 90.0,
        "overlap": "ALLOW",
    }
    assert {key: options[key] for key in wanted} == wanted
    assert options["end_time"] < NOW + timedelta(days=9)
    assert options["description"] == "Nightly."


def test_unsupported_options_are_reported() -> None:
    row = _row("30 2 * * *", exchange="x", headers='{"trace": 1}')
    found = _import(row)
    [remark] = found.remarks
    assert remark.endswith("no message of its own: exchange")
    assert found.options["options"] == {"headers": {"trace": 1}}


@pytest.mark.parametrize(
    ("given_", "on_redis", "ours"),
    [(9, False, 9), (255, False, 9), (0, True, 9), (9, True, 0), (3, True, 6)],
)
def test_a_priority_keeps_its_meaning(given_: int, on_redis: bool, ours: int) -> None:
    found = _import(_row("30 2 * * *", priority=given_), on_redis=on_redis)
    assert found.options["priority"] == ours
    assert any(remark.startswith("PRIORITY") for remark in found.remarks) is (ours != given_)


def test_a_plain_celery_task_is_sent_as_beat_would_send_it() -> None:
    row = _row(
        "30 2 * * *", args="[1]", queue="old", priority=3, expire_seconds=9, headers='{"trace": 1}'
    )
    found = _import(row, durable=False)
    assert found.options["kwargs"] == {
        "task": "shop.tasks.report",
        "args": [1],
        "kwargs": {},
        "options": {
            "queue": "old",
            "priority": 3,
            "expires": 9,
            "headers": {"trace": 1, "periodic_task_name": "nightly"},
        },
    }
    assert json.dumps(found.options["kwargs"])


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"expires": NOW}, "expired at 2026-11-21T13:00:30Z"),
        ({"one_off": True, "total_run_count": 1}, "has run"),
        (
            {"crontab": None, "clocked": NOW - timedelta(days=1)},
            "has passed; beat would run it at its next start",
        ),
        ({"crontab": None, "clocked": NOW, "enabled": False}, "has switched it off"),
        ({"crontab": None}, "no interval, crontab, solar or clocked"),
        ({"crontab": None, "interval": (1, "weeks")}, "'weeks'"),
        ({"args": "[1"}, "args are no JSON"),
        ({"kwargs": "[1]"}, "JSON that is a dict"),
        pytest.param(
            {"crontab": _crontab("0 0 30 2 *")},
            "Celery cannot read its crontab",
            marks=as_celery_57,
        ),
        ({"crontab": _crontab("61 * * * *")}, "cannot read"),
    ],
)
def test_rows_that_beat_would_not_run_again_are_refused_with_the_reason(
    changes: dict[str, Any], why: str
) -> None:
    with pytest.raises(InvalidSchedule, match=re.escape(why)):
        _import(replace(_row("30 2 * * *"), **changes))


def test_an_unknown_zone_is_refused() -> None:
    row = _row("30 2 * * *", "Mars/Olympus")
    assert row.crontab is not None
    with pytest.raises(InvalidSchedule, match="Mars/Olympus"):
        compare.fields_of(row.crontab)


@as_celery_57
def test_the_simulated_clock_of_beat_equals_beat() -> None:
    """``is_due`` with the real clock at each instant agrees with the simulation: due there, and not
    a second before.
    """
    row = _row("*/20 1-3 * * *", "America/New_York")
    start = datetime(2027, 3, 14, 4, tzinfo=UTC)
    last = start
    for at in islice(compare.fires(row, start, last=start), 12):
        clock = compare._Clock(at)
        assert row.crontab is not None
        schedule: schedules.crontab = compare._crontab(row.crontab, clock)
        assert schedule.is_due(last).is_due
        clock.at = at - timedelta(seconds=1)
        assert not schedule.is_due(last).is_due
        last = at


# Matching -----------------------------------------------------------------------------------------
#
# Fires of beat are matched with fire times of the schedule: each once, and none is lost.


START = datetime(2026, 3, 2, 9, tzinfo=UTC)
TOLERANCE = timedelta(seconds=30)


def _at(*seconds: float) -> list[datetime]:
    return [START + timedelta(seconds=one) for one in seconds]


def test_a_late_fire_belongs_to_its_fire_time() -> None:
    lags, only_here, only_beat = matched(_at(0, 60, 120), _at(0.1, 65, 120), TOLERANCE)
    assert list(lags.values()) == [0.1, 5.0, 0.0]
    assert (only_here, only_beat) == ([], [])


def test_a_fire_that_beat_omitted_does_not_shift_the_others() -> None:
    lags, only_here, _ = matched(_at(0, 10, 20, 30), _at(0.1, 20.1, 30.1), TOLERANCE)
    assert only_here == _at(10)
    assert [round(lag, 3) for lag in lags.values()] == [0.1, 0.1, 0.1]


def test_duplicate_and_additional_fires_are_of_beat_only() -> None:
    *_, only_beat = matched(_at(0, 60), _at(0.1, 0.2, 45, 60), TOLERANCE)
    assert only_beat == _at(0.2, 45)


def test_a_clock_slightly_ahead_is_no_difference() -> None:
    assert matched(_at(60), _at(59.5), TOLERANCE)[2] == []
    assert matched(_at(60), _at(58.5), TOLERANCE)[2] == _at(58.5)


_TIMES = st.lists(st.integers(0, 200), unique=True, max_size=20).map(
    lambda found: _at(*sorted(found))
)


@given(_TIMES, _TIMES)
def test_every_fire_is_matched_once(here: list[datetime], beat: list[datetime]) -> None:
    lags, only_here, only_beat = matched(here, beat, TOLERANCE)
    assert sorted([*lags, *only_here]) == here
    assert len(lags) + len(only_beat) == len(beat)
    assert all(-EARLY.total_seconds() <= lag <= 30 for lag in lags.values())
    assert set(only_beat) <= set(beat)
