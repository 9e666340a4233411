"""Among the counts of many series over a week, a chart reads the rows of its series, and not more
than the limit (PostgreSQL).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import connection

from django_durable_tasks.engine.db.clock import database_now
from django_durable_tasks.engine.metrics import chart_points
from django_durable_tasks.engine.metrics.chart_points import (
    ChartData,
    ending_series,
    read_points,
)
from django_durable_tasks.models import MetricSeries
from django_durable_tasks.rules.metrics.charts import PERIODS
from django_durable_tasks.rules.metrics.counts import MetricKind, SeriesKey
from tests.database.pages import Touched, touched_by
from tests.repetitions import rows

pytestmark = [
    pytest.mark.postgresql,
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(300),
]
SERIES = 200
MINUTES = rows(5_000)
_MINUTES = """
INSERT INTO durable_tasks_metric_minute (minute, series_id, number, durations, first_id, last_id)
SELECT date_trunc('minute', now()) - n * interval '1 minute', id, 1,
       '{"run": [0.2, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]}', 0, 0
  FROM generate_series(1, %s) AS n, durable_tasks_metric_series
"""


@pytest.fixture
def week() -> Iterator[None]:
    """Insert a count of each series for each minute."""
    keys = (
        SeriesKey(MetricKind.ATTEMPT, 0, f"queue{n}", f"task{n}", "SUCCESS") for n in range(SERIES)
    )
    MetricSeries.objects.unguarded().bulk_create(
        MetricSeries(pk=key.digest(), **key._asdict()) for key in keys
    )
    with connection.cursor() as cursor:
        cursor.execute(_MINUTES, [MINUTES])
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE durable_tasks_metric_minute, durable_tasks_metric_series")
    yield
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE durable_tasks_metric_minute, durable_tasks_metric_series")


def _read(period: str, queue: str = "") -> Touched:
    now = database_now()
    return touched_by(
        lambda: read_points(ending_series(None).selected(queue, ""), PERIODS[period], now)
    )


def _total(data: ChartData) -> int:
    return sum(point.numbers.get("SUCCESS", 0) for point in data.points)


def test_the_chart_of_one_queue_reads_the_rows_of_its_series(week: None) -> None:
    found = _read("7d", "queue7")
    assert _total(found.result) == MINUTES
    assert not found.whole, found
    assert found.pages < MINUTES * 1.2 + 100, found  # each row is on another page


def test_the_chart_of_an_hour_reads_the_rows_of_the_hour(week: None) -> None:
    found = _read("1h")
    assert _total(found.result) == 59 * SERIES
    assert not found.whole, found
    assert found.pages < 59 * SERIES, found


def test_a_period_with_too_many_rows_reads_as_many_as_the_limit(
    week: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 10 * SERIES
    monkeypatch.setattr(chart_points, "row_limit", lambda: limit)
    found = _read("7d")
    assert found.result.is_cut
    assert _total(found.result) == limit
    assert not found.whole, found
    assert found.pages < 2 * limit, found
