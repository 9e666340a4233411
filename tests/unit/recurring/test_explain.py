"""The explanation of a fire time names what happened, the cause, and what to do."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from django_durable_tasks.schedules.agenda import PlannedRun, SkippedRange
from django_durable_tasks.schedules.explanations import (
    FireEntry,
    FireTime,
    OccurrenceTask,
    ScheduleFacts,
    StartedWorkflow,
    account,
)

NOW = datetime(2026, 3, 2, 9, tzinfo=UTC)
HOUR = timedelta(hours=1)
TASK = uuid.UUID(int=7)
OTHER = uuid.UUID(int=8)


def facts(at: datetime = NOW - HOUR, **given: Any) -> ScheduleFacts:
    """Return the facts of an hourly schedule, two days old, whose ledger is complete up to now."""
    plain = ScheduleFacts(
        at=at,
        now=NOW,
        name="nightly",
        task="app.tasks.report",
        status="ACTIVE",
        declared_at=NOW - 48 * HOUR,
        edited_at=NOW - 48 * HOUR,
        watermark=NOW,
        next_run_at=NOW + HOUR,
        planned=PlannedRun(at, at),
        before=at - HOUR,
        after=at + HOUR,
    )
    return replace(plain, **given)


def entry(outcome: str, **given: Any) -> FireEntry:
    """Return a separate ledger entry for the fire an hour ago."""
    return FireEntry(**{"outcome": outcome, "first": NOW - HOUR, **given})


SINGLE = [
    (
        entry("DISPATCHED", task=OccurrenceTask(task_id=TASK, status="SUCCESS", since=NOW)),
        f"was dispatched. Its task {TASK} is SUCCESS since 2026-03-02T09:00:00Z.",
    ),
    (
        entry(
            "DISPATCHED",
            reason="caught up",
            task=OccurrenceTask(task_id=TASK, status="FAILED", reason="EXHAUSTED"),
        ),
        f"was dispatched (caught up). Its task {TASK} is FAILED (EXHAUSTED).",
    ),
    (
        entry("DISPATCHED", task=OccurrenceTask(task_id=TASK)),
        f"was dispatched. It was task {TASK}, which is no longer kept.",
    ),
    (
        entry(
            "DISPATCHED",
            task=OccurrenceTask(
                task_id=TASK, status="PENDING", waiting_for_overlap=True, behind=f"task {OTHER}"
            ),
        ),
        f"Its task {TASK} is held behind task {OTHER} until its overlap key is free.",
    ),
    (entry("ROLLED", reason="rolled to Monday"), "was rolled and dispatched (rolled to Monday)."),
    (entry("MANUAL", reason="by anna"), "was run by hand (by anna)."),
    (
        entry("SKIPPED_OVERLAP", blocked_by=OTHER),
        f"was skipped: task {OTHER} of an earlier run was still open.",
    ),
    (
        entry("SKIPPED_OVERLAP", blocked_by=OTHER, reason=f"workflow run {OTHER} is open"),
        f"was skipped: workflow run {OTHER} of an earlier fire was still open.",
    ),
    (
        entry(
            "DISPATCHED",
            task=OccurrenceTask(
                task_id=TASK, status="SUCCESS", run=StartedWorkflow(OTHER, "RUNNING", 3, 10)
            ),
        ),
        f"SUCCESS. It started workflow run {OTHER}, which is RUNNING: 3 of 10 tasks have ended.",
    ),
    (entry("EXPIRED", reason="20 s"), "came too late: it expired after 20 s."),
    (entry("FAILED_TO_CREATE", reason="taken"), "could not be created: taken."),
    (entry("MISSED", reason="COALESCED"), "did not run: MISSED (COALESCED)."),
]


@pytest.mark.parametrize(("own", "expected"), SINGLE)
def test_a_separate_entry_is_explained_with_its_task(own: FireEntry, expected: str) -> None:
    assert account(facts(lines=(own,))).startswith("2026-03-02T08:00:00Z ")
    assert expected in account(facts(lines=(own,)))


RANGE: dict[str, Any] = {"first": NOW - 9 * HOUR, "last": NOW - HOUR, "count": 9}


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("COALESCED", "RUN_ONE_NOW ran the last of them only"),
        ("SKIP_MISSED", "SKIP_MISSED runs none of them"),
        ("CATCHUP_WINDOW", "further back than catchup_window"),
        ("MAX_CATCHUP_RUNS", "max_catchup_runs were caught up"),
    ],
)
def test_a_missed_fire_is_one_of_its_range(reason: str, expected: str) -> None:
    said = account(facts(lines=(entry("MISSED", reason=reason, **RANGE),)))
    assert (
        "was missed, one of 9 fire times from 2026-03-02T00:00:00Z to 2026-03-02T08:00:00Z" in said
    )
    assert expected in said


def test_a_paused_fire_names_the_pause_without_a_count() -> None:
    said = account(facts(lines=(entry("PAUSED", reason="deploy by anna", exact=False, **RANGE),)))
    assert "the schedule was paused (deploy by anna), one of at least 9 fire times" in said


def test_a_closed_day_inside_a_missed_range_is_reported_as_closed() -> None:
    shut = SkippedRange(
        NOW - HOUR, NOW - HOUR, 1, True, "SKIPPED_CALENDAR", "calendar 'office' is closed: Sunday"
    )
    said = account(facts(planned=shut, lines=(entry("MISSED", reason="COALESCED", **RANGE),)))
    assert said == "2026-03-02T08:00:00Z did not run: calendar 'office' is closed: Sunday."
    to_come = replace(shut, first=NOW + HOUR, last=NOW + HOUR)
    assert "will not run: calendar" in account(facts(NOW + HOUR, planned=to_come))


def test_an_instant_that_is_not_a_fire_time_names_its_neighbours() -> None:
    at = NOW - HOUR / 2
    said = account(facts(at, planned=None, before=NOW - HOUR, after=NOW))
    assert (
        said
        == "2026-03-02T08:30:00Z is no fire time of nightly: before it comes 2026-03-02T08:00:00Z"
        " and after it comes 2026-03-02T09:00:00Z."
    )
    assert "it has none" in account(facts(at, planned=None, before=None, after=None))
    assert "It was changed at 2026-03-02T09:00:00Z" in account(
        facts(at, planned=None, edited_at=NOW)
    )
    assert "The fire time 2026-03-01T09:00:00Z was put there" in account(
        facts(at, planned=None, runs_then=NOW - 24 * HOUR)
    )


SOON = NOW + HOUR


def test_a_future_fire_is_explained_with_jitter_and_remarks() -> None:
    assert account(facts(SOON)) == "2026-03-02T10:00:00Z will run, in 60 min."
    fire = FireTime(SOON, SOON + timedelta(minutes=5), ("DST gap",))
    said = account(facts(SOON, fire=fire, known=False))
    assert said.startswith(
        "2026-03-02T10:00:00Z will run at 2026-03-02T10:05:00Z, by its jitter, in 65 min (DST gap)."
    )
    assert "No durable task app.tasks.report is registered in this process" in said


def test_a_moved_fire_is_explained_with_its_instant() -> None:
    moved = PlannedRun(SOON, SOON + HOUR, ("moved by hand",), overridden=True)
    said = account(facts(SOON, planned=moved, fire=FireTime(SOON, SOON + HOUR, moved.remarks)))
    assert said == "2026-03-02T10:00:00Z will run at 2026-03-02T11:00:00Z, in 2 h (moved by hand)."


def test_a_paused_schedule_names_start_user_and_end_of_the_pause() -> None:
    paused: dict[str, Any] = {
        "status": "PAUSED",
        "paused_at": NOW,
        "status_by": "anna",
        "status_reason": "deploy",
    }
    said = account(facts(SOON, **paused))
    assert (
        "unless the schedule is resumed before: it is paused since 2026-03-02T09:00:00Z by anna"
        " (deploy)." in said
    )
    assert "until 2026-03-02T09:30:00Z" in account(
        facts(NOW + HOUR / 4, **paused, paused_until=NOW + HOUR / 2)
    )
    assert "will run" in account(facts(SOON, **paused, paused_until=NOW + HOUR / 2))
    assert "did not run: it is paused" in account(facts(watermark=NOW - 2 * HOUR, **paused))


def test_a_quarantined_schedule_shows_its_error() -> None:
    said = account(
        facts(SOON, status="PAUSED", status_reason="QUARANTINED", error="InvalidSchedule: no zone")
    )
    assert "could not be triggered and is paused (QUARANTINED): InvalidSchedule: no zone" in said


def test_an_ended_schedule_gives_its_reason() -> None:
    assert "will not run: the schedule has ended (MAX_RUNS)." in account(
        facts(SOON, status="CANCELLED", status_reason="MAX_RUNS")
    )
    assert "the schedule had ended (enough)." in account(
        facts(status="CANCELLED", status_reason="enough", watermark=NOW - 2 * HOUR)
    )


def test_a_fire_before_the_schedule_existed_or_was_changed_did_not_run() -> None:
    assert "did not exist before 2026-03-02T09:00:00Z. backfill() can run it." in account(
        facts(declared_at=NOW, edited_at=NOW)
    )
    assert (
        "was changed at 2026-03-02T09:00:00Z, and an edit never fires for a time in the past"
        in account(facts(edited_at=NOW))
    )
    last = "is not after 2026-03-02T09:00:00Z: its ledger entry has been deleted"
    assert last in account(facts(ledger_from=NOW))
    it = facts()
    assert "has been deleted" in account(replace(it, ledger_from=it.at))


def test_a_due_fire_names_what_is_late() -> None:
    due: dict[str, Any] = {"at": NOW - HOUR, "watermark": NOW - 2 * HOUR, "next_run_at": NOW - HOUR}
    assert "is due since 60 min, and no scheduler leads: run `manage.py run_scheduler`." in account(
        facts(**due, led=False)
    )
    assert account(facts(**due)).endswith(
        "the leader's next round triggers it. The leader is behind."
    )
    put_off = account(facts(**{**due, "next_run_at": NOW + HOUR}, known=False))
    assert (
        "looked at again at 2026-03-02T10:00:00Z. No durable task app.tasks.report is registered in"
        " this process." in put_off
    )
    just = facts(at=NOW, watermark=NOW - HOUR, next_run_at=NOW)
    assert account(just) == "2026-03-02T09:00:00Z is due now: the leader's next round triggers it."
