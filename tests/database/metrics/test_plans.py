"""Counting and scraping read in proportion to what is new, among millions of log entries."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from django_durable_tasks.choices import Status
from django_durable_tasks.metrics.counts import CreationCounter, count_attempts, uncounted
from django_durable_tasks.models import TaskExecutionLog
from django_durable_tasks.store.clock import database_now
from tests.database.db.test_query_plans import _fill
from tests.database.metrics.counting import totals
from tests.database.pages import touched_by
from tests.factories import many_tasks
from tests.repetitions import rows

pytestmark = [
    pytest.mark.postgresql,
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(300),
]
ROWS = rows(300_000)
_LOG = """
INSERT INTO durable_tasks_execution_log
       (task_id, tenant_id, attempt_number, status, started_at, completed_at, run_id)
SELECT id, tenant_id, 1, 'SUCCESS', completed_at, completed_at, gen_random_uuid() FROM durable_tasks_task
"""


@pytest.fixture
def many(settings: Any) -> Iterator[None]:
    """Insert many ended tasks with their log entries, which are counted."""
    settings.DURABLE_TASKS = {"METRICS": True}
    _fill(Status.SUCCESS, ROWS, start=-90_000, born=1_500_000_000_000)
    with connection.cursor() as cursor:
        cursor.execute(_LOG)
        cursor.execute("VACUUM ANALYZE durable_tasks_task, durable_tasks_execution_log")
    while count_attempts(database_now(), 20_000):
        pass
    yield
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE durable_tasks_task, durable_tasks_execution_log CASCADE")


def test_a_count_reads_only_what_is_new(many: None) -> None:
    assert totals() == {"SUCCESS": ROWS}
    tasks = many_tasks(100, Status.SUCCESS)
    now = database_now()
    found = touched_by(lambda: count_attempts(now, 2_000))
    assert found.result == 100
    assert not found.whole, found
    assert found.pages < 100 * 12, found
    idle = touched_by(lambda: count_attempts(now, 2_000))
    assert idle.result == 0
    assert idle.pages < 50, idle
    counter = CreationCounter()
    counter(now - timedelta(minutes=1), 20_000)
    created = touched_by(lambda: counter(now + timedelta(minutes=2), 20_000))
    assert not created.whole, created
    assert created.pages < 1_000, str(created)
    guarded = touched_by(lambda: uncounted([task.pk for task in tasks], now))
    assert not guarded.whole, guarded
    assert guarded.pages < 100 * 12, str(guarded)


def test_a_gap_is_read_by_the_primary_key(many: None) -> None:
    now = database_now()
    many_tasks(10, Status.SUCCESS)
    hidden = TaskExecutionLog.objects.unguarded().order_by("-pk")[1]
    TaskExecutionLog.objects.unguarded().filter(pk=hidden.pk).delete()
    count_attempts(now, 2_000)
    found = touched_by(lambda: count_attempts(now, 2_000))
    assert not found.whole, found
    assert found.pages < 100, found
