"""The figures of the README equal the recorded JSON files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from docs import bench, figures
from docs.charts import Bar, bar_chart
from tests.documentation.pages import DOCS


def test_the_readme_shows_the_recorded_figures() -> None:
    page = figures.README.read_text(encoding="utf-8")
    assert page == figures.updated(page), "README.md is outdated: run `python -m docs.figures`"


def test_a_recorded_figure_that_changes_makes_the_readme_outdated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = figures.README.read_text(encoding="utf-8")
    recorded = json.loads(figures.BENCHMARKS.read_text(encoding="utf-8"))
    recorded["prune"]["p50_ms"] += 1
    other = tmp_path / "recorded.json"
    other.write_text(json.dumps(recorded), encoding="utf-8")
    monkeypatch.setattr(figures, "BENCHMARKS", other)
    assert page != figures.updated(page)


def test_a_page_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="figures:begin"):
        figures.updated("# A page\n")


A_RUN = {
    "taken": "2026-11-25T10:00:00+00:00",
    "machine": {"cpu": "any", "cores": 2},
    "load": [0.1, 0.1, 0.1],
    "missing": {"oban": "needs Python 3.12"},
    "figures": [
        {
            "benchmark": "lag",
            "what": "due at 100/s",
            "peer": peer,
            "broker": broker,
            "n": 500,
            "seconds": 5.0,
            "per_second": 100.0,
            "ratio_to_ours": ratio,
            "facts": {"lag_p50_ms": lag / 2, "lag_p99_ms": lag},
        }
        for peer, broker, ratio, lag in (
            ("django-durable-tasks", "redis", 1.0, 12.5),
            ("a <peer>", None, 0.5, 120.0),
        )
    ],
}


def test_the_page_about_benchmarks_shows_the_recorded_run() -> None:
    page = bench.PAGE.read_text(encoding="utf-8")
    assert page == bench.updated(page, bench.recorded()), "run `python -m docs.figures`"


def test_a_run_becomes_tables_and_charts_that_name_what_was_not_measured() -> None:
    page = bench.updated(f"{bench.BEGIN}\n{bench.END}", A_RUN)
    assert (
        "| due at 100/s | a <peer> |  | 500 | 100 | 0.50 | lag p50 ms 60, lag p99 ms 120 |" in page
    )
    assert "Not measured: oban." in page
    assert "| 100/s | a <peer> | 60 | 120 |" in "\n".join(bench.summary(A_RUN))
    chart = ET.fromstring(bench.charts(A_RUN)["lag.svg"])
    texts = [element.text for element in chart.iter() if element.tag.endswith("text")]
    assert texts == [
        "lag, ms late, p99",
        "django-durable-tasks, due at 100/s, redis",
        "12",
        "a <peer>, due at 100/s",
        "120",
    ]


def test_a_chart_is_wide_enough_for_its_longest_label() -> None:
    label = "a peer, 100 due, 1,000,000 finished, 100,000 future, and more of it"
    chart = ET.fromstring(bar_chart("claim", "seconds", [Bar(label, 1.0), Bar("short", 2.0)]))
    texts = {element.text: element for element in chart.iter() if element.tag.endswith("text")}
    # The label ends at x. No sans-serif font has an average width of half its size or less.
    assert float(texts[label].attrib["x"]) >= 0.5 * 12 * len(label)


def test_without_a_recorded_run_the_page_says_how_to_record_one(tmp_path: Path) -> None:
    run = bench.recorded(tmp_path / "bench.json")
    assert run is None
    assert "make bench" in bench.block(run)
    assert bench.summary(run) == []


@pytest.mark.parametrize(
    ("page", "quoted"),
    [
        ("explanation/faq.md", "1,599 102,836 924 18,200 4,979"),
        ("explanation/when_not_to_use.md", "1.59 3.83 3.3 8.3 107"),
        ("how-to/troubleshoot.md", "33"),
    ],
)
def test_figures_that_other_pages_quote_are_those_of_the_benchmarks(page: str, quoted: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    recorded = (DOCS / "explanation" / "benchmarks.md").read_text(encoding="utf-8")
    for figure in quoted.split():
        whole = re.compile(rf"(?<![\d.,]){re.escape(figure)}(?![\d]|[.,]\d)")
        assert whole.search(text), f"{page} does not quote {figure} any more"
        assert whole.search(recorded), f"{page} quotes {figure}, which benchmarks.md does not have"
