"""The ledger in partitions: created ahead, dropped after the retention, with every guarantee of the
plain table. The conversion is rolled back with each test.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import IntegrityError, OperationalError, connection, transaction
from django.test.utils import CaptureQueriesContext

from django_durable_tasks.engine.cluster.gauges import read_gauges
from django_durable_tasks.engine.db.clock import database_now
from django_durable_tasks.engine.metrics.dropped_partitions import count_dropped_partition
from django_durable_tasks.engine.metrics.totals import read_totals
from django_durable_tasks.engine.recurring import ledger, ledger_partitions, retention
from django_durable_tasks.engine.verify import runner
from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.models import OccurrenceRecord, RecurringTask
from django_durable_tasks.rules.metrics.counts import MetricKind
from django_durable_tasks.rules.recurring.partitions import PREFIX, Partition
from django_durable_tasks.rules.recurring.policies import FireOutcome
from django_durable_tasks.scheduler.maintenance.schedule import jobs
from tests.database.recurring.ledger_tables import (
    DAY,
    KEPT,
    NOW,
    an_entry,
    converted,
    enable_partitions,
    fire_times_in,
    partition_names,
    write,
)
from tests.database.recurring.schedules import a_schedule, fire

pytestmark = [pytest.mark.django_db, pytest.mark.postgresql]
_COPIES = """
INSERT INTO {table}
SELECT (jsonb_populate_record(
         one, jsonb_build_object('{column}', md5(number::text)::uuid, 'name', number)
              || CASE '{column}' WHEN 'id' THEN '{{}}' ELSE jsonb_build_object('id', 1000000 + number)
                 END)).*
  FROM {table} AS one, generate_series(1, 5000) AS number
