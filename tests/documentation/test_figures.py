"""The figures of the README equal the recorded JSON files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from docs import figures


def test_the_readme_shows_the_recorded_figures() -> None:
    page = figures.README.read_text(encoding="utf-8")
    assert page == figures.updated(page), "README.md is outdated: run `python -m docs.figures`"


def test_a_recorded_figure_that_changes_makes_the_readme_outdated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = figures.README.read_text(encoding="utf-8")
    recorded = json.loads(figures.BENCHMARKS.read_text(encoding="utf-8"))
    recorded["throughput"]["rows"][0]["per_second"][0] += 1
    other = tmp_path / "recorded.json"
    other.write_text(json.dumps(recorded), encoding="utf-8")
    monkeypatch.setattr(figures, "BENCHMARKS", other)
    assert page != figures.updated(page)


def test_a_page_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="figures:begin"):
        figures.updated("# A page\n")
