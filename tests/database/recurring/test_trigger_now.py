"""A manual run: once per request, in addition to the fire times, independent of pauses and bounds,
subject to overlap.
"""

from __future__ import annotations

import pytest
from django.db import transaction

from django_durable_tasks.exceptions import (
    InvalidOption,
    TransitionRefused,
    UniqueConflict,
    UnknownTask,
)
from django_durable_tasks.limits import backpressure, overlap
from django_durable_tasks.models import OccurrenceRecord, RecurringTask, Task
from django_durable_tasks.store.clock import database_now
from tests.database.recurring.schedules import START, a_schedule, at, fire
from tests.factories import QUEUE, a_task
from tests.messages import take_task_messages
from tests.project import tasks

pytestmark = pytest.mark.django_db


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
