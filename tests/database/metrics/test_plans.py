"""Counting and scraping read in proportion to what is new, among millions of log entries."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest
from django.db import connection, transaction

from django_durable_tasks.choices import Status
from django_durable_tasks.contrib.metrics.admin import PERIODS, endings, read_points
from django_durable_tasks.store.clock import database_now
from tests.database.db.test_query_plans import _fill
from tests.database.metrics.counting import count_all, totals
from tests.database.pages import Touched, touched_by
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
def many() -> Iterator[None]:
    """Insert many tasks that ended more than an hour ago, with their log entries."""
    _fill(Status.SUCCESS, ROWS, start=-90_000, born=1_500_000_000_000)
    with connection.cursor() as cursor:
        cursor.execute(_LOG)
        cursor.execute("VACUUM ANALYZE durable_tasks_task, durable_tasks_execution_log")
    yield
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE durable_tasks_task, durable_tasks_execution_log CASCADE")


def test_a_count_reads_only_what_is_recent(many: None) -> None:
    job = count_all()
    many_tasks(100, Status.SUCCESS)
    now = database_now()
    found = touched_by(lambda: count_all(now, job))
    assert totals() == {"SUCCESS": 100}
    assert not found.whole, found
    assert found.pages < 100 * 24, found  # a task and a log entry, perhaps in two minutes
    new_leader = touched_by(lambda: count_all(now + timedelta(seconds=1)))
    assert not new_leader.whole, new_leader
    assert new_leader.pages < 61 * 2 * 20 * 5, new_leader  # 20 steps for each minute
    settled = touched_by(lambda: count_all(now + timedelta(hours=2), job))
    assert not settled.whole, settled


# Among the counts of many series over a week, the chart of an hour reads the rows of the hour
# (PostgreSQL). Without the index it reads the whole table.


SERIES = 200
MINUTES = rows(2_000)
_MINUTES = """
INSERT INTO durable_tasks_metric_minute
       (span, minute, kind, tenant_id, queue, name, status, number, durations)
SELECT CASE WHEN n > 65 THEN 15 ELSE 1 END, date_trunc('minute', %s::timestamptz) - n * interval '1 minute',
       'ATTEMPT', 0, 'queue' || series, 'task', 'SUCCESS', 1,
       '{"run": [0.2, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]}'
  FROM generate_series(1, %s) AS n, generate_series(1, %s) AS series
"""


@pytest.fixture
def now() -> Iterator[datetime]:
    """Insert a count of each series for each minute before this time."""
    now = database_now()
    with connection.cursor() as cursor:
        cursor.execute(_MINUTES, [now, MINUTES, SERIES])
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE durable_tasks_metric_minute")
    yield now
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE durable_tasks_metric_minute")


def _read(now: datetime) -> Touched:
    return touched_by(lambda: read_points(endings(None), PERIODS["1h"], now))


def test_the_chart_of_an_hour_reads_the_rows_of_the_hour(now: datetime) -> None:
    pages = 59 * SERIES
    found = _read(now)
    points, _ = found.result
    assert sum(point.numbers.get("SUCCESS", 0) for point in points) == 59 * SERIES
    assert not found.whole, found
    assert found.pages < pages, found
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("DROP INDEX durable_metric_minute")
        without = _read(now)
        transaction.set_rollback(True)
    assert without.whole
