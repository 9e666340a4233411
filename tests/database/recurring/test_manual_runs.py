"""A backfill creates runs for past fire times without one: each once, in order, with bounded
concurrency.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_durable_tasks.exceptions import (
    InvalidOption,
    TransitionRefused,
    UniqueConflict,
    UnknownTask,
)
from django_durable_tasks.limits import backpressure, overlap
from django_durable_tasks.models import DeadLetter, OccurrenceRecord, RecurringTask, Task
from django_durable_tasks.models.tasks import NEVER
from django_durable_tasks.store.clock import database_now
from tests.database.recurring.schedules import START, a_schedule, at, fire, fire_times, ledger_of
from tests.factories import QUEUE, a_dead_letter, a_task
from tests.messages import take_task_messages
from tests.project import tasks

pytestmark = pytest.mark.django_db


def a_missed_stretch(minutes: int = 5, **given: Any) -> RecurringTask:
    """Declare a schedule that missed one fire per minute from START on."""
    row = a_schedule(catch_up_mode="SKIP_MISSED", misfire_grace=1, **given)
    assert fire(at(60 * minutes - 30)) == 0
    row.refresh_from_db()
    return row


def end_task(task: Task | None, status: str) -> None:
    """End a task directly in the database."""
    assert task is not None
    Task.objects.unguarded().filter(pk=task.pk).update(
        status=status, completed_at=database_now(), due_at=None
    )


def test_missed_fire_times_get_their_runs_and_the_watermark_stays() -> None:
    row = a_missed_stretch()
    report = row.backfill(START, at(240), by="anna")
    assert (report.created, report.replayed, report.left) == (5, 0, 0)
    assert fire_times(row) == [at(60 * number) for number in range(5)]
    assert [step.task_id for step in report.steps] == list(
        Task.objects.order_by("fire_time").values_list("pk", flat=True)
    )
    assert ledger_of(row)[1] == ("DISPATCHED", START, None, 1, "backfilled by anna")
    after = RecurringTask.objects.get()
    for name in ("next_run_at", "watermark_at", "runs_count", "revision"):
        assert getattr(after, name) == getattr(row, name), name


def test_the_range_includes_both_its_ends() -> None:
    row = a_missed_stretch()
    assert row.backfill(at(60), at(120)).created == 2
    assert row.backfill(at(61), at(119)).steps == ()
    assert fire_times(row) == [at(60), at(120)]


def test_a_second_backfill_has_nothing_to_do() -> None:
    row = a_missed_stretch()
    row.backfill(START, at(240))
    report = row.backfill(START, at(240), reprocess="ALL")
    assert (report.created, report.replayed, report.left) == (0, 0, 5)
    assert {step.why for step in report.steps} == {"its task is PENDING"}


def test_a_dry_run_reports_the_same_and_writes_nothing() -> None:
    row = a_missed_stretch()
    lines = OccurrenceRecord.objects.count()
    would = row.backfill(START, at(240), dry_run=True)
    assert (Task.objects.count(), OccurrenceRecord.objects.count()) == (0, lines)
    done = row.backfill(START, at(240))
    assert [(step.fire_time, step.action, step.why) for step in would.steps] == [
        (step.fire_time, step.action, step.why) for step in done.steps
    ]
    assert (would.dry_run, done.dry_run) == (True, False)


def test_a_skipped_fire_keeps_its_only_ledger_entry() -> None:
    row = a_schedule()
    fire(START)
    fire(at(60))
    report = row.backfill(START, at(60))
    assert [(step.action, step.why) for step in report.steps] == [
        ("UNCHANGED", "its task is PENDING"),
        ("CREATED", "was SKIPPED_OVERLAP"),
    ]
    assert [line[:2] for line in ledger_of(row)] == [("DISPATCHED", START), ("DISPATCHED", at(60))]
    assert fire_times(row) == [START, at(60)]


def test_runs_start_one_at_a_time_oldest_first() -> None:
    row = a_missed_stretch()
    row.backfill(START, at(240))
    for number in range(5):
        overlap.release(10)
        count_running = Task.objects.open().exclude(due_at=NEVER)
        assert [task.fire_time for task in count_running] == [at(60 * number)]
        end_task(count_running.get(), "SUCCESS")


def test_runs_start_newest_first_with_the_requested_concurrency() -> None:
    row = a_missed_stretch()
    row.backfill(START, at(240), order="NEWEST", concurrency=2)

    def count_running() -> set[Any]:
        return set(Task.objects.open().exclude(due_at=NEVER).values_list("fire_time", flat=True))

    assert count_running() == {at(240), at(180)}
    end_task(Task.objects.get(fire_time=at(240)), "SUCCESS")
    overlap.release(10)
    assert count_running() == {at(180), at(120)}


def test_a_second_backfill_waits_behind_the_first() -> None:
    row = a_missed_stretch()
    row.backfill(START, at(60))
    row.backfill(at(120), at(240))
    assert Task.objects.waiting_for_overlap().count() == 4


def test_failed_runs_are_replayed_as_the_same_tasks_on_request() -> None:
    row = a_missed_stretch()
    row.backfill(START, at(240))
    failed, cancelled, done = Task.objects.order_by("fire_time")[:3]
    end_task(failed, "FAILED")
    a_dead_letter(failed)
    end_task(cancelled, "CANCELLED")
    end_task(done, "SUCCESS")
    assert row.backfill(START, at(240)).left == 5
    report = row.backfill(START, at(240), reprocess="FAILED", by="anna")
    assert [step.task_id for step in report.of(report.steps[0].action)] == [failed.pk]
    assert DeadLetter.objects.get().resolution == "REPLAYED"
    report = row.backfill(START, at(240), reprocess="ALL")
    assert [(step.why, step.task_id) for step in report.steps if step.action == "REPLAYED"] == [
        ("was CANCELLED", cancelled.pk),
        ("was SUCCESS", done.pk),
    ]
    assert Task.objects.filter(status="PENDING").count() == Task.objects.count() == 5


def test_replayed_runs_count_for_the_concurrency_of_the_backfill_too() -> None:
    row = a_missed_stretch(overlap="ALLOW")
    row.backfill(START, at(240), concurrency=5)
    Task.objects.unguarded().update(status="FAILED", completed_at=database_now(), due_at=None)
    row.backfill(START, at(240), reprocess="FAILED")
    assert [task.fire_time for task in Task.objects.pending().exclude(due_at=NEVER)] == [START]
    assert Task.objects.waiting_for_overlap().count() == 4


def test_a_run_whose_task_was_pruned_is_left_out() -> None:
    row = a_missed_stretch()
    row.backfill(START, at(240))
    Task.objects.unguarded().filter(fire_time=START).delete()
    report = row.backfill(START, at(240), reprocess="ALL")
    assert report.steps[0].why == "it ran; its task is no longer kept"


def test_fire_times_that_the_trigger_has_not_reached_are_not_created_twice() -> None:
    row = a_schedule(overlap="ALLOW")
    row.backfill(START, at(60))
    assert fire(at(120)) == 1
    assert fire_times(row) == [START, at(60), at(120)]


def test_a_paused_schedule_can_be_backfilled() -> None:
    row = a_schedule()
    row.pause("deploy")
    assert row.backfill(START, at(60)).created == 2
    row.resume(run_missed=True)
    assert fire_times(row) == [START, at(60)]


def test_ranges_that_cannot_be_filled_are_refused() -> None:
    row = a_missed_stretch()
    now = database_now()
    for start, end, why in (
        (at(60), START, "is before start"),
        (START, now + timedelta(hours=1), "is after now"),
        (START.replace(tzinfo=None), at(60), "naive"),
    ):
        with pytest.raises(InvalidOption, match=why):
            row.backfill(start, end)
    RecurringTask.objects.unguarded().update(ledger_from=at(60))
    for start in (START, at(60)):  # the entry of the latter has been deleted too
        with pytest.raises(InvalidOption, match="is kept after"):
            row.backfill(start, at(120))
    assert row.backfill(at(61), at(120)).created == 1


def test_too_many_fire_times_are_refused_before_they_are_all_computed() -> None:
    row = a_schedule(interval=1)
    with pytest.raises(InvalidOption, match="more than 1000 fire times"):
        row.backfill(START, at(10_000_000))
    with pytest.raises(InvalidOption, match="more than 10 fire times"):
        row.backfill(START, at(10), limit=10)
    assert row.backfill(START, at(10), limit=11).created == 11


@pytest.mark.parametrize(
    ("option", "value"),
    [("reprocess", "SOME"), ("order", "RANDOM"), ("concurrency", 0), ("limit", 10_001)],
)
def test_an_unknown_option_is_named(option: str, value: Any) -> None:
    with pytest.raises(InvalidOption, match=option):
        a_schedule().backfill(START, at(60), **{option: value})


def test_a_unique_task_is_refused_for_several_fire_times() -> None:
    row = a_missed_stretch(task=tasks.unique, args=["a"])
    lines = OccurrenceRecord.objects.count()
    with pytest.raises(UniqueConflict, match="one fire time at a time"):
        row.backfill(START, at(240))
    assert (Task.objects.count(), OccurrenceRecord.objects.count()) == (0, lines)
    assert row.backfill(START, START).created == 1


def test_a_backfill_needs_as_many_statements_for_many_fire_times_as_for_few() -> None:
    row = a_schedule(overlap="SKIP")
    for minute in range(16):
        fire(at(60 * minute))

    def statements(first: float, last: float, **how: Any) -> int:
        with CaptureQueriesContext(connection) as asked:
            report = row.backfill(at(first), at(last), **how)
        assert report.left == 0
        return len(asked)

    # Skipped fires have ledger entries, those after the last tick have none.
    few = statements(60, 120), statements(60 * 60, 60 * 61)
    assert (statements(180, 60 * 15), statements(60 * 62, 60 * 75)) == few
    Task.objects.unguarded().update(status="FAILED", completed_at=database_now(), due_at=None)
    again = {"reprocess": "FAILED"}
    assert statements(60, 120, **again) == statements(180, 60 * 15, **again)


def test_before_the_start_nothing_runs_and_the_report_gives_the_reason() -> None:
    row = a_schedule(cron="0 0 * * *")
    report = row.backfill(at(days=-3), at(days=-2))
    assert report.steps == ()
    assert (
        report.remark
        == "2026-02-27T09:00:00Z is before the start of nightly, 2026-03-02T09:00:00Z: nothing"
        " fires before it. The first fire time is 2026-03-03T00:00:00Z."
    )
    assert row.backfill(at(days=-3), at(days=3)).created == 3
    assert "is before the start of nightly" in row.backfill(at(days=-3), at(days=3)).remark


def test_a_range_between_two_fires_names_them() -> None:
    row = a_schedule(cron="0 0 * * *")
    assert (
        row.backfill(at(days=3), at(days=3, seconds=5)).remark
        == "nightly has no fire time from 2026-03-05T09:00:00Z to 2026-03-05T09:00:05Z: before them"
        " comes 2026-03-05T00:00:00Z and after them comes 2026-03-06T00:00:00Z."
    )


def test_a_range_after_the_end_of_a_schedule_names_its_end() -> None:
    row = a_schedule(cron="0 0 * * *")
    RecurringTask.objects.unguarded().update(end_time=at(days=2))
    assert (
        "is after the end of nightly, 2026-03-04T09:00:00Z"
        in row.backfill(at(days=3), at(days=4)).remark
    )


def test_an_end_in_whole_seconds_includes_the_fire_within_that_second() -> None:
    odd = START + timedelta(microseconds=808_286)
    row = a_schedule(start_time=odd, overlap="ALLOW")
    assert [step.fire_time for step in row.backfill(START, at(60)).steps] == [
        odd,
        odd + timedelta(seconds=60),
    ]


# Run now ------------------------------------------------------------------------------------------
#
# A manual run: once per request, in addition to the fire times, independent of pauses and bounds,
# subject to overlap.


def test_a_manual_run_is_recorded_under_its_request_and_does_not_change_the_schedule() -> None:
    row = a_schedule(task=tasks.add, args=[1, 2], max_runs=3)
    task = row.trigger_now(by="anna")
    assert (task.name, task.args, task.recurring_task_id) == (
        "tests.project.tasks.add",
        [1, 2],
        row.pk,
    )
    line = OccurrenceRecord.objects.get()
    assert (line.outcome, line.task_id, line.unique_fire_time, line.reason) == (
        "MANUAL",
        task.pk,
        None,
        "by anna",
    )
    assert task.idempotency_key == f"{row.pk}/request/{line.request_id}"
    after = RecurringTask.objects.get(pk=row.pk)
    for name in ("next_run_at", "watermark_at", "runs_count", "last_run_at", "revision"):
        assert getattr(after, name) == getattr(row, name), name


def test_a_request_runs_once_and_two_without_an_id_run_twice() -> None:
    row = a_schedule(overlap="ALLOW")
    assert row.trigger_now(request_id="deploy-17") == row.trigger_now(request_id="deploy-17")
    assert row.trigger_now() != row.trigger_now()
    assert Task.objects.count() == OccurrenceRecord.objects.count() == 3
    assert (
        a_schedule("another").trigger_now(request_id="deploy-17").recurring_task.name == "another"
    )


def test_a_request_whose_task_was_pruned_is_reported_and_not_run_again() -> None:
    row = a_schedule()
    row.trigger_now(request_id="deploy-17")
    Task.objects.unguarded().all().delete()
    with pytest.raises(
        TransitionRefused, match=r"'deploy-17' ran as task .*, which is no longer kept"
    ):
        row.trigger_now(request_id="deploy-17")


def test_a_request_id_that_fits_no_key_is_refused() -> None:
    row = a_schedule()
    for wrong in ("", "x" * 151, "a\nb"):
        with pytest.raises(InvalidOption, match="request_id"):
            row.trigger_now(request_id=wrong)
    assert row.trigger_now(request_id="x" * 150).idempotency_key.endswith("x" * 150)


def test_a_paused_schedule_can_be_run_manually_and_an_ended_one_cannot() -> None:
    row = a_schedule()
    row.pause("deploy")
    assert row.trigger_now().is_open
    row.cancel("enough")
    with pytest.raises(TransitionRefused, match="has ended \\(enough\\): it cannot be triggered"):
        row.trigger_now()


def test_an_unknown_task_is_refused_and_nothing_is_written() -> None:
    row = a_schedule()
    RecurringTask.objects.unguarded().update(task="another.release", revision=9)
    with pytest.raises(UnknownTask, match=r"another\.release"):
        row.trigger_now()
    assert not OccurrenceRecord.objects.exists()


def test_a_taken_unique_key_refuses_the_run_and_nothing_is_written() -> None:
    row = a_schedule(task=tasks.unique_or_raise, args=["a"], overlap="ALLOW")
    row.trigger_now()
    with pytest.raises(UniqueConflict, match="nightly"):
        row.trigger_now()
    assert Task.objects.count() == OccurrenceRecord.objects.count() == 1


@pytest.mark.parametrize("policy", ["SKIP", "QUEUE_ONE", "QUEUE_ALL"])
def test_it_waits_behind_an_open_run_and_starts_when_that_has_ended(policy: str) -> None:
    row = a_schedule(overlap=policy)
    fire(START)
    first = Task.objects.get()
    waiting = [row.trigger_now() for _ in range(2)]
    assert set(Task.objects.waiting_for_overlap()) == set(waiting)
    assert set(
        OccurrenceRecord.objects.filter(outcome="MANUAL").values_list("blocked_by", flat=True)
    ) == {first.pk}
    assert overlap.release(10) == 0
    Task.objects.unguarded().filter(pk=first.pk).update(
        status="SUCCESS", completed_at=database_now(), due_at=None
    )
    assert overlap.release(10) == 1
    assert list(Task.objects.waiting_for_overlap()) == [waiting[1]]


def test_it_replaces_a_pending_run_if_the_policy_says_so() -> None:
    row = a_schedule(overlap="REPLACE_PENDING")
    fire(START)
    task = row.trigger_now()
    assert not Task.objects.waiting_for_overlap().exists()
    assert list(Task.objects.open()) == [task]
    assert Task.objects.get(status="CANCELLED").reason == "REPLACED"


def test_it_requests_cancellation_of_a_running_one_and_waits_for_its_end() -> None:
    row = a_schedule(overlap="CANCEL_RUNNING")
    running = a_task("RUNNING", recurring_task=row, overlap_key=f"recurring:{row.pk}")
    task = row.trigger_now()
    running.refresh_from_db()
    assert running.cancel_requested_at is not None
    assert list(Task.objects.waiting_for_overlap()) == [task]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("overlap", ["ALLOW", "SKIP"])
def test_it_is_published_at_the_commit_if_the_fast_path_is_open(overlap: str) -> None:
    row = a_schedule(overlap=overlap)
    backpressure.snapshot()
    with transaction.atomic():
        task = row.trigger_now()
        assert take_task_messages(QUEUE) == []
    task.refresh_from_db()
    assert (task.status, task.epoch, task.publish_count) == ("QUEUED", 1, 1)
    assert [(message.task_id, message.epoch) for message in take_task_messages(QUEUE)] == [
        (task.pk, 1)
    ]


@pytest.mark.django_db(transaction=True)
def test_it_waits_unpublished_if_its_overlap_key_was_taken_before_the_commit() -> None:
    row = a_schedule()
    backpressure.snapshot()
    with transaction.atomic():
        task = row.trigger_now()
        a_task("RUNNING", recurring_task=row, overlap_key=f"recurring:{row.pk}", fire_time=at())
    assert take_task_messages(QUEUE) == []
    assert list(Task.objects.waiting_for_overlap()) == [task]
