"""The next fires of a schedule, and the explanation of any instant, from the database."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import signals

from django_durable_tasks import registry
from django_durable_tasks.celery import inspect
from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.models import OccurrenceRecord, RecurringTask, SchedulerLease, Task
from django_durable_tasks.schedules import calendars
from django_durable_tasks.store.clock import database_now
from tests.database.commands.durable_command import json_of
from tests.database.recurring.schedules import DAILY, START, a_schedule, at, fire, tomorrow
from tests.project import tasks

pytestmark = pytest.mark.django_db


def test_a_fire_is_explained_from_its_creation_to_its_end() -> None:
    row = a_schedule()
    fire(START)
    task = Task.objects.get()
    assert (
        row.explain(START) == f"2026-03-02T09:00:00Z was dispatched. Its task {task.pk} is PENDING."
    )
    Task.objects.unguarded().update(status="FAILED", reason="EXHAUSTED", due_at=None)
    assert row.explain(START).endswith(f"Its task {task.pk} is FAILED (EXHAUSTED).")
    Task.objects.unguarded().update(status="SUCCESS", reason="", completed_at=at(5))
    assert row.explain(START).endswith(f"Its task {task.pk} is SUCCESS since 2026-03-02T09:00:05Z.")
    Task.objects.unguarded().all().delete()
    assert row.explain(START).endswith("which is no longer kept.")


def test_a_fire_skipped_for_an_open_run_names_it() -> None:
    row = a_schedule()
    fire(START)
    fire(at(60))
    assert (
        f"was skipped: task {Task.objects.get().pk} of an earlier run was still open"
        in row.explain(at(60))
    )


def test_a_fire_waiting_for_overlap_names_the_open_run_and_durable_show_does_too() -> None:
    row = a_schedule(overlap="QUEUE_ALL")
    fire(START)
    fire(at(60))
    first, second = Task.objects.order_by("fire_time")
    assert f"Its task {second.pk} is held behind task {first.pk}" in row.explain(at(60))
    assert any(
        "waits until the earlier runs with its overlap key" in text
        for text in json_of("show", second.pk)["sentences"]
    )
    assert second.next_attempt_at is None


OTHER = uuid.UUID(int=8)


def _record(row: RecurringTask, outcome: str, **columns: Any) -> None:
    """Insert a ledger entry of the fire time START, or of a range up to ``last_fire_time``."""
    unique = None if "last_fire_time" in columns else START
    entry = OccurrenceRecord(
        recurring_task=row, fire_time=START, unique_fire_time=unique, outcome=outcome, **columns
    )
    OccurrenceRecord.objects.unguarded().bulk_create([entry])


@pytest.mark.parametrize(
    ("outcome", "columns", "expected"),
    [
        ("DISPATCHED", {"reason": "caught up"}, "was dispatched (caught up)."),
        ("ROLLED", {"reason": "rolled to Monday"}, "was rolled and dispatched (rolled to Monday)."),
        (
            "SKIPPED_OVERLAP",
            {"blocked_by": OTHER, "reason": f"workflow run {OTHER} is open"},
            f"was skipped: workflow run {OTHER} of an earlier fire was still open.",
        ),
        ("SKIPPED_QUOTA", {"reason": "open_tasks, 5"}, "was skipped by a quota: open_tasks, 5."),
        ("EXPIRED", {"reason": "20 s"}, "came too late: it expired after 20 s."),
        ("OVERRIDDEN", {"reason": "skipped by hand"}, "did not run: skipped by hand."),
        ("FAILED_TO_CREATE", {"reason": "taken"}, "could not be created: taken."),
        ("MISSED", {"reason": "COALESCED"}, "did not run: MISSED (COALESCED)."),
    ],
)
def test_the_entry_of_a_fire_time_is_explained(
    outcome: str, columns: dict[str, Any], expected: str
) -> None:
    row = a_schedule()
    _record(row, outcome, **columns)
    assert row.explain(START) == f"2026-03-02T09:00:00Z {expected}"


@pytest.mark.parametrize(
    ("outcome", "columns", "expected"),
    [
        ("MISSED", {"reason": "COALESCED"}, "missed, one of 9 {}: RUN_ONE_NOW ran the last of"),
        ("MISSED", {"reason": "SKIP_MISSED"}, "missed, one of 9 {}: SKIP_MISSED runs none of"),
        ("MISSED", {"reason": "CATCHUP_WINDOW"}, "missed, one of 9 {}: they lie further back"),
        ("MISSED", {"reason": "MAX_CATCHUP_RUNS"}, "missed, one of 9 {}: max_catchup_runs were"),
        ("MISSED", {"reason": "COALESCED", "count": 1}, "missed: RUN_ONE_NOW"),
        (
            "PAUSED",
            {"reason": "deploy by anna", "count_is_exact": False},
            "did not run: the schedule was paused (deploy by anna), one of at least 9 {}.",
        ),
    ],
)
def test_a_fire_time_in_a_range_is_explained_by_the_entry_of_the_range(
    outcome: str, columns: dict[str, Any], expected: str
) -> None:
    row = a_schedule()
    _record(row, outcome, **{"count": 9, "last_fire_time": at(480), **columns})
    bounds = "fire times from 2026-03-02T09:00:00Z to 2026-03-02T09:08:00Z"
    assert expected.format(bounds) in row.explain(at(60))


def test_a_closed_day_in_a_missed_range_is_explained_as_closed() -> None:
    sunday, later = at(days=6), at(days=6 + 7 * 5_000)
    calendars.upsert("office")
    row = a_schedule(calendar="office")
    _record(row, "MISSED", count=9_999, last_fire_time=at(days=20))
    assert (
        row.explain(sunday)
        == "2026-03-08T09:00:00Z did not run: calendar 'office' is closed: Sunday."
    )
    assert "will not run: calendar 'office' is closed: Sunday." in row.explain(later)


FAR = at(days=36_500)
"""A fire time that is to come."""
PAUSED = {"status": "PAUSED", "paused_at": START, "status_by": "anna", "status_reason": "deploy"}
BY_ANNA = "it is paused since 2026-03-02T09:00:00Z by anna"


@pytest.mark.parametrize(
    ("columns", "moment", "expected"),
    [
        ({}, FAR, f"{FAR:%Y-%m-%dT%H:%M:%SZ} will run, in "),
        ({"task": "shop.gone"}, FAR, "No durable task shop.gone is registered in this process."),
        (PAUSED, FAR, f"will not run unless the schedule is resumed before: {BY_ANNA} (deploy)."),
        ({**PAUSED, "paused_until": FAR}, FAR, f"{BY_ANNA} until 2126-02-06T09:00:00Z (deploy)."),
        ({**PAUSED, "paused_until": at(days=36_499)}, FAR, "will run, in "),
        (PAUSED, START, f"did not run: {BY_ANNA} (deploy)."),
        (
            {"status": "PAUSED", "status_reason": "QUARANTINED", "error": "InvalidSchedule: no"},
            FAR,
            "it could not be triggered and is paused (QUARANTINED): InvalidSchedule: no.",
        ),
        (
            {"status": "CANCELLED", "status_reason": "MAX_RUNS"},
            FAR,
            "will not run: the schedule has ended (MAX_RUNS).",
        ),
        (
            {"status": "CANCELLED", "status_reason": "enough"},
            START,
            "did not run: the schedule had ended (enough).",
        ),
        (
            {"watermark_at": at(120), "created_at": at(60), "updated_at": at(60)},
            START,
            "did not run: the schedule did not exist before 2026-03-02T09:01:00Z.",
        ),
        ({"ledger_from": at(60)}, at(60), "2026-03-02T09:01:00Z: its ledger entry has been"),
        (
            {"updated_at": at(60), "created_at": at(-60)},
            at(7),
            "and after it comes 2026-03-02T09:01:00Z. It was changed at 2026-03-02T09:01:00Z;",
        ),
        ({"timetable": [{"at": []}]}, at(7), "nightly cannot fire at all: "),
    ],
)
def test_a_fire_time_without_an_entry_is_explained_by_its_schedule(
    columns: dict[str, Any], moment: datetime, expected: str
) -> None:
    row = a_schedule()
    RecurringTask.objects.unguarded().update(**columns)
    assert expected in row.explain(moment)


def test_a_fire_time_to_come_is_explained_with_jitter_clock_change_and_override() -> None:
    row = a_schedule(cron="30 2 * * *", timezone="America/New_York", jitter=600)
    gap = datetime(2126, 3, 10, 7, tzinfo=UTC)
    starts = row.next_fire_times(1, after=gap - timedelta(hours=1))[0].effective
    assert f"2126-03-10T07:00:00Z will run at {starts.isoformat()[:-6]}Z, by its jitter, in " in (
        text := row.explain(gap)
    )
    assert " d (DST gap: " in text
    row = a_schedule("moved", cron=DAILY)
    row.override(tomorrow(), "MOVE", move_to=tomorrow(hours=1))
    assert f"will run at {tomorrow(hours=1):%Y-%m-%dT%H:%M:%SZ}, in " in row.explain(tomorrow())


def test_each_of_ten_million_missed_fires_is_explained() -> None:
    row = a_schedule(interval=1, catch_up_mode="SKIP_MISSED", misfire_grace=0.5)
    fire(at(10_000_000 + 0.7))
    for second in (0, 7, 9_999_999):
        assert "was missed, one of 10000001 fire times" in row.explain(at(second))
    assert "is no fire time of nightly" in row.explain(at(7.5))


def test_a_fire_during_a_pause_is_explained_with_reason_and_user() -> None:
    row = a_schedule()
    row.pause("deploy", by="anna")
    assert "did not run: it is paused since" in row.explain(START)
    row.resume()
    assert "the schedule was paused (deploy by anna), one of" in row.explain(at(60))


def test_a_manual_run_is_found_by_its_instant() -> None:
    row = a_schedule()
    task = row.trigger_now(by="anna")
    assert task.fire_time is not None
    assert "was run by hand (by anna)" in row.explain(task.fire_time)


def test_a_due_fire_names_the_missing_leader() -> None:
    row = a_schedule()
    assert "no scheduler leads: run `manage.py run_scheduler`" in row.explain(START)
    SchedulerLease.objects.filter(name="leader").update(
        expires_at=database_now() + timedelta(minutes=1)
    )
    assert "next round triggers it. The leader is behind." in row.explain(START)
    RecurringTask.objects.unguarded().update(next_run_at=FAR, task="shop.gone")
    assert row.explain(START).endswith(
        "looked at again at 2126-02-06T09:00:00Z. No durable task shop.gone is registered in this"
        " process."
    )


def test_before_the_last_change_nothing_fired() -> None:
    row = a_schedule()
    RecurringTask.objects.unguarded().update(created_at=START - timedelta(days=1))
    RecurringTask.objects.upsert(name="nightly", task=row.task, interval=30)
    assert "an edit never fires for a time in the past" in row.explain(at(30))


def test_a_corrupted_schedule_gives_its_error() -> None:
    row = a_schedule()
    RecurringTask.objects.unguarded().update(
        timetable=[{"interval": 60, "cron": "* * * * *"}], revision=77
    )
    assert row.explain(START).startswith("nightly cannot fire at all: ")


def test_an_instant_without_a_zone_is_refused() -> None:
    with pytest.raises(InvalidOption, match="is naive"):
        a_schedule().explain(START.replace(tzinfo=None))


# The next fires -----------------------------------------------------------------------------------


def test_the_next_fires_include_jitter_and_the_trigger_uses_the_same() -> None:
    row = a_schedule(jitter=45, overlap="ALLOW")
    fires = row.next_fire_times(3, after=START - timedelta(seconds=1))
    assert [one.nominal for one in fires] == [START, at(60), at(120)]
    assert all(timedelta(0) <= one.effective - one.nominal < timedelta(seconds=45) for one in fires)
    assert len({one.effective - one.nominal for one in fires}) == 3
    fire(START)
    assert Task.objects.get().run_at == fires[0].effective


def test_the_next_fires_mention_clock_changes() -> None:
    row = a_schedule(cron="30 2 * * *", timezone="America/New_York")
    fires = row.next_fire_times(2, after=START.replace(day=7, hour=12))
    assert fires[0].remarks
    assert fires[0].nominal.isoformat() == "2026-03-08T07:00:00+00:00"
    assert "DST gap" in fires[0].remarks[0]
    assert fires[1].remarks == ()


def test_the_list_starts_from_now_by_default() -> None:
    fires = a_schedule().next_fire_times()
    assert len(fires) == 5
    assert fires[0].nominal > database_now() - timedelta(seconds=1)


def test_only_future_fires_are_listed() -> None:
    row = a_schedule(max_runs=2)
    assert len(row.next_fire_times(10)) == 2
    row.pause("deploy")
    assert row.next_fire_times() == []
    until = database_now() + timedelta(days=1)
    row.pause("deploy", until=until)
    assert row.next_fire_times()[0].nominal > until
    row.cancel()
    assert row.next_fire_times() == []


@pytest.mark.parametrize("number", [0, -1, 10_001, "5"])
def test_a_number_out_of_range_is_refused(number: int) -> None:
    with pytest.raises(InvalidOption, match="number="):
        a_schedule().next_fire_times(number)


# Instants of whole seconds, as lists and tables print them ----------------------------------------

ODD = START + timedelta(microseconds=808_286)


def _odd(**given: Any) -> RecurringTask:
    """Return a schedule whose fire times are not on whole seconds."""
    return a_schedule(**{"interval": 60, "start_time": ODD, "overlap": "ALLOW", **given})


def test_the_second_of_a_fire_identifies_the_fire() -> None:
    row = _odd()
    fire(ODD)
    assert "2026-03-02T09:00:00.808286Z was dispatched" in row.explain(START)
    assert "2026-03-02T09:00:00.808286Z was dispatched" in row.explain(ODD)
    assert "is no fire time" in row.explain(at(60) + timedelta(microseconds=5))


def test_a_recorded_fire_is_found_by_its_second_after_the_timetable_has_changed() -> None:
    row = _odd()
    fire(ODD)
    RecurringTask.objects.upsert(name=row.name, task=row.task, cron="0 0 1 1 *")
    assert "was dispatched" in row.explain(START)


def test_a_manual_run_is_found_by_its_second() -> None:
    row = a_schedule(
        at=[START + timedelta(days=36500)]
    )  # other schedules may have a fire time in the second of this test
    task = row.trigger_now(by="anna")
    assert "was run by hand (by anna)" in row.explain(task.fire_time.replace(microsecond=0))


def test_a_second_with_several_fires_identifies_none_of_them() -> None:
    row = _odd(interval=0.25)
    assert "is no fire time of nightly" in row.explain(at(7))


def test_a_moved_fire_is_found_by_the_second_to_which_it_was_moved() -> None:
    row = a_schedule(cron=DAILY, start_time=START)
    row.override(tomorrow(), "MOVE", move_to=tomorrow(minutes=5, microseconds=7))
    assert f"{tomorrow():%Y-%m-%dT%H:%M:%SZ} was put there" in row.explain(tomorrow(minutes=5))


# Bounds -------------------------------------------------------------------------------------------


def test_before_its_start_a_schedule_names_its_start() -> None:
    row = a_schedule(cron="0 0 * * *")
    assert (
        row.explain(at(days=-1))
        == "2026-03-01T09:00:00Z is before the start of nightly, 2026-03-02T09:00:00Z: nothing"
        " fires before it. The first fire time is 2026-03-03T00:00:00Z."
    )
    row.pause("deploy")
    assert "is before the start of nightly" in row.explain(at(days=-1))


def test_a_new_schedule_begins_when_it_is_created_and_was_not_edited_since() -> None:
    RecurringTask.objects.upsert(name="new", task=tasks.noop, interval=60)
    row = RecurringTask.objects.get(name="new")
    assert row.start_time == row.created_at == row.updated_at


def test_after_its_end_a_schedule_names_its_end() -> None:
    row = a_schedule(end_time=at(days=99_999))
    assert "is after the end of nightly" in row.explain(at(days=100_000))


# A process that has not imported the task modules -------------------------------------------------


@pytest.fixture
def not_imported(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return the name of a task whose module is imported only on demand, as in a web process."""
    known = registry.get(tasks.noop.name)
    name = "shop.tasks.late"

    def import_it(**_: Any) -> None:
        monkeypatch.setitem(
            registry._tasks, name, replace(known, options=replace(known.options, name=name))
        )

    monkeypatch.setattr(inspect._Tasks, "loaded_by", None)
    signals.import_modules.connect(import_it)
    yield name
    signals.import_modules.disconnect(import_it)


OPERATIONS: dict[str, Callable[[RecurringTask], object]] = {
    "explain": lambda row: "shop.tasks.late" not in row.explain(row.next_fire_times(1)[0].nominal),
    "trigger": lambda row: row.trigger_now().name == "shop.tasks.late",
    "backfill": lambda row: row.backfill(START, at(60)).created == 2,
    "upsert": lambda row: RecurringTask.objects.upsert(name="other", task=row.task, interval=60),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_imports_the_tasks_of_the_project_on_demand(
    not_imported: str, operation: str
) -> None:
    row = a_schedule(overlap="ALLOW")
    RecurringTask.objects.unguarded().update(task=not_imported, revision=row.revision + 1)
    row.refresh_from_db()
    assert OPERATIONS[operation](row)
