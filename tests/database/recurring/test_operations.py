"""Pause, snooze, resume and cancel: what an operator does is stored, recorded, and never undone by
the trigger.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import transaction

from django_durable_tasks.exceptions import (
    DurableTasksError,
    InvalidOption,
    InvalidSchedule,
    TransitionRefused,
)
from django_durable_tasks.models import OccurrenceRecord, RecurringTask, Task
from django_durable_tasks.schedules.agenda import Override
from django_durable_tasks.schedules.schedule_cache import overrides_of
from django_durable_tasks.store.clock import database_now
from tests.database.commands.durable_command import json_of
from tests.database.recurring.schedules import (
    DAILY,
    START,
    a_schedule,
    at,
    fire,
    fire_times,
    ledger_of,
    override_directly,
    tomorrow,
)
from tests.database.recurring.test_trigger_conflicts import BY_HAND
from tests.project import tasks

pytestmark = pytest.mark.django_db


def test_a_pause_stores_reason_user_and_its_first_instant() -> None:
    row = a_schedule()
    row.pause("deploy", by="anna")
    since = row.paused_at
    row.pause("month end", by="bert", until=database_now() + timedelta(days=1))
    row.refresh_from_db()
    assert (row.status_reason, row.status_by, row.paused_at) == ("month end", "bert", since)
    assert row.next_run_at == row.paused_until


def test_a_paused_schedule_without_end_is_never_due() -> None:
    row = a_schedule()
    row.pause()
    assert fire(at(10**9)) == 0
    row.refresh_from_db()
    assert (row.status, row.next_run_at) == ("PAUSED", None)


@pytest.mark.parametrize("until", [START, START.replace(tzinfo=None)])
def test_a_pause_until_a_past_or_naive_instant_is_refused(until: Any) -> None:
    row = a_schedule()
    with pytest.raises(InvalidOption, match="until="):
        row.pause(until=until)
    row.refresh_from_db()
    assert row.status == "ACTIVE"


def test_a_snooze_ends_automatically_and_records_passed_fires() -> None:
    row = a_schedule(overlap="ALLOW")
    until = database_now().replace(microsecond=0) + timedelta(days=1)
    row.snooze(until, by="anna")
    fire(until)
    row.refresh_from_db()
    assert (row.status, row.paused_until) == ("ACTIVE", None)
    outcome, first, last, _, reason = ledger_of(row)[0]
    assert (outcome, first, reason) == ("PAUSED", START, "SNOOZED by anna")
    assert last is not None
    assert last <= until


def test_resuming_a_schedule_that_is_not_paused_changes_nothing() -> None:
    row = a_schedule()
    before = row.revision
    row.resume(by="anna")
    row.refresh_from_db()
    assert (row.revision, row.status_by, row.next_run_at) == (before, "", START)


def test_a_resume_with_missed_runs_catches_up_by_the_policy_and_records_no_pause() -> None:
    row = a_schedule(
        catch_up_mode="RUN_ALL_MISSED", max_catchup_runs=3, misfire_grace=1, overlap="ALLOW"
    )
    row.pause("deploy")
    RecurringTask.objects.unguarded().update(paused_at=START)
    row.resume(run_missed=True, pace=30)
    assert row.next_run_at == START
    now = at(630)
    assert fire(now) == 3
    assert fire_times(row) == [at(480), at(540), at(600)]
    starts = list(Task.objects.order_by("fire_time").values_list("run_at", flat=True))
    assert [start - now for start in starts] == [
        timedelta(seconds=seconds) for seconds in (0, 30, 60)
    ]
    assert not OccurrenceRecord.objects.filter(outcome="PAUSED").exists()


def test_an_invalid_pace_is_refused_and_the_pause_stays() -> None:
    row = a_schedule()
    row.pause("deploy")
    with pytest.raises(InvalidOption, match="pace="):
        row.resume(run_missed=True, pace=-1)
    row.refresh_from_db()
    assert row.status == "PAUSED"


def test_a_repaired_row_leaves_its_quarantine_by_a_resume() -> None:
    row = a_schedule()
    RecurringTask.objects.unguarded().update(timetable=[{"interval": "x"}], revision=8)
    fire(START)
    row.refresh_from_db()
    assert row.status_reason == "QUARANTINED"
    with pytest.raises(InvalidSchedule):
        row.resume()
    row = RecurringTask.objects.upsert(name="nightly", task=row.task, interval=60)
    row.resume(by="anna")
    row.refresh_from_db()
    assert (row.status, row.error, row.status_reason) == ("ACTIVE", "", "")
    assert row.next_run_at is not None


def test_an_ended_schedule_stays_ended_and_its_open_tasks_continue() -> None:
    row = a_schedule()
    fire(START)
    row.cancel("enough", by="anna")
    row.cancel("again", by="bert")
    row.refresh_from_db()
    assert (row.status, row.status_reason, row.status_by) == ("CANCELLED", "enough", "anna")
    assert Task.objects.get().status == "PENDING"
    operations: list[Any] = [
        row.pause,
        row.resume,
        partial(row.snooze, database_now() + timedelta(days=1)),
    ]
    for operation in operations:
        with pytest.raises(TransitionRefused, match=r"has ended \(enough\)"):
            operation()
    assert fire(at(600)) == 0


def test_the_callers_instance_is_updated() -> None:
    row = a_schedule()
    stale = RecurringTask.objects.get(pk=row.pk)
    row.pause("deploy")
    stale.resume()
    assert stale.status == "ACTIVE"
    assert stale.revision == RecurringTask.objects.get().revision


@pytest.mark.parametrize("operation", ["pause", "cancel"])
def test_an_edit_does_not_undo_an_operators_change(operation: str) -> None:
    row = a_schedule()
    getattr(row, operation)("deploy")
    status = row.status
    RecurringTask.objects.upsert(name="nightly", task=row.task, interval=30, priority=7)
    row.refresh_from_db()
    assert (row.status, row.status_reason, row.next_run_at) == (status, "deploy", None)
    assert row.priority == 7


@pytest.mark.parametrize("values", BY_HAND.values(), ids=BY_HAND.keys())
def test_every_operation_refuses_a_corrupted_row_with_a_package_error(
    values: dict[str, Any],
) -> None:
    row = a_schedule()
    RecurringTask.objects.unguarded().update(**values, revision=7)
    row.refresh_from_db()
    operations: list[Any] = [
        partial(row.explain, START),
        row.next_fire_times,
        row.trigger_now,
        partial(row.backfill, START, at(60)),
        partial(row.override, database_now(), "SKIP"),
        partial(row.pause, "broken"),
        row.resume,
        partial(row.resume, run_missed=True),
        row.cancel,
    ]
    for operation in operations:
        with suppress(DurableTasksError), transaction.atomic():
            operation()
    assert RecurringTask.objects.get().status == "CANCELLED"
    assert json_of("show", "nightly")["status"] == "CANCELLED"
    assert len(json_of("list", "recurring")) == 1


def test_a_snooze_does_not_change_a_pause() -> None:
    row = a_schedule()
    row.pause("no money", by="anna")
    with pytest.raises(TransitionRefused, match=r"is paused by anna \(no money\): resume it first"):
        row.snooze(database_now() + timedelta(days=1), by="bert")
    row.refresh_from_db()
    assert (row.status_reason, row.status_by, row.paused_until) == ("no money", "anna", None)


def test_a_later_snooze_replaces_an_earlier_one() -> None:
    row = a_schedule()
    for days in (1, 2):
        until = database_now() + timedelta(days=days)
        row.snooze(until)
    assert row.paused_until == until


def test_a_snooze_until_a_whole_second_includes_the_fire_within_it() -> None:
    row = RecurringTask.objects.upsert(
        name="odd", task=tasks.noop, interval=86_400, start_time=at(days=1, seconds=0.8)
    )
    next_run = row.next_fire_times(1)[0].nominal
    row.snooze(next_run.replace(microsecond=0))
    assert row.paused_until == next_run
    assert row.next_fire_times(1)[0].nominal == next_run + timedelta(days=1)


# Overrides ----------------------------------------------------------------------------------------
#
# Overrides of single fire times: skip, move, add, restore.


def a_daily_schedule(**given: Any) -> RecurringTask:
    """Declare a schedule that fires once a day and whose ledger is complete up to now."""
    row = a_schedule(cron=DAILY, overlap="ALLOW", **given)
    RecurringTask.objects.unguarded().update(watermark_at=database_now(), next_run_at=tomorrow())
    row.refresh_from_db()
    return row


def test_a_skipped_fire_does_not_run_and_the_ledger_names_the_user() -> None:
    row = a_daily_schedule()
    row.override(tomorrow(), "SKIP", reason="bank holiday", by="anna")
    row.refresh_from_db()
    assert row.next_run_at == tomorrow(days=1)
    assert fire(tomorrow(days=1)) == 1
    assert fire_times(row) == [tomorrow(days=1)]
    assert ledger_of(row)[0] == (
        "OVERRIDDEN",
        tomorrow(),
        tomorrow(),
        1,
        "skipped by hand: bank holiday",
    )
    assert overrides_of(row)[0].by == "anna"


def test_a_moved_fire_runs_at_another_time_and_keeps_its_fire_time() -> None:
    row = a_daily_schedule()
    row.override(tomorrow(days=1), "MOVE", move_to=tomorrow(hours=-2), reason="early close")
    row.refresh_from_db()
    assert row.next_run_at == tomorrow(hours=-2)
    assert fire(tomorrow(hours=-2)) == 1
    assert fire_times(row) == [tomorrow(days=1)]
    assert [fire(tomorrow()), fire(tomorrow(days=1))] == [1, 0]


def test_an_added_fire_runs_in_addition_to_the_others() -> None:
    row = a_daily_schedule()
    row.override(tomorrow(hours=3), "ADD")
    assert [fire(tomorrow()), fire(tomorrow(hours=3))] == [1, 1]
    assert ledger_of(row)[-1] == ("DISPATCHED", tomorrow(hours=3), None, 1, "added by hand")


def test_a_second_override_replaces_the_first_and_each_increments_the_revision() -> None:
    row = a_daily_schedule()
    row.override(tomorrow(), "SKIP")
    row.override(tomorrow(), "MOVE", move_to=tomorrow(hours=1))
    assert [one.action for one in overrides_of(row)] == ["MOVE"]
    assert RecurringTask.objects.get().revision == row.revision == 3
    assert row.next_run_at == tomorrow(hours=1)


def test_a_restored_fire_follows_the_schedule_again() -> None:
    row = a_daily_schedule()
    row.override(tomorrow(), "SKIP")
    assert row.withdraw(tomorrow()) is True
    assert row.withdraw(tomorrow()) is False
    assert row.next_run_at == tomorrow()
    assert RecurringTask.objects.get().overrides == []


def test_a_paused_schedule_accepts_overrides_and_stays_paused() -> None:
    row = a_daily_schedule()
    row.pause("deploy")
    row.override(tomorrow(), "SKIP")
    row.refresh_from_db()
    assert (row.status, row.next_run_at) == ("PAUSED", None)
    row.resume()
    assert row.next_run_at == tomorrow(days=1)


def test_skipping_the_last_fire_ends_the_schedule_at_the_next_tick() -> None:
    row = a_daily_schedule(end_time=tomorrow(hours=1))
    row.override(tomorrow(), "SKIP")
    fire(database_now())
    row.refresh_from_db()
    assert (row.status, row.status_reason) == ("CANCELLED", "ENDED")


def test_past_instants_are_refused_with_their_field() -> None:
    row = a_daily_schedule()
    with pytest.raises(TransitionRefused, match=r"fire_time=.* is past: .* use backfill\(\)"):
        row.override(START, "SKIP")
    with pytest.raises(TransitionRefused, match=r"move_to=.* is past"):
        row.override(tomorrow(), "MOVE", move_to=START)
    override_directly(row, Override(START, "SKIP"))
    with pytest.raises(TransitionRefused, match="is past"):
        row.withdraw(START)
    assert len(RecurringTask.objects.get().overrides) == 1


def test_a_fire_that_was_moved_forward_and_has_run_is_decided() -> None:
    row = a_daily_schedule()
    row.override(tomorrow(days=1), "MOVE", move_to=tomorrow(hours=-2))
    fire(tomorrow(hours=-2))
    for change in (
        lambda: row.override(tomorrow(days=1), "SKIP"),
        lambda: row.withdraw(tomorrow(days=1)),
    ):
        with pytest.raises(TransitionRefused, match="is already in the ledger: DISPATCHED"):
            change()
    assert [one.action for one in overrides_of(row)] == ["MOVE"]


def test_an_instant_that_is_not_a_fire_time_is_refused_with_its_neighbours() -> None:
    row = a_daily_schedule()
    noon, around = (
        tomorrow(hours=3),
        f"before it comes {tomorrow().isoformat()[:16]}.* and after it comes",
    )
    for action, more in (("SKIP", {}), ("MOVE", {"move_to": tomorrow(hours=4)})):
        with pytest.raises(InvalidSchedule, match=around):
            row.override(noon, action, **more)
    with pytest.raises(InvalidSchedule, match="is a fire time of 'nightly' already"):
        row.override(tomorrow(), "ADD")
    assert RecurringTask.objects.get().overrides == []


def test_contradicting_arguments_are_refused() -> None:
    row = a_daily_schedule()
    for action, more in (("DROP", {}), ("MOVE", {}), ("SKIP", {"move_to": tomorrow(hours=4)})):
        with pytest.raises(InvalidSchedule):
            row.override(tomorrow(), action, **more)
    with pytest.raises(InvalidOption, match=r"fire_time=.* is naive"):
        row.override(tomorrow().replace(tzinfo=None), "SKIP")
    row.cancel()
    with pytest.raises(TransitionRefused, match="cannot be overridden"):
        row.override(tomorrow(), "SKIP")


def test_a_second_identifies_the_fire_within_it() -> None:
    row = a_schedule(interval=86_400, start_time=at(seconds=0.808))
    fire_time = row.next_fire_times(1)[0].nominal
    second = fire_time.replace(microsecond=0)
    assert row.override(second, "SKIP").fire_time == fire_time
    assert row.withdraw(second)
    assert row.override(second, "ADD").fire_time == second


def test_before_its_start_a_schedule_names_its_start() -> None:
    row = RecurringTask.objects.upsert(
        name="later", task="tests.project.tasks.noop", cron=DAILY, start_time=tomorrow(days=5)
    )
    with pytest.raises(InvalidSchedule, match="is before the start of later"):
        row.override(tomorrow(days=1), "SKIP")
