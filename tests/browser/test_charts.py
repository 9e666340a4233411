"""The charts in a real browser, under the strict policy: drawn, filtered, and readable as a table."""

from __future__ import annotations

from datetime import timedelta

import pytest

from django_durable_tasks.store.clock import database_now
from tests.browser.conftest import Visit
from tests.database.metrics.counting import a_minute

pytestmark = pytest.mark.timeout(300)

CHARTS = "/admin/durable_tasks_metrics/metricminute/"


def test_an_operator_sees_the_charts_of_a_queue_and_their_values(
    visit: Visit,
) -> None:
    now = database_now()
    for ago in range(1, 50):
        a_minute(now - timedelta(minutes=ago), 20 + ago % 7, seconds=0.08 * (1 + ago % 5))
        a_minute(now - timedelta(minutes=ago), ago % 3, status="FAILED", seconds=2.0)
    a_minute(now - timedelta(minutes=5), 7, queue="bulk", seconds=40.0)
    visit.log_in()
    visit.console_errors()
    visit.go(CHARTS)
    visit.shows("Endings per minute")
    assert visit.console_errors() == []
    drawing = visit.find(".durable-chart svg")
    assert drawing.size["width"] > 600
    assert drawing.size["height"] > 150
    visit.find("#durable-queue option[value='bulk']").click()
    visit.press("Show")
    visit.shows("SUCCESS 7")
    assert "FAILED" not in visit.text()
    visit.find(".durable-charts .durable-fold summary").click()
    assert visit.find(".durable-values caption").is_displayed()
    visit.follow("24 hours")
    visit.shows("SUCCESS 7")
    assert "queue=bulk" in visit.chrome.current_url
    assert visit.console_errors() == []
