"""Totals equal a recount of their source, whatever dies, commits late or counts at the same time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from django_durable_tasks.choices import FireOutcome, Status
from django_durable_tasks.contrib.metrics import counts
from django_durable_tasks.contrib.metrics.counts import read_totals
from django_durable_tasks.contrib.metrics.models import MetricMinute
from django_durable_tasks.contrib.metrics.series import OTHER, MetricKind, Span
from django_durable_tasks.models import OccurrenceRecord, Task, TaskExecutionLog
from django_durable_tasks.states import endings
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.tasks import retention
from tests.database.metrics.counting import (
    SETTLED_SOON,
    count_all,
    count_here,
    counted_durations,
    minute_totals,
    recount,
    totals,
)
from tests.factories import a_log_row, a_task, a_tenant, many_tasks
from tests.process_state import count_endings

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count endings without an attempt, and settle minutes soon."""
    monkeypatch.setattr(counts, "DELAYS", SETTLED_SOON)
    count_endings()


SHORT_RETENTION = {"RETENTION": {"SUCCESS": 600, "METRICS": 1_200}}
"""Minutes, because each minute until the retention is over is counted."""


def _refuse(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
    raise AssertionError(sql)


def test_attempts_are_counted_by_queue_name_and_status() -> None:
    task = a_task(Status.SUCCESS)
    many_tasks(3, Status.FAILED)
    a_log_row(task, "RETRY")
    count_all()
    assert totals() == minute_totals() == recount() == {"SUCCESS": 1, "FAILED": 3, "RETRY": 1}
    row = MetricMinute.objects.get(kind="ATTEMPT", status="SUCCESS", span=Span.MINUTE)
    assert (row.queue, row.name, row.tenant_id) == (task.queue, task.name, 0)
    run = counted_durations("SUCCESS").durations["run"]
    assert sum(run.numbers) == 1
    assert run.total == pytest.approx(1.0, abs=0.01)


def test_a_second_count_adds_only_what_is_new() -> None:
    many_tasks(3, Status.SUCCESS)
    count_all()
    count_all()
    assert totals() == {"SUCCESS": 3}
    many_tasks(2, Status.SUCCESS)
    count_all()
    assert totals() == minute_totals() == recount() == {"SUCCESS": 5}


def test_a_batch_smaller_than_the_backlog_counts_every_row_once(settings: Any) -> None:
    settings.DURABLE_TASKS = {"BATCH_SIZE": 1}
    many_tasks(23, Status.SUCCESS)
    count_all()
    assert totals() == {"SUCCESS": 23}


def test_log_entries_that_become_visible_late_are_counted_until_the_minute_is_settled() -> None:
    many_tasks(5, Status.SUCCESS)
    now = database_now()
    hidden = list(TaskExecutionLog.objects.order_by("pk")[1:4])
    TaskExecutionLog.objects.unguarded().filter(pk__in=[row.pk for row in hidden]).delete()
    job = count_all(now)
    assert totals() == {"SUCCESS": 2}
    for row, later in ((hidden[2], 7), (hidden[0], 12)):
        TaskExecutionLog.objects.unguarded().bulk_create([row])
        count_all(now + timedelta(minutes=later), job)
    assert totals() == minute_totals() == recount() == {"SUCCESS": 4}
    assert not MetricMinute.objects.filter(span=Span.MINUTE).exists()
    TaskExecutionLog.objects.unguarded().bulk_create([hidden[1]])
    for later in (13, 30):
        count_all(now + timedelta(minutes=later), job)
        count_all(now + timedelta(minutes=later))
    assert totals() == minute_totals() == {"SUCCESS": 4}


def test_entries_of_open_transactions_are_counted_although_newer_ones_exist() -> None:
    tasks = many_tasks(3, Status.SUCCESS)
    now = database_now()
    entries = list(TaskExecutionLog.objects.order_by("pk"))
    ages = (timedelta(minutes=8), timedelta(minutes=6), timedelta(minutes=4))
    for entry, ago in zip(entries, ages, strict=True):
        TaskExecutionLog.objects.unguarded().filter(pk=entry.pk).update(completed_at=now - ago)
    late = TaskExecutionLog.objects.get(pk=entries[1].pk)
    TaskExecutionLog.objects.unguarded().filter(pk=late.pk).delete()
    job = count_all(now)
    assert totals() == {"SUCCESS": 2}
    TaskExecutionLog.objects.unguarded().bulk_create([late])
    count_all(now + timedelta(minutes=6), job)
    assert totals() == minute_totals() == {"SUCCESS": len(tasks)}


def test_a_process_that_dies_while_it_writes_has_written_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    many_tasks(4, Status.SUCCESS)
    now = database_now()
    count_all(now)

    class Killed(BaseException):
        pass

    def dies(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.startswith("UPDATE") and "metric_minute" in sql:
            raise Killed
        return execute(sql, params, many, context)

    with connection.execute_wrapper(dies), pytest.raises(Killed):
        count_here(now + timedelta(minutes=30))
    assert totals() == minute_totals() == {"SUCCESS": 4}
    assert MetricMinute.objects.filter(span=Span.MINUTE).exists()
    count_all(now + timedelta(minutes=30))
    assert totals() == minute_totals() == {"SUCCESS": 4}


def test_a_deleted_task_does_not_reduce_a_count() -> None:
    many_tasks(4, Status.SUCCESS)
    now = database_now()
    job = count_all(now)
    TaskExecutionLog.objects.unguarded().all().delete()
    many_tasks(1, Status.SUCCESS)
    count_all(now + timedelta(minutes=7), job)
    assert totals() == minute_totals() == {"SUCCESS": 4}


def test_totals_do_not_fall_when_retention_deletes_the_tasks_and_the_minutes(settings: Any) -> None:
    settings.DURABLE_TASKS = SHORT_RETENTION
    tasks = many_tasks(4, Status.SUCCESS)
    count_all()
    # More than the time until a minute is settled, the retention, and a quarter of an hour.
    later = database_now() + timedelta(minutes=50)
    count_all(later)
    assert retention.prune(later, 100) == 4
    assert recount() == {}
    assert not Task.objects.filter(pk__in=[task.pk for task in tasks]).exists()
    assert (totals(), minute_totals()) == ({"SUCCESS": 4}, {})
    count_all(later)
    assert totals() == {"SUCCESS": 4}


def test_retention_keeps_tasks_whose_attempts_are_not_counted(settings: Any) -> None:
    settings.DURABLE_TASKS = SHORT_RETENTION
    count_all()
    later = database_now() + timedelta(minutes=30)
    many_tasks(3, Status.SUCCESS)
    assert retention.prune(later, 100) == 0
    count_all(later)
    assert retention.prune(later, 100) == 3
    assert totals() == {"SUCCESS": 3}


def test_series_beyond_the_limit_are_counted_as_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts, "SERIES_MAX", 2)
    for number in range(5):
        a_task(Status.SUCCESS, queue=f"q{number}")
        count_all()
    a_task(Status.SUCCESS, queue="q0")
    a_task(Status.SUCCESS, queue="q4")
    count_all()
    rows = MetricMinute.objects.filter(kind="ATTEMPT", span=Span.TOTAL).order_by("queue")
    assert [row.queue for row in rows] == [OTHER, "q0", "q1"]
    found = Counter[tuple[str, str]]()
    for key, counted in read_totals():
        if key.kind == MetricKind.ATTEMPT:
            found[key.queue, key.name] += counted.number
    assert found == {
        (OTHER, OTHER): 4,
        ("q0", "tests.project.tasks.noop"): 2,
        ("q1", "tests.project.tasks.noop"): 1,
    }
    assert totals() == recount()


def test_tenants_are_counted_apart_only_if_the_setting_says_so(settings: Any) -> None:
    tenant = a_tenant()
    a_task(Status.SUCCESS, tenant=tenant)
    count_all()
    settings.DURABLE_TASKS = {"METRICS_TENANTS": True}
    a_task(Status.SUCCESS, tenant=tenant)
    count_all()
    rows = MetricMinute.objects.filter(kind="ATTEMPT", span=Span.TOTAL)
    tenants = rows.values_list("tenant_id", flat=True)
    assert set(tenants) == {0, tenant.pk}


def test_created_tasks_are_counted_at_once_and_again_for_late_commits() -> None:
    now = database_now()
    many_tasks(3)
    job = count_all(now)
    assert totals(MetricKind.CREATED) == {"": 3}
    many_tasks(2)  # as by a transaction that commits late
    count_all(now + timedelta(minutes=3), job)
    count_all(now + timedelta(minutes=7), job)
    assert totals(MetricKind.CREATED) == minute_totals(MetricKind.CREATED) == {"": 5}
    Task.objects.unguarded().all().delete()
    count_all(now + timedelta(minutes=30), job)
    assert totals(MetricKind.CREATED) == minute_totals(MetricKind.CREATED) == {"": 5}


def test_a_row_is_read_once_while_its_minute_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    """And after its end with what was committed late. A leader counts every few seconds."""
    read = Counter[MetricKind]()

    def counted(source: counts.Source, kind: MetricKind) -> counts.Source:
        def add(found: counts.Counts, rows: Iterable[Any]) -> None:
            rows = list(rows)
            read[kind] += len(rows)
            source.add(found, rows)

        return source._replace(add=add)

    sources = {
        counts.CREATED: MetricKind.CREATED,
        counts.ATTEMPTS: MetricKind.ATTEMPT,
        counts.OCCURRENCES: MetricKind.OCCURRENCE,
    }
    monkeypatch.setattr(counts, "SOURCES", [counted(*pair) for pair in sources.items()])
    now = database_now()
    many_tasks(3, Status.SUCCESS)
    job = count_all(now)
    assert +read == {MetricKind.CREATED: 3, MetricKind.ATTEMPT: 3}
    many_tasks(2, Status.SUCCESS)
    for _ in range(3):
        count_all(now, job)
    assert +read == {MetricKind.CREATED: 5, MetricKind.ATTEMPT: 5}
    assert totals() == {"SUCCESS": 5}
    count_all(now + timedelta(minutes=2), job)
    assert +read == {MetricKind.CREATED: 10, MetricKind.ATTEMPT: 10}
    assert totals() == minute_totals() == {"SUCCESS": 5}


def test_a_change_of_the_names_of_series_counts_nothing_twice(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counts, "SERIES_MAX", 2)
    now = database_now()
    for number in range(5):
        many_tasks(2, queue=f"q{number}")
    count_all(now)
    settings.DURABLE_TASKS = {"METRICS_TENANTS": True}
    for later in (1, 7, 20):
        count_all(now + timedelta(minutes=later))
        assert totals(MetricKind.CREATED) == {"": 10}


def test_a_minute_with_many_created_tasks_is_counted_in_parts(settings: Any) -> None:
    settings.DURABLE_TASKS = {"BATCH_SIZE": 1}
    many_tasks(95)
    count_all()
    assert totals(MetricKind.CREATED) == {"": 95}


def test_tasks_that_end_without_an_attempt_are_counted_by_status() -> None:
    pending = many_tasks(3)
    endings.cancel(Task.objects.filter(pk__in=[row.pk for row in pending[:2]]), "test")
    endings.skip(Task.objects.filter(pk=pending[2].pk), "test")
    new = MetricMinute.objects.filter(span=Span.NEW)
    assert sum(new.values_list("number", flat=True)) == 3
    assert totals(MetricKind.ENDED) == {}
    job = count_all()
    for later in (0, 20):
        count_all(database_now() + timedelta(minutes=later), job)
        assert totals(MetricKind.ENDED) == minute_totals(MetricKind.ENDED)
        assert totals(MetricKind.ENDED) == {"CANCELLED": 2, "SKIPPED": 1}
        assert not new.exists()


def test_a_forced_success_is_counted_once_by_its_log_entry() -> None:
    Task.objects.filter(pk=a_task().pk).force_complete(by="anna", reason="test")
    count_all()
    assert (totals(), totals(MetricKind.ENDED)) == ({"SUCCESS": 1}, {})
    assert counted_durations("SUCCESS").durations == {}


def test_fire_times_are_counted_by_outcome() -> None:
    now = database_now()
    OccurrenceRecord.objects.unguarded().bulk_create(
        OccurrenceRecord(
            recurring_task_id="00000000-0000-7000-8000-000000000001",
            fire_time=now + timedelta(seconds=number),
            outcome=outcome,
            count=number,
        )
        for number, outcome in enumerate((FireOutcome.DISPATCHED, FireOutcome.MISSED), start=4)
    )
    count_all()
    assert totals(MetricKind.OCCURRENCE) == {"DISPATCHED": 4, "MISSED": 5}


def test_an_idle_system_is_not_written() -> None:
    now = database_now()
    job = count_all(now)
    with connection.execute_wrapper(_refuse_writes):
        count_here(now, job)


def _refuse_writes(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
    assert sql.startswith("SELECT"), sql
    return execute(sql, params, many, context)


def test_the_number_of_statements_does_not_depend_on_the_number_of_rows(
    django_assert_max_num_queries: Any,
) -> None:
    job = count_all()
    many_tasks(50, Status.SUCCESS)
    now = database_now()  # after the endings, which may be of the next minute
    # 20 more if a minute ends meanwhile, and 100 more if each row cost one.
    with django_assert_max_num_queries(60):
        count_here(now, job)
    assert totals() == {"SUCCESS": 50}


def test_counts_can_be_deleted_only_by_the_engine() -> None:
    with pytest.raises(Exception, match="A scheduler counts"):
        MetricMinute.objects.all().delete()
