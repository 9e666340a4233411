"""Recurring tasks in real processes: each fire time runs once, whatever the clocks show and
whichever scheduler leads, dies or freezes.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from django_durable_tasks.models import Node, OccurrenceRecord, RecurringTask
from django_durable_tasks.store.clock import database_now
from tests.processes.cluster import Cluster, Program
from tests.processes.fires import (
    advanced,
    declared,
    dispatched,
    expected,
    ran,
    recorded,
    reloaded,
    silenced,
)
from tests.processes.windows import Seen, matched, noted, windows
from tests.waiting import until

BEHIND, AHEAD = -300, 300
ALL: dict[str, Any] = {
    "catch_up_mode": "RUN_ALL_MISSED",
    "max_catchup_runs": 1_000,
    "overlap": "ALLOW",
}
QUEUED: dict[str, Any] = {**ALL, "interval": 20, "overlap": "QUEUE_ALL"}
SCHEDULES: dict[str, dict[str, Any]] = {
    "each second": {"interval": 1},
    "every 3 s": {"interval": 3},
    "every 4 s, spread": {"interval": 4, "jitter": 1.5},
    "on even seconds in Berlin": {
        "cron": "*/2 * * * * *",
        "seconds": "FIRST",
        "timezone": "Europe/Berlin",
    },
    "by a rule": {"rrule": "FREQ=SECONDLY;INTERVAL=5", "timezone": "Australia/Lord_Howe"},
    "two together": {"parts": [{"interval": 4}, {"cron": "*/6 * * * * *", "seconds": "FIRST"}]},
}


def _leads(cluster: Cluster, program: Program) -> None:
    # The lease lasts 25 s on SQLite.
    until(lambda: cluster.leading() is program, within=90, message=f"{program.name} leads")


def _loops(program: Program) -> None:
    """Wait until a scheduler has run its loop several times."""

    def beats() -> int:
        return int(Node.objects.values_list("beats", flat=True).get(name=program.name))

    before = beats()
    until(lambda: beats() >= before + 2, within=20, message=f"{program.name} goes round")


def _reports_its_skew(program: Program, seconds: int) -> None:
    node = program.node()
    assert node is not None
    assert node.skew is not None
    assert abs(node.skew - seconds) < abs(BEHIND) / 2
    assert ("The clock of this host" in program.output()) == bool(seconds)


def test_different_clocks_frozen_and_killed_leaders_miss_and_duplicate_no_fire(
    cluster: Cluster, tmp_path: Path, vendor: str
) -> None:
    """By the clock of the slow scheduler, the schedules have only just begun; only SQLite uses it.

    So on SQLite no clock may be ahead. Elsewhere those of the worker and the last leader are, and
    none of their fires is early.
    """
    notebook = tmp_path / "notes"
    ahead = {} if vendor == "sqlite" else {"TEST_CLOCK_SHIFT": str(AHEAD)}
    rows = [
        declared(name, notebook, ago=-BEHIND, **{**ALL, **given})
        for name, given in SCHEDULES.items()
    ]
    queued = declared("one after the other", notebook, ago=-BEHIND, **QUEUED)
    worker = cluster.worker(slots=4, **ahead)
    behind = cluster.scheduler(TEST_CLOCK_SHIFT=str(BEHIND))
    cluster.ready()
    for program, shift in ((behind, BEHIND), (worker, AHEAD)):
        _reports_its_skew(program, 0 if vendor == "sqlite" else shift)
    right = cluster.scheduler().ready()
    advanced(rows)
    assert (reloaded(rows[0]).watermark_at < database_now() + timedelta(seconds=BEHIND / 2)) == (
        vendor == "sqlite"
    )
    behind.freeze()
    _leads(cluster, right)
    advanced(rows)
    behind.thaw()
    until(lambda: "lost leadership" in behind.output(), within=20, message="the sleeper steps down")
    right.kill()
    _leads(cluster, behind)
    third = cluster.scheduler(**ahead).ready()
    _loops(behind)
    behind.kill()
    _leads(cluster, third)
    advanced(rows)
    rows = [*rows, queued]
    begun = {row.pk: row.watermark_at for row in rows}
    for row in silenced(rows):
        assert dispatched(row) == expected(row, begun[row.pk], row.watermark_at), row.name
    found = ran(rows, notebook)
    assert (found.missing, found.surplus) == ((), ())
    assert len(found.pairs) > 300


def test_fires_missed_without_a_scheduler_follow_the_misfire_policy(
    cluster: Cluster, tmp_path: Path
) -> None:
    given: dict[str, Any] = {"interval": 1, "misfire_grace": 0.5, "overlap": "ALLOW"}
    modes = ("RUN_ALL_MISSED", "RUN_ONE_NOW", "SKIP_MISSED")
    rows = [declared(mode, tmp_path / "notes", catch_up_mode=mode, **given) for mode in modes]
    cluster.worker()
    first, second = cluster.scheduler(), cluster.scheduler()
    cluster.ready()
    advanced(rows, 1)
    first.kill()
    second.kill()
    down = max(reloaded(row).watermark_at for row in rows)
    until(
        lambda: database_now() > down + timedelta(seconds=5),
        within=20,
        message="five seconds are missed",
    )
    back = database_now() - timedelta(seconds=0.5)
    cluster.scheduler().ready()
    advanced(rows)
    begun = {row.pk: row.watermark_at for row in rows}
    late = {}
    for row in silenced(rows):
        times = expected(row, begun[row.pk], row.watermark_at)
        assert set(recorded(row, times).values()) == {1}, row.name
        late[row.name] = (
            expected(row, down, back),
            [time for time in dispatched(row) if down < time <= back],
        )
    wanted, ran_late = late["RUN_ALL_MISSED"]
    assert ran_late == wanted
    assert len(wanted) >= 4
    wanted, ran_late = late["RUN_ONE_NOW"]
    assert ran_late in ([], wanted[-1:])
    assert late["SKIP_MISSED"][1] == []
    found = ran(rows, tmp_path / "notes")
    assert (found.missing, found.surplus) == ((), ())


QUICK: dict[str, Any] = {"interval": 0.2, "overlap": "ALLOW"}


def test_no_pause_is_undone_by_the_scheduler_that_fires_meanwhile(
    cluster: Cluster, tmp_path: Path
) -> None:
    """There are enough schedules that a tick is nearly always in progress, so a pause coincides
    with it.
    """
    rows = [
        declared(f"number {number}", tmp_path / "notes", **QUICK | {"interval": 0.1})
        for number in range(20)
    ]
    begun, paused, others = rows[0].watermark_at, rows[:15], rows[15:]
    cluster.scheduler()
    cluster.ready()
    for number in range(3):
        advanced(rows, 0.3)
        for row in paused:
            row.pause(f"for the time {number}", by="anna")
        before = [dispatched(row) for row in paused]
        advanced(others, 0.6)
        stand = {(row.status, row.status_reason, row.next_run_at) for row in map(reloaded, paused)}
        assert stand == {("PAUSED", f"for the time {number}", None)}
        assert [dispatched(row) for row in paused] == before
        for row in paused:
            row.resume()
    advanced(rows, 0.3)
    rows[0].pause()
    first = reloaded(rows[0])
    assert set(recorded(first, expected(first, begun, first.watermark_at)).values()) == {1}
    assert OccurrenceRecord.objects.filter(recurring_task=first, outcome="PAUSED").count() == 3


def test_no_edit_during_a_tick_makes_a_schedule_fire_past_times(
    cluster: Cluster, tmp_path: Path
) -> None:
    row = declared("edited", tmp_path / "notes", **QUICK)
    hour = timedelta(hours=1)
    edits: list[Callable[[], dict[str, Any]]] = [
        lambda: {"interval": 0.3, "start_time": database_now() - hour},
        lambda: {"cron": "* * * * * *", "seconds": "FIRST", "timezone": "America/New_York"},
        lambda: {
            "at": [database_now() + timedelta(seconds=0.1 * number - 10) for number in range(140)]
        },
        lambda: {
            "interval": 0.2,
            "start_time": database_now() - 2 * hour,
            "catch_up_mode": "RUN_ALL_MISSED",
        },
    ]
    cluster.scheduler()
    cluster.ready()
    for edit in edits:
        advanced([row], 0.3)
        before = database_now()
        edited = RecurringTask.objects.upsert(name=row.name, task=row.task, **edit())
        newest = OccurrenceRecord.objects.latest("id").pk
        advanced([row], 0.3)
        since = OccurrenceRecord.objects.filter(recurring_task=row, pk__gt=newest)
        times = list(since.order_by("fire_time").values_list("fire_time", flat=True))
        assert times
        assert times[0] > before
        assert times == expected(edited, edited.watermark_at, times[-1])


@pytest.mark.smoke
def test_undisturbed_schedules_run_in_their_windows(
    cluster: Cluster, tmp_path: Path, record_testsuite_property: Callable[[str, object], None]
) -> None:
    """Here no run names its fire time: one run in each window, and no other run. Lags are only
    recorded.
    """
    notebook = tmp_path / "notes"
    rows = [
        declared(f"number {number}", notebook, interval=1 + number % 3, overlap="ALLOW")
        for number in range(12)
    ]
    cluster.worker(slots=4)
    cluster.scheduler()
    cluster.ready()
    advanced(rows, 4)
    begun = {row.pk: row.watermark_at for row in rows}
    targets = [
        window
        for row in silenced(rows)
        for window in windows(
            str(row.pk), expected(row, begun[row.pk], row.watermark_at), timedelta(seconds=30)
        )
    ]
    found = matched(
        targets, [Seen(str(seen.name).partition("/")[0], seen.at) for seen in noted(notebook)]
    )
    assert (found.missing, found.surplus) == ((), ())
    lags = found.lags()
    record_testsuite_property("start lag of fires, p50 (s)", round(lags[len(lags) // 2], 3))
    record_testsuite_property("start lag of fires, largest (s)", round(lags[-1], 3))
