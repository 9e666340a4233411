"""A due recurring task creates its occurrences: each once, recorded in the ledger, whatever was
missed.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from django_durable_tasks import process_state
from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.models import OccurrenceRecord, RecurringTask, Task
from django_durable_tasks.schedules import trigger
from django_durable_tasks.schedules.trigger import PostponedSchedules
from tests.database.recurring.schedules import START, a_schedule, at, fire, fire_times, ledger_of
from tests.project import tasks

pytestmark = pytest.mark.django_db


def test_a_fire_time_becomes_one_task_and_one_ledger_entry() -> None:
    row = a_schedule(task=tasks.add, args=[1, 2], priority=4)
    assert fire(at(0.5)) == 1
    task = Task.objects.get(recurring_task=row)
    assert (task.name, task.args, task.queue, task.priority, task.status) == (
        "tests.project.tasks.add",
        [1, 2],
        "test",
        4,
        "PENDING",
    )
    assert (task.fire_time, task.run_at, task.due_at) == (START, START, START)
    assert task.idempotency_key == f"{row.pk}/2026-03-02T09:00:00Z"
    line = OccurrenceRecord.objects.get()
    assert (line.outcome, line.fire_time, line.task_id, line.term) == (
        "DISPATCHED",
        START,
        task.pk,
        7,
    )
    row.refresh_from_db()
    assert (row.next_run_at, row.runs_count, row.last_run_at) == (at(60), 1, at(0.5))


def test_nothing_fires_early_or_twice() -> None:
    row = a_schedule(overlap="ALLOW")
    assert [
        fire(START - timedelta(seconds=1)),
        fire(START),
        fire(START),
        fire(at(59)),
        fire(at(60)),
    ] == [0, 1, 0, 0, 1]
    assert fire_times(row) == [START, at(60)]


def test_a_watermark_that_was_set_back_creates_no_second_task() -> None:
    row = a_schedule(overlap="ALLOW")
    fire(at(60))
    RecurringTask.objects.unguarded().update(
        watermark_at=START - timedelta(seconds=1), next_run_at=START
    )
    assert fire(at(62)) == 0
    assert fire_times(row) == [START, at(60)]
    assert OccurrenceRecord.objects.single().count() == 2


ALL_MISSED = {"catch_up_mode": "RUN_ALL_MISSED", "misfire_grace": 5, "overlap": "ALLOW"}


@pytest.mark.parametrize(
    ("options", "seconds", "runs", "missed", "next_run"),
    [
        ({}, 3_690, [3_660], (3_600, 61, "COALESCED"), 3_720),
        ({"misfire_grace": 5}, 3_630, [3_600], (3_540, 60, "COALESCED"), 3_660),
        (
            {**ALL_MISSED, "max_catchup_runs": 3, "catchup_pace": 10},
            630,
            [480, 540, 600],
            (420, 8, "MAX_CATCHUP_RUNS"),
            660,
        ),
        ({**ALL_MISSED, "catchup_window": 150}, 630, [540, 600], (480, 9, "CATCHUP_WINDOW"), 660),
        (
            {"interval": 1, "catch_up_mode": "SKIP_MISSED", "misfire_grace": 0.5},
            10_000_000.7,
            [],
            (10_000_000, 10_000_001, "SKIP_MISSED"),
            10_000_001,
        ),
    ],
    ids=["one now", "the last if none is on time", "at a pace", "window", "skipped"],
)
def test_missed_fires_run_by_the_policy_and_the_others_are_one_entry(
    options: dict[str, Any],
    seconds: float,
    runs: list[int],
    missed: tuple[int, int, str],
    next_run: int,
) -> None:
    row = a_schedule(**options)
    assert fire(at(seconds)) == len(runs)
    assert fire_times(row) == [at(second) for second in runs]
    last, number, reason = missed
    assert ledger_of(row)[0] == ("MISSED", START, at(last), number, reason)
    assert len(ledger_of(row)) == 1 + len(runs)
    row.refresh_from_db()
    assert row.next_run_at == at(next_run)
    if "catchup_pace" in options:
        starts = Task.objects.order_by("fire_time").values_list("run_at", flat=True)
        assert list(starts) == [at(630), at(640), at(650)]
    if options == {"misfire_grace": 5}:
        assert ledger_of(row)[1] == ("DISPATCHED", at(3_600), None, 1, "caught up")


def test_all_missed_runs_wait_for_each_other_under_skip() -> None:
    row = a_schedule(catch_up_mode="RUN_ALL_MISSED", misfire_grace=5)
    assert fire(at(120 + 30)) == 3
    assert Task.objects.waiting_for_overlap().count() == 2
    assert fire_times(row) == [START, at(60), at(120)]


def test_a_busy_schedule_is_skipped_and_the_ledger_names_the_open_run() -> None:
    row = a_schedule()
    fire(START)
    assert fire(at(60)) == 0
    line = OccurrenceRecord.objects.get(fire_time=at(60))
    assert (line.outcome, line.blocked_by, line.task_id) == (
        "SKIPPED_OVERLAP",
        Task.objects.get().pk,
        None,
    )
    row.refresh_from_db()
    assert (row.runs_count, row.next_run_at) == (1, at(120))


def test_max_runs_ends_the_schedule() -> None:
    row = a_schedule(max_runs=2, overlap="ALLOW", catch_up_mode="RUN_ALL_MISSED")
    assert fire(at(300)) == 2
    row.refresh_from_db()
    assert (row.status, row.status_reason, row.runs_count, row.next_run_at) == (
        "CANCELLED",
        "MAX_RUNS",
        2,
        None,
    )
    assert fire_times(row) == [START, at(60)]


def test_a_run_that_starts_too_late_expires() -> None:
    row = a_schedule(expires_in=20)
    assert fire(at(30)) == 0
    assert [line[0] for line in ledger_of(row)] == ["EXPIRED"]


def test_an_invalid_row_is_quarantined_and_the_others_fire() -> None:
    bad, good = a_schedule("bad"), a_schedule("good")
    RecurringTask.objects.unguarded().filter(pk=bad.pk).update(timetable=[{"interval": "x"}])
    assert fire(START) == 1
    bad.refresh_from_db()
    assert (bad.status, bad.status_reason, bad.next_run_at) == ("PAUSED", "QUARANTINED", None)
    assert bad.error
    assert fire_times(good) == [START]


def test_a_schedule_of_an_unknown_task_is_postponed_and_nothing_is_lost() -> None:
    row = a_schedule()
    RecurringTask.objects.unguarded().filter(pk=row.pk).update(task="another.release", revision=9)
    assert fire(START) == 0
    row.refresh_from_db()
    assert (row.next_run_at, row.status) == (at(30), "ACTIVE")
    (reported,) = process_state.of(PostponedSchedules).failing(30)
    assert reported["what"] == f"recurring task {row.name}"
    assert "another.release" in reported["error"]
    assert "restart this scheduler" in reported["error"]
    RecurringTask.objects.unguarded().filter(pk=row.pk).update(
        task="tests.project.tasks.noop", revision=10
    )
    assert fire(at(30)) == 1
    assert fire_times(row) == [START]
    assert process_state.of(PostponedSchedules).failing(30) == []


def test_the_next_tick_is_due_at_the_earliest_row() -> None:
    a_schedule("later", start_time=at(500))
    row = a_schedule()
    assert trigger.head() == START
    row.cancel()
    assert trigger.head() == at(500)


def test_fires_during_a_pause_are_one_entry_and_a_resume_runs_none_of_them() -> None:
    row = a_schedule()
    row.pause("deploy", by="anna")
    assert fire(at(600)) == 0
    row.resume()
    line = OccurrenceRecord.objects.get()
    assert (line.outcome, line.reason) == ("PAUSED", "deploy by anna")
    row.refresh_from_db()
    assert row.next_run_at is not None
    assert row.next_run_at > at(600)


def test_a_pause_ends_automatically_and_its_fires_are_recorded() -> None:
    row = a_schedule()
    row.pause("deploy")
    RecurringTask.objects.unguarded().update(paused_until=at(125), next_run_at=at(125))
    assert fire(at(185)) == 1
    row.refresh_from_db()
    assert (row.status, row.next_run_at) == ("ACTIVE", at(240))
    assert ledger_of(row) == [
        ("PAUSED", START, at(120), 3, "deploy"),
        ("DISPATCHED", at(180), None, 1, ""),
    ]


def test_a_pause_that_outlasts_the_last_fire_ends_the_schedule_on_resume() -> None:
    last = datetime(2100, 1, 1, tzinfo=UTC)
    row = a_schedule(at=[last])
    row.pause("deploy")
    RecurringTask.objects.unguarded().filter(pk=row.pk).update(watermark_at=last)
    row.resume(run_missed=True)
    assert fire(row.updated_at) == 0
    row.refresh_from_db()
    assert (row.status, row.status_reason) == ("CANCELLED", "ENDED")


@pytest.mark.parametrize("own", ["key", "idempotency_key", "run_at", "tenant", "priority"])
def test_options_that_are_set_per_run_are_refused(own: str) -> None:
    with pytest.raises(InvalidOption, match=f"options holds '{own}'"):
        a_schedule(options={own: "x"})
