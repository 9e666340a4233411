"""Totals equal a recount of their source, whatever dies, commits late or counts at the same time."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from django_durable_tasks.choices import FireOutcome, MetricKind, Status
from django_durable_tasks.cluster.gauges import OTHER
from django_durable_tasks.cluster.nodes import HeartbeatMonitor
from django_durable_tasks.metrics import counts
from django_durable_tasks.metrics.counts import count_attempts
from django_durable_tasks.metrics.series import GAP_KEPT, Distribution
from django_durable_tasks.models import (
    MetricMinute,
    MetricPosition,
    MetricSeries,
    OccurrenceRecord,
    Task,
    TaskExecutionLog,
    UncountedEnding,
)
from django_durable_tasks.scheduler.jobs import CountMetrics
from django_durable_tasks.states import transitions
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.tasks import retention
from tests.database.metrics.counting import count_all, minute_totals, recount, totals
from tests.factories import a_log_row, a_task, a_tenant, many_tasks

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def counted(settings: Any) -> None:
    """Count for the metrics."""
    settings.DURABLE_TASKS = {"METRICS": True}


def test_nothing_is_counted_unless_metrics_is_set(settings: Any) -> None:
    settings.DURABLE_TASKS = {}
    a_task(Status.SUCCESS)
    transitions.cancel(Task.objects.filter(pk=a_task().pk), "test")
    now = database_now()
    with connection.execute_wrapper(_refuse):
        assert CountMetrics()(now, HeartbeatMonitor()) == 0
    assert not UncountedEnding.objects.exists()
    assert not MetricSeries.objects.exists()


SHORT_RETENTION = {"METRICS": True, "RETENTION": {"SUCCESS": 3_600}, "METRICS_RETENTION": 7_200}
"""In hours: each minute until the retention is over is counted."""


def _refuse(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
    raise AssertionError(sql)


def test_attempts_are_counted_by_queue_name_and_status() -> None:
    task = a_task(Status.SUCCESS)
    many_tasks(3, Status.FAILED)
    a_log_row(task, "RETRY")
    count_all()
    assert totals() == minute_totals() == recount() == {"SUCCESS": 1, "FAILED": 3, "RETRY": 1}
    row = MetricSeries.objects.get(kind="ATTEMPT", status="SUCCESS")
    assert (row.queue, row.name, row.tenant_id) == (task.queue, task.name, 0)
    run = Distribution.from_json(row.durations["run"])
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
    settings.DURABLE_TASKS = {"METRICS": True, "BATCH_SIZE": 1}
    many_tasks(23, Status.SUCCESS)
    count_all()
    assert totals() == {"SUCCESS": 23}


def test_log_entries_that_become_visible_late_are_counted_once() -> None:
    many_tasks(5, Status.SUCCESS)
    hidden = list(TaskExecutionLog.objects.order_by("pk")[1:4])
    TaskExecutionLog.objects.unguarded().filter(pk__in=[row.pk for row in hidden]).delete()
    count_all()
    assert totals() == {"SUCCESS": 2}
    for row in (hidden[2], hidden[0]):
        TaskExecutionLog.objects.unguarded().bulk_create([row])
        count_all()
    assert totals() == recount() == {"SUCCESS": 4}
    after = database_now() + timedelta(seconds=GAP_KEPT + 60)
    count_all(after)
    TaskExecutionLog.objects.unguarded().bulk_create([hidden[1]])
    count_all(after)
    assert totals() == {"SUCCESS": 4}


def test_of_two_processes_that_count_the_same_rows_one_writes() -> None:
    many_tasks(4, Status.SUCCESS)
    raced = False

    def count_between(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        nonlocal raced
        if not raced and sql.startswith("UPDATE") and "metric_position" in sql:
            raced = True
            assert count_attempts(database_now(), 100) == 4
        return execute(sql, params, many, context)

    with connection.execute_wrapper(count_between):
        assert count_attempts(database_now(), 100) == 0
    assert raced
    assert totals() == minute_totals() == {"SUCCESS": 4}


def test_a_process_that_dies_while_it_writes_has_written_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    many_tasks(4, Status.SUCCESS)

    class Killed(BaseException):
        pass

    write, calls = counts._write, 0

    def dies(*args: Any) -> None:
        nonlocal calls
        calls += 1
        write(*args)
        if calls == 2:
            raise Killed

    monkeypatch.setattr(counts, "_write", dies)
    with pytest.raises(Killed):
        count_attempts(database_now(), 100)
    monkeypatch.undo()
    assert totals() == minute_totals() == {}
    count_all()
    assert totals() == minute_totals() == {"SUCCESS": 4}


def test_totals_do_not_fall_when_retention_deletes_the_tasks_and_the_minutes(
    settings: Any,
) -> None:
    settings.DURABLE_TASKS = SHORT_RETENTION
    tasks = many_tasks(4, Status.SUCCESS)
    count_all()
    later = database_now() + timedelta(hours=3)
    count_all(later)
    assert retention.prune(later, 100) == 4
    assert counts.prune_minutes(later, 100) > 0
    assert recount() == {}
    assert not Task.objects.filter(pk__in=[task.pk for task in tasks]).exists()
    assert (totals(), minute_totals()) == ({"SUCCESS": 4}, {})
    count_all(later)
    assert totals() == {"SUCCESS": 4}


def test_retention_keeps_tasks_whose_attempts_are_not_counted(settings: Any) -> None:
    settings.DURABLE_TASKS = SHORT_RETENTION
    count_all()
    later = database_now() + timedelta(hours=3)
    many_tasks(3, Status.SUCCESS)
    assert retention.prune(later, 100) == 0
    count_all(later)
    assert retention.prune(later, 100) == 3
    assert totals() == {"SUCCESS": 3}


def test_series_beyond_the_limit_are_counted_as_other(settings: Any) -> None:
    settings.DURABLE_TASKS = {"METRICS": True, "METRICS_SERIES_MAX": 2}
    for number in range(5):
        a_task(Status.SUCCESS, queue=f"q{number}")
        count_all()
    a_task(Status.SUCCESS, queue="q0")
    a_task(Status.SUCCESS, queue="q4")
    count_all()
    rows = MetricSeries.objects.filter(kind="ATTEMPT").order_by("queue")
    assert [(row.queue, row.name, row.number) for row in rows] == [
        (OTHER, OTHER, 4),
        ("q0", "tests.project.tasks.noop", 2),
        ("q1", "tests.project.tasks.noop", 1),
    ]
    assert totals() == recount()


def test_tenants_are_counted_apart_only_if_the_setting_says_so(settings: Any) -> None:
    tenant = a_tenant()
    a_task(Status.SUCCESS, tenant=tenant)
    count_all()
    settings.DURABLE_TASKS = {"METRICS": True, "METRICS_TENANTS": True}
    a_task(Status.SUCCESS, tenant=tenant)
    count_all()
    tenants = MetricSeries.objects.filter(kind="ATTEMPT").values_list("tenant_id", flat=True)
    assert set(tenants) == {0, tenant.pk}


def test_created_tasks_are_counted_after_their_minute_and_again_for_late_commits() -> None:
    count_all()
    now = database_now()
    many_tasks(3)
    count_all(now)
    assert totals(MetricKind.CREATED) == {}
    count_all(now + timedelta(minutes=2))
    assert totals(MetricKind.CREATED) == {"": 3}
    many_tasks(2)  # as by a transaction that commits late
    count_all(now + timedelta(minutes=3))
    assert totals(MetricKind.CREATED) == {"": 3}
    count_all(now + timedelta(minutes=8))
    assert totals(MetricKind.CREATED) == minute_totals(MetricKind.CREATED) == {"": 5}
    Task.objects.unguarded().all().delete()
    count_all(now + timedelta(hours=3))
    assert totals(MetricKind.CREATED) == {"": 5}


def test_created_tasks_beyond_the_limit_of_series_are_counted_once(settings: Any) -> None:
    settings.DURABLE_TASKS = {"METRICS": True, "METRICS_SERIES_MAX": 2}
    count_all()
    now = database_now()
    for number in range(5):
        many_tasks(2, queue=f"q{number}")
    for later in (2, 8, 70):
        count_all(now + timedelta(minutes=later))
        assert totals(MetricKind.CREATED) == {"": 10}
    a_task(queue="q4")
    settings.DURABLE_TASKS = {"METRICS": True, "METRICS_TENANTS": True}
    MetricPosition.objects.unguarded().filter(kind="CREATED").update(
        details=[int(now.timestamp()) // 60 * 60] * 3
    )
    count_all(now + timedelta(minutes=70))
    assert totals(MetricKind.CREATED) == {"": 11}


def test_a_minute_with_many_created_tasks_is_counted_in_parts(settings: Any) -> None:
    settings.DURABLE_TASKS = {"METRICS": True, "BATCH_SIZE": 1}
    count_all()
    many_tasks(95)
    count_all(database_now() + timedelta(minutes=2))
    assert totals(MetricKind.CREATED) == {"": 95}


def test_tasks_that_end_without_an_attempt_are_counted_by_status() -> None:
    pending = many_tasks(3)
    transitions.cancel(Task.objects.filter(pk__in=[row.pk for row in pending[:2]]), "test")
    transitions.skip(Task.objects.filter(pk=pending[2].pk), "test")
    assert sum(UncountedEnding.objects.values_list("number", flat=True)) == 3
    count_all()
    assert totals(MetricKind.ENDED) == minute_totals(MetricKind.ENDED)
    assert totals(MetricKind.ENDED) == {"CANCELLED": 2, "SKIPPED": 1}
    assert not UncountedEnding.objects.exists()


def test_a_forced_success_is_counted_once_by_its_log_entry() -> None:
    Task.objects.filter(pk=a_task().pk).force_complete(by="anna", reason="test")
    count_all()
    assert (totals(), totals(MetricKind.ENDED)) == ({"SUCCESS": 1}, {})
    assert MetricSeries.objects.get(kind="ATTEMPT").durations == {}


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
    many_tasks(2, Status.SUCCESS)
    job = count_all()
    before = list(MetricPosition.objects.order_by("pk").values_list("pk", "revision"))
    job(database_now(), HeartbeatMonitor())
    assert list(MetricPosition.objects.order_by("pk").values_list("pk", "revision")) == before


def test_the_number_of_statements_does_not_depend_on_the_number_of_rows(
    django_assert_max_num_queries: Any,
) -> None:
    count_all()
    many_tasks(50, Status.SUCCESS)
    with django_assert_max_num_queries(12):
        assert count_attempts(database_now(), 100) == 50


def test_minutes_can_be_deleted_with_their_series_only_by_the_engine() -> None:
    with pytest.raises(Exception, match="METRICS"):
        MetricMinute.objects.all().delete()