"""
"""Five thousand copies of a schedule, or of its entry."""

_READ = """
SELECT seq_tup_read + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_all_tables WHERE relname = %s
"""
"""The rows that this transaction has read from a table, by scans and by indexes."""


@pytest.fixture(autouse=True)
def partitions_of_a_day(settings: Any) -> None:
    """Enable partitions of a day."""
    enable_partitions(settings)


# Guarantees ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("days", [-60, 0, 3, 400], ids=["first", "today", "ahead", "default"])
def test_a_fire_time_has_one_entry_in_every_partition(days: int) -> None:
    converted()
    row, other = a_schedule(), a_schedule("other")
    when = NOW + days * DAY
    write(row, when)
    write(row, when)
    write(other, when)
    assert ledger.ledger().filter(unique_fire_time=when).count() == 2
    with pytest.raises(IntegrityError), transaction.atomic():
        ledger.ledger().bulk_create(
            [
                OccurrenceRecord(
                    recurring_task=row,
                    fire_time=when,
                    unique_fire_time=when,
                    outcome=FireOutcome.MISSED,
                )
            ]
        )


def test_an_entry_stays_unique_when_its_partition_is_created_later() -> None:
    converted()
    row, when = a_schedule(), NOW + 10 * DAY
    write(row, when)
    assert fire_times_in("default") == [when]
    assert ledger_partitions.maintain(NOW + 5 * DAY) == 5
    assert fire_times_in("default") == []
    assert fire_times_in("20260312") == [when]
    write(row, when)
    assert ledger.ledger().count() == 1


def test_a_request_has_one_entry() -> None:
    converted()
    row = a_schedule()
    for when in (NOW, NOW + 3 * DAY):
        ledger.write([an_entry(row, when, request_id="again")])
    assert ledger.ledger().count() == 1
    with pytest.raises(IntegrityError), transaction.atomic():
        ledger.ledger().bulk_create(
            [
                OccurrenceRecord(
                    recurring_task=row,
                    fire_time=NOW,
                    unique_fire_time=NOW,
                    request_id="both",
                    outcome=FireOutcome.MISSED,
                )
            ]
        )


def test_a_lookup_of_a_fire_time_reads_one_partition() -> None:
    converted()
    row = a_schedule()
    entries = ledger.ledger().filter(recurring_task=row.pk, unique_fire_time=NOW + 2 * DAY)
    plan = entries.explain()
    assert f"{PREFIX}20260304" in plan
    assert not [
        name for name in partition_names() if name != "20260304" and f"{PREFIX}{name}" in plan
    ]


# Maintenance --------------------------------------------------------------------------------------


def test_partitions_are_created_ahead_once() -> None:
    converted()
    assert ledger_partitions.maintain(NOW) == 0
    assert ledger_partitions.maintain(NOW + DAY) == 1
    assert partition_names()[-2] == "20260310"
    assert ledger_partitions.maintain(NOW + DAY) == 0


def test_a_longer_period_continues_the_partitions(settings: Any) -> None:
    converted()
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "LEDGER_PARTITION_DAYS": 7}
    assert ledger_partitions.maintain(NOW + 5 * DAY) == 1
    newest = ledger_partitions.partitions()[-2]
    assert (newest.first, newest.end) == (
        datetime(2026, 3, 10, tzinfo=UTC),
        datetime(2026, 3, 16, tzinfo=UTC),
    )


def test_a_partition_is_dropped_after_the_retention_and_its_fire_times_do_not_return() -> None:
    converted()
    row, other = a_schedule(), a_schedule("other")
    write(row, NOW + DAY, NOW + DAY + timedelta(hours=3), NOW + 3 * DAY, age=timedelta(seconds=1))
    end = datetime(2026, 3, 4, tzinfo=UTC)  # of the partition of the first two
    now = end + KEPT
    while ledger_partitions.maintain(now):
        pass
    assert "20260303" not in partition_names()
    assert "20260304" in partition_names()
    assert list(ledger.ledger().values_list("fire_time", flat=True)) == [NOW + 3 * DAY]
    row.refresh_from_db()
    other.refresh_from_db()
    assert row.ledger_from == NOW + DAY + timedelta(hours=3)
    assert other.ledger_from is None
    with pytest.raises(InvalidOption, match="is kept after"):
        row.backfill(row.ledger_from, NOW + 2 * DAY)
    RecurringTask.objects.unguarded().filter(pk=row.pk).update(watermark_at=NOW)
    fire(NOW + 2 * DAY)
    times = ledger.ledger().filter(recurring_task=row.pk).values_list("fire_time", flat=True)
    assert len(times) > 1
    assert min(times) > row.ledger_from


def test_a_young_entry_of_an_old_fire_time_keeps_its_partition() -> None:
    converted()
    row, now = a_schedule(), NOW + KEPT + 3 * DAY
    write(row, NOW + DAY, age=2 * DAY + timedelta(hours=1))
    while ledger_partitions.maintain(now):
        pass
    assert "20260303" in partition_names()
    row.refresh_from_db()
    assert row.ledger_from is None
    while ledger_partitions.maintain(now + DAY):
        pass
    assert "20260303" not in partition_names()


def test_entries_of_a_partition_that_was_not_dropped_are_deleted_row_by_row() -> None:
    converted()
    row = a_schedule()
    write(row, NOW + DAY, age=timedelta(seconds=1))
    expiry = NOW + DAY + KEPT
    assert retention.prune_ledger(expiry + DAY, 100) == 0
    assert retention.prune_ledger(expiry + 2 * DAY + timedelta(minutes=1), 100) == 1
    row.refresh_from_db()
    assert row.ledger_from == NOW + DAY


def test_a_drop_needs_the_same_statements_for_any_number_of_entries() -> None:
    converted()
    numbers = []
    for day, entries in ((1, 1), (2, 50)):
        for number in range(entries):
            write(a_schedule(f"{day} {number}"), NOW + day * DAY, age=timedelta(seconds=1))
    ledger_partitions.maintain(NOW + KEPT)  # the first partition
    for day in (1, 2):
        now = NOW + KEPT + (day + 1) * DAY
        existing = ledger_partitions.partitions()
        ledger_partitions.create_missing(existing, now, 1)
        with CaptureQueriesContext(connection) as captured:
            assert ledger_partitions.drop_expired(existing, now) == 1
        numbers.append(len(captured))
    assert numbers[0] == numbers[1]


def test_a_drop_reads_the_partition_once(monkeypatch: pytest.MonkeyPatch) -> None:
    converted()
    for number in range(50):
        write(a_schedule(str(number)), NOW + DAY, age=timedelta(seconds=1))
    now, read, execute = NOW + KEPT + 2 * DAY, list[int](), ledger_partitions._execute

    def count(name: str, partition: Partition) -> None:
        if name == "drop_ledger_partition":
            with connection.cursor() as cursor:
                cursor.execute(_READ, [partition.name])
                read.append(cursor.fetchone()[0] - before)
        execute(name, partition)

    ledger_partitions.create_missing(ledger_partitions.partitions(), now, 1)
    assert ledger_partitions.maintain(now) == 1  # the first partition
    with connection.cursor() as cursor:
        cursor.execute(_READ, [f"{PREFIX}20260303"])
        before = cursor.fetchone()[0]
    monkeypatch.setattr(ledger_partitions, "_execute", count)
    assert ledger_partitions.maintain(now) == 1
    assert len(read) == 1
    assert 50 <= read[0] < 2 * 50


def test_the_metrics_contain_the_partitions_and_the_drops(settings: Any) -> None:
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "METRICS": True}
    now = database_now()
    converted(now - KEPT - 3 * DAY)
    ledger_partitions.create_missing(ledger_partitions.partitions(), now, 1)
    before = read_gauges().partitions
    assert before.number == len(partition_names()) - 1
    assert KEPT + DAY < timedelta(seconds=before.oldest_age) <= KEPT + 3 * DAY
    assert _drops() == 0
    while ledger_partitions.drop_expired(ledger_partitions.partitions(), now):
        pass
    after = read_gauges().partitions
    assert timedelta(seconds=after.oldest_age) <= KEPT
    assert _drops() == before.number - after.number > 1


def test_a_drop_that_fails_is_not_counted(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "METRICS": True}
    converted()

    def fail() -> None:
        count_dropped_partition()
        raise OperationalError("The connection was lost.")

    monkeypatch.setattr(ledger_partitions, "count_dropped_partition", fail)
    assert ledger_partitions.drop_expired(ledger_partitions.partitions(), NOW + KEPT + DAY) == 0
    assert _drops() == 0
    assert "first" in partition_names()


def _drops() -> int:
    return sum(counted.number for key, counted in read_totals() if key.kind == MetricKind.PARTITION)


def test_ledger_from_of_many_schedules_is_raised_in_several_calls() -> None:
    converted()
    row = a_schedule()
    write(row, NOW + DAY, age=timedelta(seconds=1))
    for table, column in ((RecurringTask, "id"), (OccurrenceRecord, "recurring_task_id")):
        with connection.cursor() as cursor:
            cursor.execute(_COPIES.format(table=table._meta.db_table, column=column))
    now = NOW + KEPT + 2 * DAY
    ledger_partitions.create_missing(ledger_partitions.partitions(), now, 1)
    assert ledger_partitions.maintain(now) == 1  # the first partition
    assert ledger_partitions.maintain(now) == 1
    assert RecurringTask.objects.filter(ledger_from=NOW + DAY).count() == 5_000
    assert ledger.ledger().count() == 5_001
    assert ledger_partitions.maintain(now) == 1
    assert "20260303" not in partition_names()
    assert not RecurringTask.objects.exclude(ledger_from=NOW + DAY).exists()


def test_verify_reports_that_no_partition_exists_for_the_next_day() -> None:
    now = database_now()
    converted(now - 20 * DAY)
    [answer] = runner.verify(runner.chosen(["ledger-partitions"]))
    assert [one.check for one in answer.findings] == ["ledger-partitions"]
    ledger_partitions.maintain(now)
    [answer] = runner.verify(runner.chosen(["ledger-partitions"]))
    assert answer.findings == []


def test_a_partition_that_cannot_be_created_stops_nothing_and_is_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    converted()
    row = a_schedule()
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {PREFIX}20260310 ()")
    assert ledger_partitions.maintain(NOW + DAY) == 0
    assert f"Partition {PREFIX}20260310 was not created" in caplog.text
    write(row, NOW + 8 * DAY)
    assert fire_times_in("default") == [NOW + 8 * DAY]
    with connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE {PREFIX}20260310")
    assert ledger_partitions.maintain(NOW + DAY) == 1
    assert fire_times_in("20260310") == [NOW + 8 * DAY]


def test_a_partition_that_cannot_be_dropped_stays_complete(
    caplog: pytest.LogCaptureFixture,
) -> None:
    converted()
    row, now = a_schedule(), NOW + KEPT + 3 * DAY
    write(row, NOW + DAY, age=timedelta(seconds=1))
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE VIEW of_a_day AS SELECT id FROM {PREFIX}20260303")
    existing = ledger_partitions.partitions()
    assert ledger_partitions.drop_expired(existing, now) == 1  # the first one
    assert ledger_partitions.drop_expired(existing[1:2], now) == 0
    assert f"Partition {PREFIX}20260303 was not dropped" in caplog.text
    assert fire_times_in("20260303") == [NOW + DAY]
    assert "20260303" in partition_names()


def test_the_maintenance_job_does_nothing_without_the_setting(settings: Any) -> None:
    settings.DURABLE_TASKS = {**settings.DURABLE_TASKS, "LEDGER_PARTITION_DAYS": None}
    with CaptureQueriesContext(connection) as captured:
        assert ledger_partitions.maintain(NOW) == 0
    assert len(captured) == 0
    assert "partition_ledger" in [job.name for job in jobs()]
