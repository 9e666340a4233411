"""Ended tasks are pruned in batches after their retention. Tasks that are still needed stay."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from django_durable_tasks.choices import OPEN, Status
from django_durable_tasks.models import DeadLetter, Node, Task, TaskExecutionLog
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.task_values import uuid7
from django_durable_tasks.tasks import retention
from tests.factories import a_dead_letter, a_log_row, a_node, a_task

pytestmark = pytest.mark.django_db
HOUR, DAY, WEEK = 3600.0, 86_400.0, 604_800.0


def _ended(status: Status = Status.SUCCESS, *, ago: float, **fields: Any) -> Task:
    """Create a task that was created a minute before it ended."""
    ended = database_now() - timedelta(seconds=ago)
    created_ms = int((ended.timestamp() - 60) * 1000)
    return a_task(
        status, id=uuid7(created_ms, uuid.uuid4().bytes[:10]), completed_at=ended, **fields
    )


def _prune(limit: int = 100) -> int:
    return retention.prune(database_now(), limit)


def _stays(row: Task) -> bool:
    return bool(Task.objects.filter(pk=row.pk).exists())


@pytest.mark.parametrize(
    ("status", "kept"),
    [
        (Status.SUCCESS, WEEK),
        (Status.CANCELLED, WEEK),
        (Status.SKIPPED, WEEK),
        (Status.EXPIRED, WEEK),
        (Status.FAILED, 30 * DAY),
    ],
)
def test_an_ended_task_stays_for_its_retention(status: Status, kept: float) -> None:
    over, fresh = _ended(status, ago=kept + HOUR), _ended(status, ago=kept - HOUR)
    DeadLetter.objects.unguarded().update(open_task=None, resolved_at=database_now())
    assert _prune() == 1
    assert (_stays(over), _stays(fresh)) == (False, True)


def test_a_pruned_task_is_deleted_with_its_log_and_closed_dead_letters() -> None:
    row, other = _ended(ago=8 * DAY), _ended(ago=DAY)
    for kept in (row, other):
        a_log_row(kept)
        a_dead_letter(kept, open=False)
    _prune()
    assert set(TaskExecutionLog.objects.values_list("task_id", flat=True)) == {other.pk}
    assert set(DeadLetter.objects.values_list("task_id", flat=True)) == {other.pk}


def test_a_failed_task_with_an_open_dead_letter_stays_indefinitely() -> None:
    row = _ended(Status.FAILED, ago=400 * DAY)
    assert _prune() == 0
    DeadLetter.objects.unguarded().update(open_task=None, resolved_at=database_now())
    assert _prune() == 1
    assert not _stays(row)


@pytest.mark.parametrize("status", sorted(OPEN))
def test_an_open_task_stays_whatever_its_age(status: Status) -> None:
    row = a_task(status, id=uuid7(1_000_000_000_000, bytes(10)))
    assert _prune() == 0
    assert _stays(row)


def test_an_idempotency_key_stays_at_least_a_day_after_the_end() -> None:
    with override_settings(DURABLE_TASKS={"RETENTION": {"SUCCESS": 60}}):
        keyed, plain = _ended(ago=23 * HOUR, idempotency_key="i"), _ended(ago=23 * HOUR)
        late = _ended(ago=25 * HOUR, idempotency_key="j")
        assert _prune() == 2
    assert [_stays(row) for row in (keyed, plain, late)] == [True, False, False]


def test_a_status_with_retention_none_is_kept_indefinitely() -> None:
    with override_settings(DURABLE_TASKS={"RETENTION": {"SUCCESS": None}}):
        _ended(ago=1_000 * DAY)
        assert _prune() == 0


def test_tasks_are_deleted_in_batches_until_none_is_left() -> None:
    for number in range(7):
        _ended((Status.SUCCESS, Status.CANCELLED)[number % 2], ago=8 * DAY)
    assert sum(retention.prunable(database_now()).values()) == 7
    assert [_prune(3) for _ in range(4)] == [3, 3, 1, 0]


def test_after_the_deadline_prune_reads_one_page_per_call_and_reaches_the_end(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_PASSED_OVER", 0.0)
    settings.DURABLE_TASKS = {"RETENTION": {"SUCCESS": 60}}
    for number in range(30):
        _ended(ago=23 * HOUR - number, idempotency_key=f"key {number}")
    row, now = _ended(ago=HOUR), database_now()
    positions = retention.PruningPositions()
    for _ in range(6):
        with CaptureQueriesContext(connection) as captured:
            assert retention.prune(now, 5, positions, deadline=0.0) == 0
        pages = [
            one for one in captured if "completed_at" in one["sql"] and "'SUCCESS'" in one["sql"]
        ]
        assert sum("LIMIT 5" in one["sql"] for one in pages) <= 1
        assert positions.more()
        assert _stays(row)
    assert retention.prune(now, 5, positions, deadline=0.0) == 1
    assert not positions.more()
    assert not _stays(row)


def test_a_task_with_an_id_of_the_caller_is_pruned() -> None:
    chosen = uuid.UUID("ffffffff-ffff-4fff-bfff-ffffffffffff")
    row = a_task(Status.SUCCESS, id=chosen, completed_at=database_now() - timedelta(days=8))
    _prune()
    assert not _stays(row)


def test_departed_nodes_are_deleted_after_a_week() -> None:
    old, fresh, alive = a_node(stopped=8 * DAY), a_node(stopped=6 * DAY), a_node(seen=30 * DAY)
    _prune()
    assert set(Node.objects.values_list("pk", flat=True)) == {fresh.pk, alive.pk}
    assert not Node.objects.filter(pk=old.pk).exists()
