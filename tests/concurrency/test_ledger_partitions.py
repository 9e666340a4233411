"""Partitions of the ledger are created and dropped beside transactions that use it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connection, connections, transaction

from django_durable_tasks.engine.cluster.nodes import HeartbeatMonitor
from django_durable_tasks.engine.recurring import ledger, ledger_partitions
from django_durable_tasks.models import RecurringTask
from django_durable_tasks.rules.recurring.partitions import PREFIX
from django_durable_tasks.scheduler.maintenance.partition_ledger import partition_ledger
from tests.concurrency.racing import WITHIN
from tests.database.recurring.ledger_tables import (
    DAY,
    KEPT,
    NOW,
    enable_partitions,
    new_plain_ledger,
    partition_names,
    write,
)
from tests.database.recurring.schedules import a_schedule

pytestmark = pytest.mark.postgresql
EXPIRED = NOW + DAY
"""A fire time of the partition whose retention is over at ``LATER``."""
LATER = datetime(2026, 3, 4, tzinfo=UTC) + KEPT


@pytest.fixture(autouse=True)
def partitions_of_a_day(clean_engine: None, settings: Any) -> Iterator[None]:
    """Partition the ledger as in a project that keeps it for 30 days; undo it at the end."""
    before = ledger_partitions.partitions()
    enable_partitions(settings)
    new_plain_ledger()
    ledger_partitions.convert(NOW)
    yield
    new_plain_ledger()
    if before:
        ledger_partitions.after_migrate(using="default")


@contextmanager
def _another_transaction(act: Callable[[], Any]) -> Iterator[None]:
    """Run the function in a transaction of another connection, which is open during the block."""
    done, over = threading.Event(), threading.Event()

    def run() -> None:
        try:
            with transaction.atomic():
                act()
                done.set()
                over.wait(WITHIN)
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    assert done.wait(WITHIN)
    try:
        yield
        assert thread.is_alive(), "the transaction ended before the block did"
    finally:
        over.set()
        thread.join(WITHIN)


def _expired_entry() -> RecurringTask:
    row = a_schedule()
    write(row, EXPIRED)
    ledger.ledger().update(created_at=EXPIRED)
    existing = ledger_partitions.partitions()
    ledger_partitions.create_missing(existing, LATER, 1)
    assert ledger_partitions.drop_expired(existing, LATER - DAY) == 1  # the first one
    return row


def _fire_times() -> list[datetime]:
    return list(ledger.ledger().order_by("fire_time").values_list("fire_time", flat=True))


def _lock_timeout() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SHOW lock_timeout")
        return str(cursor.fetchone()[0])


def _read_ledger(row: RecurringTask) -> None:
    assert ledger.ledger().filter(recurring_task=row.pk).exists()


def _change_entry(row: RecurringTask) -> None:
    assert ledger.ledger().filter(recurring_task=row.pk).update(reason="changed")


def _lock_schedule(row: RecurringTask) -> None:
    assert RecurringTask.objects.select_for_update().get(pk=row.pk)


@pytest.mark.parametrize("use", [_read_ledger, _change_entry])
def test_a_drop_gives_up_after_its_lock_timeout_and_changes_nothing(
    use: Callable[[RecurringTask], None], caplog: pytest.LogCaptureFixture
) -> None:
    row = _expired_entry()
    before, timeout = partition_names(), _lock_timeout()
    with _another_transaction(lambda: use(row)):
        assert ledger_partitions.maintain(LATER) == 0
        assert f"Partition {PREFIX}20260303 was not dropped" in caplog.text
        assert "lock timeout" in caplog.text
        assert partition_names() == before
        assert _lock_timeout() == timeout
        write(row, LATER)
        assert _fire_times() == [EXPIRED, LATER]
    assert partition_ledger(LATER, HeartbeatMonitor()) == 1
    assert partition_names() == [name for name in before if name != "20260303"]
    assert _fire_times() == [LATER]


def test_a_new_partition_gives_up_after_its_lock_timeout_and_changes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    row, early = a_schedule(), NOW + 8 * DAY
    write(row, early)  # into the default partition
    before, timeout = partition_names(), _lock_timeout()
    with _another_transaction(lambda: _read_ledger(row)):
        assert ledger_partitions.maintain(NOW + DAY) == 0
        assert f"Partition {PREFIX}20260310 was not created" in caplog.text
        assert "lock timeout" in caplog.text
        assert partition_names() == before
        assert _lock_timeout() == timeout
        write(row, early)
        write(row, early + DAY)
        assert _fire_times() == [early, early + DAY]
    assert partition_ledger(NOW + DAY, HeartbeatMonitor()) == 1
    assert "20260310" in partition_names()
    write(row, early)
    assert _fire_times() == [early, early + DAY]


def test_an_entry_that_is_not_covered_by_its_schedule_keeps_its_partition() -> None:
    row = _expired_entry()
    # As a tick does. ledger_from cannot be raised meanwhile, so its fire time could return.
    with _another_transaction(lambda: _lock_schedule(row)):
        assert ledger_partitions.maintain(LATER) == 0
        row.refresh_from_db()
        assert row.ledger_from is None
        assert _fire_times() == [EXPIRED]
    assert partition_ledger(LATER, HeartbeatMonitor()) == 1
    row.refresh_from_db()
    assert row.ledger_from == EXPIRED
    assert _fire_times() == []
