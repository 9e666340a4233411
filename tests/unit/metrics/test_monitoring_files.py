"""The dashboard, the alert rules and the documentation name metrics that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from typing import Any

import pytest

from django_durable_tasks.contrib.metrics.exposition import Gauges, families
from tests.runs import ROOT

FOLDER = ROOT / "docs" / "monitoring"
DASHBOARD, RULES = FOLDER / "grafana_dashboard.json", FOLDER / "alert_rules.yml"
PAGE = ROOT / "docs" / "how-to" / "metrics.md"
_NAME = re.compile(r"durable_tasks_[a-z_]+")
_SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
EMPTY = Gauges(
    queues={},
    term=0,
    is_led=False,
    nodes={},
    skews={},
    clock_step=0.0,
    limits={},
    dead_letters=0,
    settled_age=0.0,
)


def _metrics() -> dict[str, str]:
    """Return the types of all metrics by name."""
    return {metric.name: metric.type for metric in families([], EMPTY, tenants=False)}


def _samples() -> set[str]:
    return {name + suffix for name, kind in _metrics().items() for suffix in _SUFFIXES[kind]}


def _panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return found


def test_the_dashboard_and_the_rules_use_metrics_that_exist() -> None:
    expressions = [target["expr"] for panel in _panels() for target in panel.get("targets", [])]
    assert len(expressions) > 20
    used = {name for text in (*expressions, RULES.read_text()) for name in _NAME.findall(text)}
    assert used <= _samples()
    assert {name for name in _metrics() if not any(one.startswith(name) for one in used)} == set()


def test_every_metric_is_documented() -> None:
    page = PAGE.read_text()
    for name, kind in _metrics().items():
        assert f"`{name}{'_total' if kind == 'counter' else ''}`" in page
    assert set(_NAME.findall(page)) <= _samples() | set(_metrics())


def test_the_dashboard_can_be_provisioned() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    assert dashboard["uid"] == "durable-tasks"
    assert "__inputs" not in dashboard
    kinds = {one["name"]: one["type"] for one in dashboard["templating"]["list"]}
    assert kinds["datasource"] == "datasource"
    ids = [panel["id"] for panel in _panels()]
    assert len(set(ids)) == len(ids)
    for panel in _panels():
        for target in panel.get("targets", []):
            assert target["datasource"]["uid"] == panel["datasource"]["uid"] == "${datasource}"


def test_the_alert_rules_are_valid() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    checked = subprocess.run(
        [promtool, "check", "rules", str(RULES)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
