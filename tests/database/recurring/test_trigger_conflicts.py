"""Corrupted rows, conflicting keys and moving clocks: each fire is recorded once, and no row blocks
the others.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import ProgrammingError, connection

from django_durable_tasks.choices import Status
from django_durable_tasks.limits import overlap
from django_durable_tasks.models import OccurrenceRecord, RecurringTask, Task
from django_durable_tasks.schedules import ledger, trigger, writes
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.tasks import claim
from tests.database.recurring.schedules import START, a_schedule, at, fire, fire_times, ledger_of
from tests.database.transitions.transition_calls import PLACE
from tests.factories import QUEUE, a_task
from tests.messages import claim_due
from tests.project import tasks

pytestmark = pytest.mark.django_db
UNIQUE = "tests.project.tasks.unique:a"


def _by_hand(row: RecurringTask, **values: Any) -> None:
    """Write columns directly, without the operations of the package."""
    RecurringTask.objects.unguarded().filter(pk=row.pk).update(
        **{"revision": row.revision + 1, **values}
    )


def _states(*rows: RecurringTask) -> list[tuple[str, str]]:
    for row in rows:
        row.refresh_from_db()
    return [(row.status, row.status_reason) for row in rows]


# Corrupted rows -----------------------------------------------------------------------------------

BY_HAND: dict[str, dict[str, Any]] = {
    "a word for an interval": {"timetable": [{"interval": "x"}]},
    "an interval of zero": {"timetable": [{"interval": 0}]},
    "a negative interval": {"timetable": [{"interval": -5}]},
    "an interval beyond time": {"timetable": [{"interval": 1e300}]},
    "an impossible date": {"timetable": [{"cron": "0 0 31 2 *"}]},
    "a cron of nonsense": {"timetable": [{"cron": "99 99 * *"}]},
    "a part of no kind": {"timetable": [{"moon": "full"}]},
    "no parts": {"timetable": []},
    "no list": {"timetable": 5},
    "an unknown zone": {"time_zone": "Mars/Olympus"},
    "localtime": {"time_zone": "localtime"},
    "right/UTC": {"time_zone": "right/UTC"},
    "an end before the start": {"end_time": at(-60)},
    "an unknown policy of misfires": {"catch_up_mode": "MAYBE"},
    "an unknown overlap": {"overlap": "MAYBE"},
    "an unknown roll": {"roll": "SIDEWAYS"},
    "a jitter beyond time": {"jitter": 1e300},
    "an expiry beyond time": {"expires_in": 1e300},
    "a window beyond time": {
        "catchup_window": 1e300,
        "catch_up_mode": "RUN_ALL_MISSED",
        "misfire_grace": 0.0,
    },
    "a grace beyond time": {"misfire_grace": 1e300},
    "calendars that are no list": {"calendars": 7},
    "a calendar that is not there": {"calendars": ["nowhere"]},
    "arguments that do not fit": {"args": [1, 2, 3]},
    "arguments that are no list": {"args": 5},
    "options that are unknown": {"options": {"colour": "red"}},
    "a priority beyond all": {"priority": 9_999},
}


@pytest.mark.parametrize("values", BY_HAND.values(), ids=BY_HAND.keys())
def test_a_corrupted_row_is_quarantined_with_its_error_and_the_others_fire(
    values: dict[str, Any],
) -> None:
    bad, good = a_schedule("bad"), a_schedule("good")
    _by_hand(bad, **values)
    assert fire(at(1)) == 1
    assert _states(bad, good) == [("PAUSED", "QUARANTINED"), ("ACTIVE", "")]
    assert bad.error
    assert bad.next_run_at is None
    assert (fire_times(bad), ledger_of(bad)) == ([], [])
    assert fire_times(good) == [START]
    assert fire(at(1)) == 0


@pytest.mark.sqlite
def test_a_column_with_invalid_json_is_quarantined_too() -> None:
    bad, good = a_schedule("bad"), a_schedule("good")
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA ignore_check_constraints = ON")
        cursor.execute(
            "UPDATE durable_tasks_recurring_task SET timetable = '[{' WHERE id = %s", [bad.pk.hex]
        )
        cursor.execute("PRAGMA ignore_check_constraints = OFF")
    assert fire(at(1)) == 1
    state = RecurringTask.objects.filter(pk=bad.pk).values_list(
        "status", "status_reason", "next_run_at"
    )
    assert list(state) == [("PAUSED", "QUARANTINED", None)]
    assert fire_times(good) == [START]


def _let_the_database_refuse(row: RecurringTask) -> None:
    """Corrupt a row so that only the database notices: a counter at its maximum, on SQLite a
    trigger.
    """
    _by_hand(row, runs_count=2**63 - 1)
    if connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            cursor.execute(
                "CREATE TEMP TRIGGER refuse BEFORE INSERT ON durable_tasks_occurrence WHEN"
                f" NEW.recurring_task_id = '{row.pk.hex}' BEGIN SELECT RAISE(ABORT, 'refused'); END"
            )


def test_a_row_that_the_database_refuses_is_quarantined_and_the_others_fire() -> None:
    bad, good, other = a_schedule("bad"), a_schedule("good"), a_schedule("other")
    _let_the_database_refuse(bad)
    assert fire(at(1)) == 2
    assert _states(bad, good, other) == [("PAUSED", "QUARANTINED"), ("ACTIVE", ""), ("ACTIVE", "")]
    assert bad.error
    assert (ledger_of(bad), fire_times(bad)) == ([], [])
    assert (fire_times(good), fire_times(other)) == ([START], [START])


@pytest.mark.sqlite
def test_a_ledger_entry_that_the_database_silently_omits_loses_no_fire() -> None:
    bad, good = a_schedule("bad"), a_schedule("good")
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE TEMP TRIGGER leave_out BEFORE INSERT ON durable_tasks_occurrence WHEN"
            f" NEW.recurring_task_id = '{bad.pk.hex}' BEGIN SELECT RAISE(IGNORE); END"
        )
    assert fire(START) == 1
    assert _states(bad) == [("PAUSED", "QUARANTINED")]
    assert "skipped a ledger insert" in bad.error
    assert bad.watermark_at < START
    assert fire_times(good) == [START]


def test_a_row_refused_at_the_end_of_its_pause_is_quarantined_and_not_retried_indefinitely() -> (
    None
):
    bad, worse, good = a_schedule("bad"), a_schedule("worse"), a_schedule("good")
    for row in (bad, worse):
        row.pause("deploy")
        _by_hand(row, paused_until=at(5), next_run_at=at(5))
    bad.refresh_from_db()
    _let_the_database_refuse(bad)
    _by_hand(worse, timetable=[])
    assert fire(at(65)) == 1
    assert _states(bad, worse) == [("PAUSED", "QUARANTINED")] * 2
    assert (bad.next_run_at, bad.paused_until) == (None, None)
    assert fire_times(good) == [at(60)]
    assert not RecurringTask.objects.due(at(65)).exists()


def test_an_outage_or_a_missing_column_quarantines_no_row() -> None:
    row = a_schedule()

    def broken(execute: Any, sql: str, *rest: Any) -> Any:
        if "durable_tasks_occurrence" in sql:
            raise ProgrammingError('relation "durable_tasks_occurrence" does not exist')
        return execute(sql, *rest)

    with connection.execute_wrapper(broken), pytest.raises(ProgrammingError):
        fire(at(1))
    assert _states(row) == [("ACTIVE", "")]
    assert fire(at(1)) == 1


def test_a_row_that_was_repaired_meanwhile_is_tried_again() -> None:
    row = a_schedule()
    writes.quarantine(row.pk, row.revision - 1, ValueError("of an older revision"))
    assert _states(row) == [("ACTIVE", "")]
    assert fire(START) == 1


def test_an_error_text_that_no_database_could_store_is_shortened() -> None:
    row = a_schedule()
    writes.quarantine(row.pk, row.revision, ValueError("\x00 and \ud800"))
    row.refresh_from_db()
    assert row.error == "ValueError: \\x00 and \\ud800"


# Direct writes ------------------------------------------------------------------------------------


def test_a_status_written_by_hand_is_not_undone_by_the_trigger() -> None:
    paused, ended, snoozed = a_schedule("paused"), a_schedule("ended"), a_schedule("snoozed")
    _by_hand(paused, status="PAUSED")
    _by_hand(ended, status="CANCELLED")
    _by_hand(snoozed, status="PAUSED", paused_until=at(600))
    assert fire(at(1)) == 0
    assert [state for state, _ in _states(paused, ended, snoozed)] == [
        "PAUSED",
        "CANCELLED",
        "PAUSED",
    ]
    assert [row.next_run_at for row in (paused, ended, snoozed)] == [None, None, at(600)]
    assert not Task.objects.exists()


def test_a_clock_that_goes_back_neither_moves_the_watermark_back_nor_fires_twice() -> None:
    row = a_schedule(overlap="ALLOW")
    fire(at(600))
    RecurringTask.objects.unguarded().update(next_run_at=START)
    assert fire(at(60)) == 0
    row.refresh_from_db()
    assert (row.watermark_at, row.next_run_at) == (at(600), at(660))


# Recorded fires -----------------------------------------------------------------------------------


def _set_back(row: RecurringTask) -> None:
    RecurringTask.objects.unguarded().filter(pk=row.pk).update(
        watermark_at=START - timedelta(seconds=1), next_run_at=START
    )


def test_max_runs_counts_recorded_runs_after_the_watermark_was_set_back() -> None:
    row = a_schedule(overlap="ALLOW", max_runs=3)
    assert [fire(START), fire(at(60))] == [1, 1]
    _set_back(row)
    assert fire(at(61)) == 0
    row.refresh_from_db()
    assert (row.status, row.runs_count, row.next_run_at) == ("ACTIVE", 2, at(120))
    assert fire(at(120)) == 1
    assert fire_times(row) == [START, at(60), at(120)]
    assert _states(row) == [("CANCELLED", "MAX_RUNS")]


def test_a_recorded_fire_does_not_replace_its_own_run() -> None:
    row = a_schedule(overlap="CANCEL_RUNNING")
    fire(START)
    _set_back(row)
    assert fire(at(1)) == 0
    assert [task.status for task in Task.objects.all()] == [Status.PENDING]


def test_recorded_fires_are_not_created_again_although_their_tasks_were_pruned() -> None:
    row = a_schedule(overlap="ALLOW")
    assert fire(at(60)) == 2
    OccurrenceRecord.objects.unguarded().update(created_at=at(-86_400 * 5_000))
    assert ledger.prune_ledger(database_now(), 100) == 2
    Task.objects.unguarded().all().delete()
    _set_back(row)
    assert fire(at(121)) == 1
    assert fire_times(row) == [at(120)]


def test_pruning_keeps_entries_that_are_still_needed() -> None:
    slow, fast = a_schedule("slow", overlap="ALLOW"), a_schedule("fast", overlap="ALLOW")
    fire(START)
    RecurringTask.objects.unguarded().filter(pk=slow.pk).update(next_run_at=at(90))
    fire(at(60))
    OccurrenceRecord.objects.unguarded().update(created_at=at(-86_400 * 5_000))
    assert ledger.prune_ledger(database_now(), 100) == 3
    fire(at(91))
    assert fire_times(slow) == fire_times(fast) == [START, at(60)]


# Keys of other tasks ------------------------------------------------------------------------------


def test_a_fire_whose_unique_key_is_taken_is_skipped_and_names_the_owner() -> None:
    holder = tasks.unique.using(queue="test").schedule("a")
    row, good = a_schedule(task=tasks.unique, args=["a"]), a_schedule("good")
    assert fire(START) == 1
    line = OccurrenceRecord.objects.get(recurring_task=row)
    assert (line.outcome, line.blocked_by, line.task_id) == ("SKIPPED_OVERLAP", holder.pk, None)
    row.refresh_from_db()
    assert (row.status, row.runs_count, row.next_run_at) == ("ACTIVE", 0, at(60))
    assert fire_times(good) == [START]
    Task.objects.unguarded().filter(pk=holder.pk).delete()
    assert fire(at(60)) >= 1
    assert fire_times(row) == [at(60)]


def test_two_schedules_with_one_unique_key_in_one_tick_create_one_task() -> None:
    rows = [
        a_schedule(f"row {n}", task=tasks.unique, args=["a"], overlap="ALLOW") for n in range(3)
    ]
    assert fire(START) == 1
    outcomes = sorted(line[0] for row in rows for line in ledger_of(row))
    assert outcomes == ["DISPATCHED", "SKIPPED_OVERLAP", "SKIPPED_OVERLAP"]


@pytest.mark.parametrize(
    "overlap", ["ALLOW", "SKIP", "QUEUE_ONE", "QUEUE_ALL", "CANCEL_RUNNING", "REPLACE_PENDING"]
)
def test_a_unique_task_never_has_two_open_runs_under_any_policy(overlap: str) -> None:
    row = a_schedule(task=tasks.unique, args=["a"], overlap=overlap, interval=10)
    for seconds in (0, 10, 45, 50):
        fire(at(seconds))
        assert Task.objects.open().count() == 1
    assert len(ledger_of(row)) == 6
    assert _states(row) == [("ACTIVE", "")]


@pytest.mark.parametrize("how", ["unique", "idempotency"])
def test_a_key_taken_at_the_last_moment_is_recorded_as_failed_and_the_row_continues(
    how: str,
) -> None:
    """The owner is not visible before the insert: its row has another key than its marker."""
    row, good = a_schedule(task=tasks.unique, args=["a"]), a_schedule("good")
    given: dict[str, Any] = (
        {"idempotency_key": trigger.idempotency_key(row.pk, START)} if how == "idempotency" else {}
    )
    holder = a_task(Status.PENDING, **given)
    if how == "unique":
        tasks_of = trigger._key_owners
        Task.objects.unguarded().filter(pk=holder.pk).update(open_unique_key=UNIQUE)
        trigger._key_owners = lambda plans: {}
    try:
        assert fire(START) == 1
    finally:
        if how == "unique":
            trigger._key_owners = tasks_of
    line = OccurrenceRecord.objects.get(recurring_task=row)
    assert (line.outcome, line.task_id, line.unique_fire_time) == ("FAILED_TO_CREATE", None, START)
    assert line.reason
    row.refresh_from_db()
    assert (row.status, row.runs_count, row.last_run_at, row.next_run_at) == (
        "ACTIVE",
        0,
        None,
        at(60),
    )
    assert fire_times(good) == [START]


# Several fires in one tick ------------------------------------------------------------------------


@pytest.mark.parametrize("overlap", ["CANCEL_RUNNING", "REPLACE_PENDING"])
def test_of_fires_in_one_tick_the_last_one_replaces_the_others(overlap: str) -> None:
    row = a_schedule(interval=10, overlap=overlap)
    assert fire(at(25)) == 3
    states = Task.objects.order_by("fire_time").values_list("status", "reason")
    assert list(states) == [("CANCELLED", "REPLACED"), ("CANCELLED", "REPLACED"), ("PENDING", "")]
    assert [line[0] for line in ledger_of(row)] == ["DISPATCHED"] * 3


def test_a_thousand_fires_are_decided_per_tick() -> None:
    row = a_schedule(interval=0.01, overlap="ALLOW", misfire_grace=1_000)
    assert [fire(at(25)) for _ in range(4)] == [1_000, 1_000, 501, 0]
    assert len(fire_times(row)) == len(set(fire_times(row))) == 2_501
    row.refresh_from_db()
    assert (row.watermark_at, row.next_run_at) == (at(25), at(25.01))


# Overlap ------------------------------------------------------------------------------------------


def test_a_released_run_still_waits_for_its_pace() -> None:
    a_schedule(catch_up_mode="RUN_ALL_MISSED", misfire_grace=5, catchup_pace=86_400 * 36_500)
    assert fire(at(120 + 30)) == 3
    first, second, _ = Task.objects.order_by("fire_time")
    Task.objects.unguarded().filter(pk=first.pk).delete()
    assert overlap.release(10) == 1
    second.refresh_from_db()
    assert second.due_at == second.run_at


def test_a_claim_whose_process_died_before_the_overlap_check_publishes_no_second_run() -> None:
    a_schedule(overlap="QUEUE_ALL")
    fire(START)
    running = Task.objects.get()
    assert len(claim_due(QUEUE, at(1), 10, PLACE.node)) == 1
    fire(at(60))
    queued = Task.objects.waiting_for_overlap().get()
    # The state after a claim without the overlap check: QUEUED, due for republishing.
    Task.objects.unguarded().filter(pk=queued.pk).update(
        status=Status.QUEUED, epoch=1, due_at=START, publish_count=1
    )
    assert [
        message.task_id
        for message in claim.republish(Task.objects.filter(pk=queued.pk), at(100), 10)
    ] == []
    assert Task.objects.waiting_for_overlap().get().pk == queued.pk
    assert Task.objects.queued().get().pk == running.pk
