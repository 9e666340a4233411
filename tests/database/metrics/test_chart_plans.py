"""Among the counts of many series over a week, a chart reads the rows of its series, and not more
than the limit (PostgreSQL). Without the index of its rows it reads the whole table.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import pytest
from django.db import connection, transaction

from django_durable_tasks.choices import MetricKind
from django_durable_tasks.metrics import counts
from django_durable_tasks.metrics.counts import ChartData, ending_series, read_points
from django_durable_tasks.metrics.series import PERIODS, SeriesKey
from django_durable_tasks.models import MetricSeries
from django_durable_tasks.store.clock import database_now
from tests.database.pages import Touched, touched_by
from tests.repetitions import rows

pytestmark = [
    pytest.mark.postgresql,
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(300),
]
SERIES = 200
MINUTES = rows(5_000)
OF_SERIES = "DROP INDEX durable_metric_series_minute"
BOTH = (
    "ALTER TABLE durable_tasks_metric_minute DROP CONSTRAINT durable_metric_minute_once;"
    f" {OF_SERIES}"
)
_MINUTES = """
INSERT INTO durable_tasks_metric_minute (minute, series_id, number, durations, first_id, last_id)
SELECT date_trunc('minute', %s::timestamptz) - n * interval '1 minute', id, 1,
       '{"run": [0.2, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]}', 0, 0
  FROM generate_series(1, %s) AS n, durable_tasks_metric_series
"""


@pytest.fixture
def now() -> Iterator[datetime]:
    """Insert a count of each series for each minute before this time."""
    now = database_now()
    keys = (
        SeriesKey(MetricKind.ATTEMPT, 0, f"queue{n}", f"task{n}", "SUCCESS") for n in range(SERIES)
    )
    MetricSeries.objects.unguarded().bulk_create(
        MetricSeries(pk=key.digest(), **key._asdict()) for key in keys
    )
    with connection.cursor() as cursor:
        cursor.execute(_MINUTES, [now, MINUTES])
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE durable_tasks_metric_minute, durable_tasks_metric_series")
    yield now
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE durable_tasks_metric_minute, durable_tasks_metric_series")


def _read(now: datetime, period: str, queue: str = "") -> Touched:
    return touched_by(
        lambda: read_points(ending_series(None).selected(queue, ""), PERIODS[period], now)
    )


def _read_without(index: str, now: datetime, period: str, queue: str = "") -> Touched:
    """Read in a transaction in which the index is missing, to see that the test can fail."""
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(index)
        found = _read(now, period, queue)
        transaction.set_rollback(True)
    return found


def _is_bounded(found: Touched, pages: int) -> bool:
    """Return whether no table was read completely, and fewer than this number of pages."""
    return not found.whole and found.pages < pages


def _total(data: ChartData) -> int:
    return sum(point.numbers.get("SUCCESS", 0) for point in data.points)


def test_the_chart_of_one_queue_reads_the_rows_of_its_series(now: datetime) -> None:
    pages = int(MINUTES * 1.2) + 100  # each row is on another page
    found = _read(now, "7d", "queue7")
    assert _total(found.result) == MINUTES
    assert _is_bounded(found, pages), found
    assert not _is_bounded(_read_without(OF_SERIES, now, "7d", "queue7"), pages)


def test_the_chart_of_an_hour_reads_the_rows_of_the_hour(now: datetime) -> None:
    pages = 59 * SERIES
    found = _read(now, "1h")
    assert _total(found.result) == 59 * SERIES
    assert _is_bounded(found, pages), found
    assert not _is_bounded(_read_without(BOTH, now, "1h"), pages)  # each of them is enough


def test_a_period_with_too_many_rows_reads_as_many_as_the_limit(
    now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 10 * SERIES
    monkeypatch.setattr(counts, "row_limit", lambda: limit)
    found = _read(now, "7d")
    assert found.result.is_cut
    assert _total(found.result) == limit
    assert _is_bounded(found, 2 * limit), found
    assert not _is_bounded(_read_without(BOTH, now, "7d"), 2 * limit)
