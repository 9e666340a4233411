"""A fire time while another run is open: six overlap policies, from creation over the claim to the
end of the runs.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from django_durable_tasks.limits import overlap
from django_durable_tasks.models import OccurrenceRecord, RecurringTask, Task
from django_durable_tasks.scheduler.loop import Scheduler
from django_durable_tasks.states import endings
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.tasks import operator_actions
from tests.database.recurring.schedules import START, a_schedule, at, fire
from tests.database.transitions.transition_calls import (
    CRASH,
    FAILURE,
    HOPELESS,
    PLACE,
    end,
    question,
    start,
    succeed,
)
from tests.factories import QUEUE, a_task
from tests.messages import claim_due, take_task_messages
from tests.project import tasks
from tests.waiting import until

pytestmark = pytest.mark.django_db

SECOND, THIRD = at(60), at(120)


def of(fire_time: datetime) -> Task:
    """Return the current task of a fire time."""
    found: Task = Task.objects.get(fire_time=fire_time)
    return found


def claimed() -> list[Any]:
    """Claim due tasks as a scheduler does, and return the fire times to be published."""
    ids = [
        message.task_id
        for message in claim_due(QUEUE, database_now() + timedelta(seconds=1), 10, PLACE.node)
    ]
    return sorted(Task.objects.filter(pk__in=ids).values_list("fire_time", flat=True))


def run(fire_time: datetime) -> Task:
    """Claim and start the task of a fire time."""
    claimed()
    assert start(of(fire_time)) is not None
    return of(fire_time)


def outcome(fire_time: datetime) -> str:
    """Return the outcome that the ledger has for a fire time."""
    found: str = OccurrenceRecord.objects.get(fire_time=fire_time).outcome
    return found


def after_three_fires(overlap: str, *, running: bool = True, **given: Any) -> RecurringTask:
    """Fire three times, a minute apart, while the first run stays open."""
    row = a_schedule(overlap=overlap, misfire_grace=1, **given)
    fire(START)
    if running:
        run(START)
    fire(SECOND)
    fire(THIRD)
    return row


# The six policies ---------------------------------------------------------------------------------


def test_allow_runs_them_concurrently() -> None:
    after_three_fires("ALLOW")
    assert claimed() == [SECOND, THIRD]
    assert {task.overlap_key for task in Task.objects.all()} == {None}


@pytest.mark.parametrize("running", [True, False])
def test_skip_omits_them_and_names_the_open_run(running: bool) -> None:
    after_three_fires("SKIP", running=running)
    assert [outcome(SECOND), outcome(THIRD)] == ["SKIPPED_OVERLAP"] * 2
    assert OccurrenceRecord.objects.filter(blocked_by=of(START).pk).count() == 2


def test_skip_runs_again_when_the_open_run_has_ended() -> None:
    after_three_fires("SKIP")
    succeed(of(START))
    assert fire(at(180)) == 1
    assert claimed() == [at(180)]


def test_queue_one_keeps_the_first_waiting_and_omits_the_others() -> None:
    after_three_fires("QUEUE_ONE")
    assert (outcome(SECOND), outcome(THIRD)) == ("DISPATCHED", "SKIPPED_OVERLAP")
    assert claimed() == []
    succeed(of(START))
    assert (overlap.release(10), claimed()) == (1, [SECOND])


def test_queue_all_runs_them_one_after_the_other_in_order() -> None:
    after_three_fires("QUEUE_ALL")
    assert claimed() == []
    for fire_time, following in ((START, SECOND), (SECOND, THIRD)):
        succeed(of(fire_time))
        assert (overlap.release(10), overlap.release(10)) == (1, 0)
        assert claimed() == [following]
        assert start(of(following)) is not None
    succeed(of(THIRD))
    assert overlap.release(10) == 0


def test_cancel_running_requests_cancellation_and_waits_for_the_end() -> None:
    after_three_fires("CANCEL_RUNNING")
    assert of(START).cancel_requested_at is not None
    assert (of(SECOND).status, of(SECOND).reason) == ("CANCELLED", "REPLACED")
    assert (overlap.release(10), claimed()) == (0, [])
    end(of(START), outcome=FAILURE)
    assert of(START).status == "CANCELLED"
    assert (overlap.release(10), claimed()) == (1, [THIRD])


def test_cancel_running_replaces_unstarted_runs_at_once() -> None:
    after_three_fires("CANCEL_RUNNING", running=False)
    assert [of(START).status, of(SECOND).status] == ["CANCELLED"] * 2
    assert claimed() == [THIRD]


def test_replace_pending_lets_the_running_one_end_and_keeps_the_newest_behind_it() -> None:
    after_three_fires("REPLACE_PENDING")
    assert (of(START).status, of(START).cancel_requested_at) == ("RUNNING", None)
    assert (of(SECOND).status, of(SECOND).reason) == ("CANCELLED", "REPLACED")
    assert claimed() == []
    succeed(of(START))
    assert (overlap.release(10), claimed()) == (1, [THIRD])


def test_catching_up_under_skip_runs_each_missed_run_in_order() -> None:
    a_schedule(overlap="SKIP", catch_up_mode="RUN_ALL_MISSED", misfire_grace=1)
    assert fire(at(150)) == 3
    order = []
    for _ in range(3):
        order += claimed()
        assert start(of(order[-1])) is not None
        assert claimed() == []
        succeed(of(order[-1]))
        overlap.release(10)
    assert order == [START, SECOND, THIRD]


def test_the_newest_missed_run_goes_first_on_request() -> None:
    a_schedule(catch_up_mode="RUN_ALL_MISSED", catchup_order="NEWEST", misfire_grace=1)
    fire(at(150))
    order = []
    for _ in range(3):
        order += claimed()
        assert start(of(order[-1])) is not None
        succeed(of(order[-1]))
        overlap.release(10)
    assert order == [THIRD, SECOND, START]


# One key of several schedules ---------------------------------------------------------------------


def test_schedules_with_the_same_key_exclude_each_other_and_others_do_not() -> None:
    echo = tasks.echo
    for name, account in (("hourly", 1), ("nightly", 1), ("other", 2)):
        a_schedule(name, task=echo, args=[account], overlap="SKIP", overlap_key="account {0}")
    assert fire(START) == 2
    assert {task.overlap_key for task in Task.objects.all()} == {"1:account 1", "1:account 2"}
    lines = OccurrenceRecord.objects.filter(outcome="SKIPPED_OVERLAP")
    assert lines.get().blocked_by == Task.objects.get(overlap_key="1:account 1").pk


def test_a_key_accepts_named_arguments_and_the_tasks_own_name() -> None:
    a_schedule(
        task=tasks.echo, kwargs={"region": "eu"}, overlap="SKIP", overlap_key="{task}/{region}"
    )
    fire(START)
    assert of(START).overlap_key == "1:tests.project.tasks.echo/eu"


def test_keys_that_differ_only_at_their_end_are_different() -> None:
    for letter in "abb":
        name = f"{letter}{RecurringTask.objects.count()}"
        a_schedule(name, overlap="SKIP", overlap_key="x" * 199 + letter)
    assert fire(START) == 2
    assert Task.objects.values("overlap_key").distinct().count() == 2


def test_the_policy_of_the_new_run_applies() -> None:
    a_schedule("patient", overlap="QUEUE_ALL", overlap_key="one")
    a_schedule("hasty", start_time=at(30), overlap="CANCEL_RUNNING", overlap_key="one")
    fire(START)
    fire(at(30))
    assert of(START).status == "CANCELLED"
    assert claimed() == [at(30)]


# At the claim -------------------------------------------------------------------------------------


def test_a_run_that_waits_for_its_retry_keeps_its_overlap_key() -> None:
    after_three_fires("QUEUE_ALL")
    end(of(START), outcome=FAILURE)
    assert of(START).status == "PENDING"
    assert (overlap.release(10), claimed()) == (0, [])
    operator_actions.retry(question(of(START)), by="anna")
    assert claimed() == [START]


def test_a_run_whose_worker_died_keeps_its_overlap_key_too() -> None:
    after_three_fires("QUEUE_ONE")
    end(of(START), outcome=CRASH)
    assert (of(START).status, overlap.release(10)) == ("PENDING", 0)


def test_an_old_run_that_is_replayed_waits_for_the_running_one() -> None:
    after_three_fires("SKIP")
    end(of(START), outcome=HOPELESS)
    fire(at(180))
    run(at(180))
    operator_actions.replay(question(of(START)), by="anna")
    assert claimed() == []
    assert of(START).is_waiting
    succeed(of(at(180)))
    assert (overlap.release(10), claimed()) == (1, [START])


def test_of_two_due_runs_with_one_key_one_is_claimed_and_the_other_waits() -> None:
    row = a_schedule(overlap="QUEUE_ALL")
    pair = [
        a_task(recurring_task=row, overlap_key="one", fire_time=when, run_at=when, due_at=when)
        for when in (START, SECOND)
    ]
    assert claimed() == [START]
    assert [task.pk for task in Task.objects.waiting_for_overlap()] == [pair[1].pk]


def test_a_waiting_run_can_be_cancelled_and_the_next_one_takes_its_place() -> None:
    after_three_fires("QUEUE_ALL")
    Task.objects.unguarded().filter(pk=of(SECOND).pk).update(key="second", open_key="second")
    assert Task.objects.cancel("second") == 1
    succeed(of(START))
    assert (overlap.release(10), claimed()) == (1, [THIRD])


def test_any_number_of_busy_keys_do_not_hide_a_free_one() -> None:
    for number in range(6):
        slot = f"slot {number}"
        if number < 5:
            a_task("RUNNING", overlap_key=slot)
        a_task(overlap_key=slot, due_at=datetime.fromisoformat("9000-01-01T00:00:00+00:00"))
    assert overlap.release(1) == 1
    assert [
        task.overlap_key
        for task in Task.objects.pending().exclude(pk__in=Task.objects.waiting_for_overlap())
    ] == ["slot 5"]


def test_a_run_with_jitter_is_not_released_before_its_instant() -> None:
    after_three_fires("QUEUE_ONE")
    later = database_now() + timedelta(hours=1)
    Task.objects.unguarded().filter(pk=of(SECOND).pk).update(run_at=later)
    succeed(of(START))
    assert overlap.release(10) == 1
    assert of(SECOND).due_at == later
    assert claimed() == []


# Release by maintenance ---------------------------------------------------------------------------
#
# A task that waited for overlap is dispatched as soon as the maintenance job releases it, not one
# poll later.


@pytest.mark.django_db(transaction=True)
def test_a_task_released_by_maintenance_is_dispatched_by_an_immediate_round() -> None:
    row = a_schedule(queue=QUEUE, overlap="QUEUE_ALL")
    fire(START)
    fire(at(60))
    row.refresh_from_db()
    row.pause("only tasks that exist already")
    first, second = Task.objects.order_by("fire_time")
    endings.cancel(Task.objects.filter(pk=first.pk), "TEST")
    scheduler = Scheduler("one")
    scheduler.leader.step()
    scheduler.round()
    scheduler.maintenance.round()
    assert scheduler.dispatching.time_to_sleep() < 0.1
    until(
        lambda: (scheduler.round(), Task.objects.queued().filter(pk=second.pk).exists())[1],
        within=30,
    )
    assert [message.task_id for message in take_task_messages(QUEUE)] == [second.pk]
