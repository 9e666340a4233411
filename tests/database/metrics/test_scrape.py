"""What Prometheus scrapes: valid text, right values, few queries, closed by default."""

from __future__ import annotations

import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)
from prometheus_client.parser import text_string_to_metric_families

from django_durable_tasks.choices import Status
from django_durable_tasks.contrib.metrics import counts, exposition
from django_durable_tasks.contrib.metrics.exposition import MetricsServer
from django_durable_tasks.models import Limit, NodeKind, SchedulerLease, Task
from django_durable_tasks.states import endings
from tests.database.api.client import SETTINGS, a_client
from tests.database.metrics.counting import SETTLED_SOON, count_all
from tests.factories import a_log_row, a_node, a_task, a_tenant, many_tasks
from tests.process_state import count_endings, new_process_state

pytestmark = pytest.mark.django_db(transaction=True)
NAME = "tests.project.tasks.noop"
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@pytest.fixture(autouse=True)
def counted(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Count endings without an attempt, settle minutes soon, and open the API."""
    monkeypatch.setattr(counts, "DELAYS", SETTLED_SOON)
    settings.DURABLE_TASKS = dict(SETTINGS)
    count_endings()


def _rows() -> None:
    """Create rows of every kind that the metrics describe, and count them."""
    SchedulerLease.objects.filter(pk="leader").update(term=7, expires_at="2100-01-01T00:00:00Z")
    a_node(NodeKind.SCHEDULER, skew=-0.25)
    a_node(draining=True)
    Limit.objects.create(scope="queue:test", max_concurrency=5, set_at="2026-01-01T00:00:00Z")
    task = a_task(Status.SUCCESS)
    many_tasks(2, Status.FAILED)
    a_log_row(task, "RETRY")
    a_log_row(task, "FENCED")
    many_tasks(3, due=-100)
    a_task(Status.QUEUED)
    a_task(Status.RUNNING, weight=2)
    endings.skip(Task.objects.filter(pk=a_task(queue='odd "name"\n\\').pk), "test")
    count_all()


_families: Any = text_string_to_metric_families


def _samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in _families(text)
        for sample in family.samples
    }


def _scraped() -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    new_process_state()
    return _samples(exposition.written("")[0].decode())


def _labels(**labels: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(labels.items()))


def test_the_values_are_those_of_the_tables() -> None:
    _rows()
    found = _scraped()
    test = {"queue": "test", "task": NAME}
    assert found["durable_tasks_executed_total", _labels(**test, status="FAILED")] == 2
    assert found["durable_tasks_failed_total", _labels(**test)] == 2
    assert found["durable_tasks_retried_total", _labels(**test)] == 1
    assert found["durable_tasks_refused_total", _labels(**test, status="FENCED")] == 1
    odd = {"queue": 'odd "name"\n\\', "task": NAME}
    assert found["durable_tasks_skipped_total", _labels(**odd, status="SKIPPED")] == 1
    assert found["durable_tasks_run_seconds_count", _labels(**test)] == 4
    assert found["durable_tasks_run_seconds_bucket", _labels(**test, le="+Inf")] == 4
    assert found["durable_tasks_run_seconds_bucket", _labels(**test, le="0.005")] == 1
    assert found["durable_tasks_queue_depth", _labels(queue="test", status="PENDING")] == 3
    assert found["durable_tasks_queue_depth", _labels(queue="test", status="QUEUED")] == 1
    assert found["durable_tasks_queue_depth", _labels(queue="test", status="RUNNING")] == 1
    assert found["durable_tasks_due", _labels(queue="test")] == 3
    assert found["durable_tasks_oldest_due_age_seconds", _labels(queue="test")] >= 100
    assert found["durable_tasks_leader", ()] == 1
    assert found["durable_tasks_leader_term", ()] == 7
    assert found["durable_tasks_nodes", _labels(kind="WORKER", state="draining")] == 1
    assert found["durable_tasks_clock_skew_seconds", _labels(kind="SCHEDULER")] == -0.25
    assert found["durable_tasks_limit_used", _labels(scope="queue:test")] == 3
    assert found["durable_tasks_limit_max", _labels(scope="queue:test")] == 5
    assert found["durable_tasks_open_dead_letters", ()] == 2
    assert 600 <= found["durable_tasks_settled_age_seconds", ()] < 800


def test_the_text_is_valid() -> None:
    _rows()
    text, content_type = exposition.written("")
    assert content_type.startswith("text/plain; version=0.0.4")
    assert len(_samples(text.decode())) > 30
    openmetrics, content_type = exposition.written(OPENMETRICS)
    assert content_type.startswith("application/openmetrics-text")
    parse: Any = openmetrics_families
    assert list(parse(openmetrics.decode()))
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    checked = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, timeout=60, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_a_scrape_needs_at_most_ten_queries_whatever_the_number_of_rows() -> None:
    _rows()
    new_process_state()
    with CaptureQueriesContext(connection) as queries:
        _scraped()
    assert len(queries) <= 10, [query["sql"][:80] for query in queries]


def test_the_values_are_read_once_for_many_requests() -> None:
    _rows()
    _scraped()
    with CaptureQueriesContext(connection) as queries:
        exposition.written("")
        exposition.written(OPENMETRICS)
    assert len(queries) == 0


def test_a_tenant_label_needs_the_setting(settings: Any) -> None:
    settings.DURABLE_TASKS = {"METRICS_TENANTS": True}
    tenant = a_tenant()
    a_task(Status.SUCCESS, tenant=tenant)
    count_all()
    labels = _labels(queue="test", task=NAME, status="SUCCESS", tenant=str(tenant.pk))
    assert _scraped()["durable_tasks_executed_total", labels] == 1
    settings.DURABLE_TASKS = {}
    labels = _labels(queue="test", task=NAME, status="SUCCESS")
    assert _scraped()["durable_tasks_executed_total", labels] == 1


# The endpoint -------------------------------------------------------------------------------------


def test_the_endpoint_needs_the_scope() -> None:
    count_all()
    tenant = a_tenant()
    allowed, other = a_client(tenant, "metrics"), a_client(tenant, "read")
    answer = allowed.get("/metrics", Accept="text/plain;version=0.0.4;q=0.5,*/*;q=0.1")
    assert (answer.status_code, answer["Content-Type"][:25]) == (200, "text/plain; version=0.0.4")
    assert "durable_tasks_leader" in answer.content.decode()
    assert answer["Cache-Control"] == "no-store"
    assert allowed.get("/metrics", Accept=OPENMETRICS).content.endswith(b"# EOF\n")
    assert other.get("/metrics").status_code == 403
    assert a_client(tenant).send("GET", "/metrics", Authorization="Bearer x").status_code == 401


# run_scheduler --metrics-port ---------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[str]:
    """Serve the metrics on a free port, and return the address."""
    found = MetricsServer("127.0.0.1", 0)
    found.start()
    yield f"http://127.0.0.1:{found.server_port}"
    found.stop()


def _status(address: str) -> int:
    try:
        with urllib.request.urlopen(address, timeout=20) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_the_port_of_a_scheduler_serves_the_metrics(server: str) -> None:
    _rows()
    new_process_state()
    with urllib.request.urlopen(f"{server}/metrics", timeout=20) as answer:
        samples = _samples(answer.read().decode())
    assert samples["durable_tasks_leader_term", ()] == 7
    assert _status(f"{server}/metrics?x=1") == 200
    assert _status(f"{server}/") == 404


@pytest.mark.parametrize("port", ["x", "70000", "-1", "1:2:x"])
def test_an_impossible_port_is_refused(port: str) -> None:
    with pytest.raises(CommandError, match="port"):
        call_command("run_scheduler", f"--metrics-port={port}")
