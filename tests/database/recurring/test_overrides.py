"""Overrides of single fire times: skip, move, add, restore."""

from __future__ import annotations

from typing import Any

import pytest

from django_durable_tasks.exceptions import InvalidOption, InvalidSchedule, TransitionRefused
from django_durable_tasks.models import OccurrenceOverride, RecurringTask
from django_durable_tasks.store.clock import database_now
from tests.database.recurring.schedules import (
    DAILY,
    START,
    a_schedule,
    at,
    fire,
    fire_times,
    ledger_of,
    tomorrow,
)

pytestmark = pytest.mark.django_db


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
    assert OccurrenceOverride.objects.get().by == "anna"


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
    assert OccurrenceOverride.objects.get().action == "MOVE"
    assert RecurringTask.objects.get().revision == row.revision == 3
    assert row.next_run_at == tomorrow(hours=1)


def test_a_restored_fire_follows_the_schedule_again() -> None:
    row = a_daily_schedule()
    row.override(tomorrow(), "SKIP")
    assert row.withdraw(tomorrow()) is True
    assert row.withdraw(tomorrow()) is False
    assert row.next_run_at == tomorrow()
    assert not OccurrenceOverride.objects.exists()


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
    OccurrenceOverride.objects.unguarded().create(
        recurring_task=row, fire_time=START, action="SKIP"
    )
    with pytest.raises(TransitionRefused, match="is past"):
        row.withdraw(START)
    assert OccurrenceOverride.objects.count() == 1


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
    assert OccurrenceOverride.objects.get().action == "MOVE"


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
    assert not OccurrenceOverride.objects.exists()


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
