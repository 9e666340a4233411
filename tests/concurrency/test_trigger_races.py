"""Leaders, operators and workers on the same recurring tasks at once: each fire once, and no
operation is undone.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection

from django_durable_tasks.choices import Status
from django_durable_tasks.exceptions import TransitionRefused
from django_durable_tasks.limits import overlap
from django_durable_tasks.models import OccurrenceRecord, RecurringTask, Task
from django_durable_tasks.schedules import ledger
from django_durable_tasks.store.clock import database_now
from tests.concurrency.racing import ROUNDS, no_errors, race
from tests.database.recurring.schedules import (
    START,
    a_schedule,
    at,
    begin,
    fire,
    fire_times,
    ledger_of,
)
from tests.database.transitions.transition_calls import PLACE, start, succeed
from tests.factories import QUEUE
from tests.messages import claim_due
from tests.project import tasks
from tests.waiting import until

ALL: dict[str, Any] = {"catch_up_mode": "RUN_ALL_MISSED", "overlap": "ALLOW", "misfire_grace": 1}
LEADERS = 3


def _fire_until_nothing_is_due(now: datetime, limit: int) -> int:
    """Act as leader until all schedules are past ``now``. Those that another leader has locked are
    left to it.
    """
    number = 0
    while RecurringTask.objects.due(now).exists():
        number += fire(now, limit)
    return number


def _ledger_is_consistent(row: RecurringTask) -> None:
    """Every task has its ledger entry and every entry its task, one per fire time; the counter
    equals the number of tasks.
    """
    row.refresh_from_db()
    lines = OccurrenceRecord.objects.filter(recurring_task=row, task__isnull=False)
    runs = Task.objects.filter(recurring_task=row)
    assert Counter(lines.values_list("task_id", flat=True)) == Counter(
        runs.values_list("pk", flat=True)
    )
    by_schedule = lines.filter(unique_fire_time__isnull=False)
    assert max(Counter(by_schedule.values_list("fire_time", flat=True)).values(), default=1) == 1


# Leaders only -------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 100])
def test_concurrent_leaders_create_each_fire_once(limit: int) -> None:
    for number in range(ROUNDS // 2):
        rows = [a_schedule(f"{number} {name}", **ALL) for name in range(5)]
        made = no_errors(race([partial(_fire_until_nothing_is_due, at(310), limit)] * LEADERS))
        assert sum(made) == 5 * 6
        for row in rows:
            assert fire_times(row) == [at(60 * minute) for minute in range(6)]
            _ledger_is_consistent(row)
            assert (row.runs_count, row.next_run_at) == (6, at(360))


def test_leaders_with_different_clocks_create_each_fire_once() -> None:
    for number in range(ROUNDS // 2):
        rows = [a_schedule(f"{number} {name}", **ALL) for name in range(4)]
        clocks = [at(310), at(10), at(610)]
        no_errors(race([partial(_fire_until_nothing_is_due, clock, 2) for clock in clocks]))
        for row in rows:
            assert fire_times(row) == [at(60 * minute) for minute in range(11)]
            _ledger_is_consistent(row)
            assert (row.runs_count, row.next_run_at) == (11, at(660))


def test_leaders_race_over_watermarks_that_were_set_back_and_a_ledger_that_is_pruned() -> None:
    rows = [a_schedule(str(name), **ALL) for name in range(3)]
    _fire_until_nothing_is_due(at(310), 10)
    OccurrenceRecord.objects.unguarded().update(created_at=at(-86_400 * 5_000))

    def set_back() -> None:
        back = RecurringTask.objects.unguarded().filter(pk__in=[row.pk for row in rows])
        back.update(watermark_at=START - timedelta(seconds=1), next_run_at=START)

    def prune() -> None:
        while ledger.prune_ledger(database_now(), 2):
            pass

    set_back()
    Task.objects.unguarded().all().delete()
    leaders = [partial(_fire_until_nothing_is_due, at(310), 2)] * LEADERS
    *_, made, more, yet_more = no_errors(race([prune, *leaders]))
    assert (made, more, yet_more) == (0, 0, 0)
    set_back()
    assert _fire_until_nothing_is_due(at(370), 2) == 3
    assert [fire_times(row) for row in rows] == [[at(360)]] * 3


def test_leaders_whose_watermarks_are_set_back_concurrently_duplicate_nothing() -> None:
    rows = [a_schedule(str(name), **ALL) for name in range(4)]
    these = RecurringTask.objects.unguarded().filter(pk__in=[row.pk for row in rows])

    def set_back() -> None:
        for _ in range(ROUNDS):
            these.update(watermark_at=START - timedelta(seconds=1), next_run_at=START)

    def lead() -> None:
        for _ in range(ROUNDS):
            _fire_until_nothing_is_due(at(310), 2)

    no_errors(race([set_back, lead, lead]))
    set_back()  # whatever came last in the race: every fire is decided once more
    _fire_until_nothing_is_due(at(310), 10)
    for row in rows:
        assert fire_times(row) == [at(60 * minute) for minute in range(6)]
        _ledger_is_consistent(row)
        assert row.runs_count == 6


# Leaders and operators ----------------------------------------------------------------------------


def _pause(row: RecurringTask, dice: random.Random) -> None:
    until = database_now() + timedelta(days=1) if dice.random() < 0.3 else None
    row.pause("deploy", by="anna", until=until)


OPERATIONS: dict[str, Callable[[RecurringTask, random.Random], Any]] = {
    "pause": _pause,
    "resume": lambda row, _: row.resume(by="anna"),
    "edit when": lambda row, dice: _upsert(row, interval=dice.choice([30, 90])),
    "edit what": lambda row, dice: _upsert(row, args=[dice.randint(1, 9), 1], task=tasks.add),
    "trigger": lambda row, _: row.trigger_now(by="anna"),
    "trigger once": lambda row, _: row.trigger_now(request_id="the same", by="anna"),
    "backfill": lambda row, _: row.backfill(START, at(300)),
}


def _upsert(row: RecurringTask, **given: Any) -> RecurringTask:
    found: RecurringTask = RecurringTask.objects.upsert(
        name=row.name, **{"task": row.task, **given}
    )
    return found


def _operate(name: str, row: RecurringTask, dice: random.Random) -> Any:
    try:
        return OPERATIONS[name](RecurringTask.objects.get(pk=row.pk), dice)
    except TransitionRefused:
        return None  # another operator was faster


MINUTES = [at(60 * minute) for minute in range(6)]


def _all_fired(row: RecurringTask, _: Any) -> None:
    assert fire_times(row) == MINUTES
    assert row.runs_count == len(MINUTES)


def _still_paused(row: RecurringTask, _: Any) -> None:
    assert (row.status, row.status_reason) == ("PAUSED", "deploy")
    assert row.next_run_at == row.paused_until


def _planned_again(row: RecurringTask, _: Any) -> None:
    """Check that fires are planned from the database's now on, long after the minutes of the race."""
    assert set(fire_times(row)) <= set(MINUTES)
    assert row.next_run_at is not None
    assert row.next_run_at > at(86_400)


