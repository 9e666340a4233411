"""Rows that a transaction of the project has locked do not hide the rows behind them from
maintenance and claims.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from django_durable_tasks.choices import FireOutcome, Status
from django_durable_tasks.cluster.nodes import HeartbeatMonitor
from django_durable_tasks.contrib.api import access
from django_durable_tasks.contrib.api.models import ApiKey
from django_durable_tasks.limits import overlap, release
from django_durable_tasks.models import OccurrenceRecord, RecurringTask, Task, Tenant
from django_durable_tasks.models.tasks import NEVER
from django_durable_tasks.scheduler.jobs import RecomputeFireTimes
from django_durable_tasks.schedules import ledger, trigger
from django_durable_tasks.schedules import writes as tzdata
from django_durable_tasks.states import endings
from django_durable_tasks.store import tables
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.store.connections import TimeLimits, dedicated_connection
from django_durable_tasks.tasks import attempts, claim
from tests.concurrency.racing import locked_rows, on_another_connection
from tests.database.recurring.schedules import START, a_schedule
from tests.database.transitions.transition_calls import CRASH, PLACE
from tests.factories import QUEUE, a_task, take_batch
from tests.messages import claim_due

LIMIT, LOCKED, FREE = 3, 7, 2


def _overdue(past: float) -> Task:
    return a_task(Status.QUEUED, due=-past)


def _due(past: float) -> Task:
    return a_task(due=-past)


SWEEPS: dict[str, tuple[Callable[[float], Task], Callable[[], Any]]] = {
    "republish": (
        _overdue,
        lambda: claim.republish(
            tables.tasks().republish_due(database_now()), database_now(), LIMIT
        ),
    ),
    "lose": (
        lambda past: a_task(Status.RUNNING, due=-past),
        lambda: attempts.end_runs(tables.tasks().running(), lambda _: CRASH, limit=LIMIT),
    ),
    "expire": (_due, lambda: endings.expire(tables.tasks().due(database_now()), LIMIT)),
    "age": (_due, lambda: release.age(database_now(), 0.0, LIMIT)),
    "claim": (_due, lambda: claim_due(QUEUE, database_now(), LIMIT, PLACE.node)),
    "take": (lambda past: a_task(due=-past, in_batch=True), lambda: take_batch(LIMIT, PLACE)),
}


def _states() -> dict[Any, tuple[Any, ...]]:
    return {
        row[0]: row
        for row in Task.objects.values_list("pk", "status", "priority", "epoch", "publish_count")
    }


@pytest.mark.skipif(
    connection.vendor == "sqlite", reason="SQLite has one writer and no locks of rows"
)
@pytest.mark.parametrize("name", sorted(SWEEPS))
def test_a_maintenance_job_skips_locked_rows(name: str) -> None:
    make, sweep = SWEEPS[name]
    taken = [make(100.0 - number) for number in range(LOCKED)]
    free = [make(10.0 - number) for number in range(FREE)]
    before = _states()
    with locked_rows(Task, [row.pk for row in taken]):
        sweep()
    moved = {key for key, state in _states().items() if state != before[key]}
    assert moved == {row.pk for row in free}


@pytest.mark.postgresql
def test_recurring_tasks_behind_locked_ones_are_triggered() -> None:
    now = database_now()
    rows = [
        a_schedule(
            f"nightly-{number}", start_time=now - timedelta(seconds=50 - number), interval=3600
        )
        for number in range(LOCKED + FREE)
    ]
    with locked_rows(RecurringTask, [row.pk for row in rows[:LOCKED]]):
        trigger.fire_due(now, LIMIT)
    fired = {
        row.pk
        for row in RecurringTask.objects.all()
        if row.next_run_at is None or row.next_run_at > now
    }
    assert fired == {row.pk for row in rows[LOCKED:]}


@pytest.mark.postgresql
def test_a_locked_task_that_waits_for_overlap_does_not_block_those_of_other_keys() -> None:
    waiting = [a_task(overlap_key=f"slot-{number}", due_at=NEVER) for number in range(LOCKED + 1)]
    with (
        locked_rows(Task, [row.pk for row in waiting[:LOCKED]]),
        dedicated_connection(TimeLimits(lock=0.2)),
    ):
        assert overlap.release(LOCKED + 1) == 1
    due_at = Task.objects.get(pk=waiting[LOCKED].pk).due_at
    assert due_at is not None
    assert due_at < NEVER


@pytest.mark.skipif(
    connection.vendor == "sqlite", reason="SQLite has one writer and no locks of rows"
)
def test_ledger_entries_behind_those_of_locked_recurring_tasks_are_deleted() -> None:
    rows = [a_schedule(f"nightly-{number}") for number in range(LOCKED + FREE)]
    for row in rows:
        OccurrenceRecord.objects.unguarded().create(
            recurring_task=row, fire_time=START, outcome=FireOutcome.MISSED, created_at=START
        )
    after_retention = START + timedelta(days=5_000)
    with (
        locked_rows(RecurringTask, [row.pk for row in rows[:LOCKED]]),
        dedicated_connection(TimeLimits(lock=0.2)),
    ):
        assert ledger.prune_ledger(after_retention, LIMIT) == FREE
        assert ledger.prune_ledger(after_retention, LIMIT) == 0
    assert {row.pk for row in RecurringTask.objects.all() if row.ledger_from} == {
        row.pk for row in rows[LOCKED:]
    }
    assert sum(ledger.prune_ledger(after_retention, LIMIT) for _ in range(LOCKED)) == LOCKED


@pytest.mark.skipif(
    connection.vendor == "sqlite", reason="SQLite has one writer and no locks of rows"
)
def test_a_locked_recurring_task_is_recomputed_with_new_zone_tables_later() -> None:
    rows = [a_schedule(f"nightly-{number}") for number in range(LOCKED)]
    RecurringTask.objects.unguarded().update(tzdata_version="2020a")
    recompute, monitor = RecomputeFireTimes(), HeartbeatMonitor()
    with locked_rows(RecurringTask, [row.pk for row in rows]):
        assert recompute(START, monitor) == 0
    recompute._again_at = 0.0
    assert recompute(START, monitor) == LOCKED
    assert not tzdata.computed_elsewhere().exists()


@pytest.mark.postgresql
@pytest.mark.mariadb
def test_a_locked_api_key_does_not_delay_the_requests_of_its_program() -> None:
    now = database_now()
    key = access.create_key(Tenant.objects.get(pk=1), "billing", ["read"], now=now).row
    later = now + timedelta(hours=1)
    with locked_rows(ApiKey, [key.pk]):
        on_another_connection(lambda: access.record_key_use(key, later))
    assert ApiKey.objects.get().last_used_at is None
    access.record_key_use(key, later)
    assert ApiKey.objects.get().last_used_at == later
