"""Charts are well-formed SVG with a title, a description and a tooltip for each point."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from django_durable_tasks.contrib.metrics.admin import (
    HEIGHT,
    LINE_COLOURS,
    PANEL,
    STATUS_COLOURS,
    WIDTH,
    ChartFrame,
    ChartSeries,
    lines,
    seconds,
    stacked_bars,
    swatch,
)
from tests.unit.diagrams.graphs import contrast

EVIL = "</title><script>alert(1)</script>\"'"
FRAME = ChartFrame("k", "Title", "What is shown.", ["10:00", "10:01", "10:02"], [(0, "10:00")])
SVG = "{http://www.w3.org/2000/svg}"


def _read(svg: str) -> ET.Element:
    return ET.fromstring(svg)


def _bars(svg: str) -> list[dict[str, float]]:
    found = _read(svg).iterfind(f"{SVG}g/{SVG}rect")
    return [{key: float(one.attrib[key]) for key in ("x", "y", "height")} for one in found]


def _rows(*values: list[float | None]) -> list[ChartSeries]:
    return [ChartSeries(f"row{n}", LINE_COLOURS[n], one) for n, one in enumerate(values)]


@pytest.mark.parametrize("draw", [stacked_bars, lines])
def test_a_chart_has_a_title_a_description_and_tooltips(draw) -> None:  # type: ignore[no-untyped-def]
    root = _read(draw(FRAME, _rows([1, 2, None], [None, 4, None])))
    assert root.attrib["role"] == "img"
    assert root.find(f"{SVG}title[@id='{root.attrib['aria-labelledby']}']").text == "Title"  # type: ignore[union-attr]
    described = root.find(f"{SVG}desc[@id='{root.attrib['aria-describedby']}']")
    assert described is not None
    assert described.text == "What is shown."
    tooltips = [str(one.text) for one in root.iter(f"{SVG}title")][1:]
    assert [one[:6] for one in tooltips] == ["10:00:", "10:01:"]


def test_bars_are_stacked_without_gaps_inside_the_plot() -> None:
    lower, other, upper = _bars(stacked_bars(FRAME, _rows([3, 1, 0], [1, 0, 0])))[:3]
    first, second = sorted((lower, other), key=lambda bar: -bar["y"])
    assert first["x"] == second["x"]
    assert first["y"] == pytest.approx(second["y"] + second["height"])
    assert first["height"] == pytest.approx(3 * second["height"], abs=0.1)
    assert upper["x"] > first["x"]
    assert all(0 <= bar["y"] <= bar["y"] + bar["height"] <= HEIGHT for bar in (lower, other, upper))


def test_a_line_has_a_gap_where_there_is_no_value() -> None:
    root = _read(lines(FRAME, _rows([0.1, None, 10.0])))
    (path,) = (one.attrib["d"] for one in root.iterfind(f"{SVG}g/{SVG}path"))
    assert path.count("M") == 2
    assert "L" not in path
    first, last = (float(one.attrib["cy"]) for one in root.iter(f"{SVG}circle"))
    assert last < first


@pytest.mark.parametrize("value", [0.0, 0.0001, 0.003, 7.0, 3_600.0, 1e9])
def test_every_duration_is_drawn_inside_the_chart(value: float) -> None:
    root = _read(lines(FRAME, _rows([value, value, value])))
    for circle in root.iter(f"{SVG}circle"):
        assert 0 <= float(circle.attrib["cy"]) <= HEIGHT
        assert 0 <= float(circle.attrib["cx"]) <= WIDTH


@pytest.mark.parametrize("value", [0.0, 1e-9, 0.3, 1.0, 99.0, 12_345.0, 1e12])
def test_every_number_is_drawn_inside_the_chart(value: float) -> None:
    for bar in _bars(stacked_bars(FRAME, _rows([value, None, value]))):
        assert bar["height"] >= 0
        assert 0 <= bar["y"] <= bar["y"] + bar["height"] <= HEIGHT


def test_foreign_text_is_escaped_and_no_script_or_style_is_written() -> None:
    frame = ChartFrame("k", EVIL, EVIL, [EVIL], [(0, EVIL)])
    for drawn in (
        stacked_bars(frame, [ChartSeries(EVIL, "#000", [1.0])]),
        lines(frame, [ChartSeries(EVIL, "#000", [1.0])]),
    ):
        assert "<script" not in drawn
        assert "style" not in drawn
        _read(drawn)


def test_the_colours_have_enough_contrast_to_the_background() -> None:
    for status, colour in STATUS_COLOURS.items():
        least = 2.5 if status == "SKIPPED" else 3.0  # a quiet colour beside the others
        assert contrast(colour, PANEL) >= least, status
    assert all(contrast(colour, PANEL) >= 3 for colour in LINE_COLOURS)
    assert len(set(STATUS_COLOURS.values())) == len(STATUS_COLOURS)


def test_durations_are_written_in_the_unit_that_suits_them() -> None:
    given = (None, 0.0042, 0.5, 1.5, 61.0, 600.0)
    assert [seconds(value) for value in given] == [
        "-",
        "4.2 ms",
        "500 ms",
        "1.5 s",
        "61 s",
        "10 min",
    ]


def test_the_square_of_a_legend_is_hidden_from_screen_readers() -> None:
    assert _read(swatch("#123456")).attrib["aria-hidden"] == "true"