def _changed(row: RecurringTask, answer: Any) -> None:
    _all_fired(row, None)
    assert (row.args, row.task) == (answer.args, answer.task)


def _run_once_more(row: RecurringTask, answer: Any) -> None:
    fired = Task.objects.filter(recurring_task=row).exclude(pk=answer.pk)
    assert list(fired.order_by("fire_time").values_list("fire_time", flat=True)) == MINUTES
    assert OccurrenceRecord.objects.get(recurring_task=row, outcome="MANUAL").task_id == answer.pk
    assert row.runs_count == len(MINUTES)


def _fired_or_backfilled(row: RecurringTask, answer: Any) -> None:
    assert fire_times(row) == MINUTES
    assert row.next_run_at == at(360)


def _active(row: RecurringTask, _: Any) -> None:
    """Check that the pause ended, automatically or manually, and that the fires during it are
    recorded once.
    """
    assert (row.status, row.status_reason) == ("ACTIVE", "")
    assert [line[1] for line in ledger_of(row) if line[0] == "PAUSED"] == [START]


AFTER: dict[str, Callable[[RecurringTask, Any], None]] = {
    "pause": _still_paused,
    "resume": _active,
    "edit when": _planned_again,
    "edit what": _changed,
    "trigger": _run_once_more,
    "trigger once": _run_once_more,
    "backfill": _fired_or_backfilled,
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_during_a_tick_duplicates_nothing_and_is_not_undone(operation: str) -> None:
    for number in range(ROUNDS // 2):
        row = a_schedule(f"{number}", task=tasks.add, args=[1, 1], **ALL)
        if operation == "resume":
            row.pause("deploy")
            RecurringTask.objects.unguarded().filter(pk=row.pk).update(
                paused_until=at(100), next_run_at=at(100)
            )
        leaders = [partial(_fire_until_nothing_is_due, at(310), 2)] * 2
        *_, answer = no_errors(
            race([*leaders, partial(_operate, operation, row, random.Random(number))])
        )
        _ledger_is_consistent(row)
        AFTER[operation](row, answer)


def _a_transaction_waits_for_a_lock() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND"
            " wait_event_type = 'Lock'"
        )
        return bool(cursor.fetchone()[0])


@pytest.mark.postgresql
def test_a_pause_during_a_tick_is_kept() -> None:
    """It occurs between reading and writing: it waits for the tick, or otherwise the tick must not
    overwrite it.
    """
    row = a_schedule(**ALL)
    operator = threading.Thread(target=partial(race, [lambda: row.pause("deploy", by="anna")]))

    def in_between(execute: Callable[..., Any], sql: str, *words: Any) -> Any:
        if "INSERT INTO durable_tasks_occurrence" in sql and not operator.ident:
            operator.start()
            until(lambda: not operator.is_alive() or _a_transaction_waits_for_a_lock(), within=20)
        return execute(sql, *words)

    with connection.execute_wrapper(in_between):
        assert fire(at(10)) == 1
    operator.join()
    row.refresh_from_db()
    assert (row.status, row.status_reason, row.status_by, row.next_run_at) == (
        "PAUSED",
        "deploy",
        "anna",
        None,
    )
    assert fire(at(600)) == 0
    assert fire_times(row) == [START]


def _lead(dice: random.Random) -> None:
    fire(database_now() + timedelta(minutes=dice.randint(0, 60)), dice.choice([1, 100]))


def _meddle(rows: list[RecurringTask], dice: random.Random) -> None:
    _operate(dice.choice(list(OPERATIONS)), dice.choice(rows), dice)


def _work(dice: random.Random) -> None:
    claim_due(QUEUE, database_now() + timedelta(hours=2), 3, PLACE.node)
    row = Task.objects.queued().order_by("pk").first()
    if row is not None and start(row) is not None:
        row.refresh_from_db()
        succeed(row)
    overlap.release(10)


@pytest.mark.parametrize("seed", range(2))
def test_all_at_once_neither_deadlock_nor_lose_or_duplicate_a_fire(seed: int) -> None:
    rows = [
        a_schedule(f"row {name}", task=tasks.add, args=[1, 1], **{**ALL, "overlap": overlap})
        for name, overlap in enumerate(["ALLOW", "SKIP", "QUEUE_ALL", "CANCEL_RUNNING"])
    ]
    now = database_now()
    for row in rows:
        begin(row, now - timedelta(hours=1))

    roles: list[Callable[[random.Random], Any]] = [
        _lead,
        _lead,
        partial(_meddle, rows),
        partial(_meddle, rows),
        _work,
    ]

    def play(number: int) -> None:
        dice = random.Random(f"{seed} {number}")
        for _ in range(25):
            roles[number](dice)

    no_errors(race([partial(play, number) for number in range(len(roles))]))
    for row in rows:
        _ledger_is_consistent(row)
        assert row.error == ""


# Overlap ------------------------------------------------------------------------------------------


def test_concurrent_claims_with_one_overlap_key_take_one_task_each_time() -> None:
    for number in range(ROUNDS):
        Task.objects.unguarded().all().delete()
        row = a_schedule(f"{number}", interval=1, overlap="QUEUE_ALL", misfire_grace=60)
        assert fire(at(3)) == 4
        # As after a replay or a repeated release: all are due.
        Task.objects.unguarded().filter(recurring_task=row).update(due_at=START)
        messages = no_errors(
            race([partial(claim_due, QUEUE, database_now(), 2, PLACE.node)] * LEADERS)
        )
        published = [message.task_id for batch in messages for message in batch]
        queued = list(Task.objects.queued().values_list("pk", flat=True))
        assert queued == published
        assert len(published) <= 1
        overlap.release(10)
        claim_due(QUEUE, database_now(), 2, PLACE.node)
        assert Task.objects.filter(status=Status.QUEUED).count() == 1
