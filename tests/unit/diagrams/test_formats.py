"""Every format shows the same nodes and edges of a graph, in its own vocabulary."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from django_durable_tasks.choices import Status
from django_durable_tasks.contrib.diagrams import drawings, layout
from django_durable_tasks.contrib.diagrams.layout import outlined
from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.workflows import diagrams as formats
from django_durable_tasks.workflows.diagrams import (
    FILE_FORMATS,
    KINDS,
    SIGNS,
    Diagram,
    DiagramEdge,
    DiagramNode,
    as_json,
    as_text,
    columns,
    draw,
)
from tests.unit.diagrams.graphs import (
    START,
    STATUSES,
    contrast,
    diagram,
    diagrams,
    edge,
    node,
    parallel_chains,
)

SVG = "{http://www.w3.org/2000/svg}"


EVERY_STATUS = diagram([node(f"is {status.lower()}", status) for status in STATUSES])


DIAMOND = diagram(
    [
        node("a", seconds=1),
        node("b", "FAILED", 8, reason="no route"),
        node("c", "RUNNING"),
        node("d", "BLOCKED"),
    ],
    [
        edge("a>b"),
        edge("a>c"),
        edge("b>d", "MUST_FAIL"),
        edge("c>d", "MUST_FINISH", resolved=False),
    ],
)


def _texts(svg: str) -> list[str]:
    return [found.text or "" for found in ET.fromstring(svg).iter(f"{SVG}text")]


def _titles(svg: str) -> list[str]:
    return [found.text or "" for found in ET.fromstring(svg).iter(f"{SVG}title")]


def test_an_unknown_format_names_the_nearest() -> None:
    with pytest.raises(InvalidOption, match=r"format='mermade'.*Did you mean 'mermaid'\?"):
        draw(DIAMOND, "mermade")
    with pytest.raises(InvalidOption, match=r"format='png'.*text, mermaid, svg, json"):
        draw(DIAMOND, "png")


@pytest.mark.parametrize("known", ["svg", "mermaid"])
def test_without_the_optional_app_the_error_names_it(
    known: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "FORMATS", {"text": as_text, "json": as_json})
    with pytest.raises(InvalidOption, match=r"contrib\.diagrams' to INSTALLED_APPS"):
        draw(DIAMOND, known)


@pytest.mark.parametrize(
    "make", [lambda: node("a", "DONE"), lambda: edge("a>b", "MUST"), lambda: diagram("a a")]
)
def test_an_invalid_diagram_is_refused_with_the_field(make: Callable[[], object]) -> None:
    with pytest.raises(
        InvalidOption, match=r"status='DONE'|kind='MUST'|id 'a' is given more than once"
    ):
        make()


@given(diagrams(cycles=True), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_the_order_of_the_input_changes_nothing(of: Diagram, chance: random.Random) -> None:
    nodes, edges = list(of.nodes), list(of.edges)
    chance.shuffle(nodes)
    chance.shuffle(edges)
    shuffled = replace(of, nodes=tuple(nodes), edges=tuple(edges))
    for known in FILE_FORMATS:
        assert draw(of, known) == draw(shuffled, known)


@pytest.mark.parametrize("known", FILE_FORMATS)
def test_an_empty_graph_is_drawn(known: str) -> None:
    assert "nightly" in draw(diagram(""), known)


@pytest.mark.parametrize("known", [known for known in FILE_FORMATS if known != "json"])
def test_a_cycle_is_reported(known: str) -> None:
    assert "cycle" in draw(diagram("a b", "a>b b>a"), known)


@pytest.mark.parametrize("known", [known for known in FILE_FORMATS if known != "json"])
def test_every_status_is_shown_as_a_word_and_not_only_as_a_color(known: str) -> None:
    drawn = draw(EVERY_STATUS, known)
    assert all(re.search(rf"\b{status}\b", drawn) for status in STATUSES)


@given(diagrams(cycles=True))
@settings(deadline=None)
def test_json_contains_every_node_and_every_edge(of: Diagram) -> None:
    found = json.loads(draw(of, "json"))
    assert sorted(kept["id"] for kept in found["nodes"]) == sorted(known.id for known in of.nodes)
    assert len(found["edges"]) == len(of.edges)
    assert [kept["id"] for kept in found["nodes"]] == [
        known for row in found["layers"] for known in row
    ]
    assert sum(found["counts"].values()) == len(of.nodes)
    layer = {kept["id"]: kept["layer"] for kept in found["nodes"]}
    assert all(
        layer[kept["source"]] < layer[kept["target"]]
        for kept in found["edges"]
        if not kept["broken"]
    )


TWO_NODES = Diagram(
    title="t",
    status="RUNNING",
    nodes=(
        DiagramNode(
            id="a",
            label="A",
            status="SUCCESS",
            name="jobs.a",
            started_at=START,
            completed_at=START,
            group="g/h",
        ),
        DiagramNode(id="b", label="B", status="BLOCKED", reason="waits", href="/tasks/b"),
    ),
    edges=(
        DiagramEdge(source="a", target="b", kind="MUST_FINISH", resolved=True, outcome="SUCCESS"),
        DiagramEdge(source="gone", target="b", kind="MUST_SUCCEED"),
    ),
)


def test_json_conforms_to_its_schema() -> None:
    kept = json.loads((Path(__file__).parent / "schema.json").read_text(encoding="utf-8"))
    assert json.loads(draw(TWO_NODES, "json")) == kept


def test_text_lists_layer_by_layer() -> None:
    assert draw(DIAMOND, "text").splitlines() == [
        "nightly · RUNNING",
        "4 tasks in 3 layers: 1 BLOCKED, 1 RUNNING, 1 SUCCESS, 1 FAILED",
        "* Critical path: a → b → d (9 s)",
        "",
        "┌─ layer 1 · 1 task " + "─" * 80,
        "│ ✓* a" + " " * 71 + "SUCCESS    1 s",
        "",
        "┌─ layer 2 · 2 tasks " + "─" * 79,
        "│ ✗* b" + " " * 71 + "FAILED     8 s",
        "│     └ after ✓ a",
        "│     because: no route",
        "│ ►  c" + " " * 71 + "RUNNING",
        "│     └ after ✓ a",
        "",
        "┌─ layer 3 · 1 task " + "─" * 80,
        "│ ◇* d" + " " * 71 + "BLOCKED",
        "│     ├ waits for ► c (MUST_FINISH)",
        "│     └ after ✗ b (MUST_FAIL)",
    ]


@given(diagrams(cycles=True))
@settings(deadline=None)
def test_text_fits_a_terminal_of_a_hundred_columns(of: Diagram) -> None:
    wide = [
        replace(known, label=known.label * 40 + "宽" * 60, reason="because " * 40)
        for known in of.nodes
    ]
    assert all(
        columns(line) <= 100 for line in draw(replace(of, nodes=tuple(wide)), "text").splitlines()
    )


def test_every_status_has_its_own_character_and_its_own_icon() -> None:
    assert (
        len(set(SIGNS.values()))
        == len({look.path for look in drawings.STYLES.values()})
        == len(Status)
    )
    assert all(columns(sign) == 1 for sign in SIGNS.values())


def test_every_kind_of_edge_has_its_own_dash_pattern() -> None:
    assert len({*drawings.DASHES.values(), drawings.BROKEN_DASHES}) == len(KINDS) + 1


def _palettes() -> dict[str, dict[str, str]]:
    """Return the colours of both themes, those of a status as ``failed strong``."""
    light = dict(drawings.LIGHT)
    for status, look in drawings.STYLES.items():
        light |= {f"{status.lower()} {name}": getattr(look, name) for name in _OF_STATUS}
    sheet = drawings.as_svg(DIAMOND).partition("</style>")[0]
    dark = dict(re.findall(r"\n    --dg-([a-z-]+): (#\w{6});", sheet))
    for status, colours in re.findall(r"\.dg-([a-z]+) \{ (--[^}]+)\}", sheet):
        found = re.findall(r"--dg-([a-z]+): (#\w{6})", colours)
        dark |= {f"{status} {name}": colour for name, colour in found}
    return {"light": light, "dark": dark}


_OF_STATUS = ("strong", "soft", "text")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_and_lines_have_contrast_in_each_theme(theme: str) -> None:
    colours = _palettes()[theme]
    assert colours.keys() == _palettes()["light"].keys()
    texts = [(f"{status.lower()} text", f"{status.lower()} soft") for status in Status]
    texts += [("ink", f"{status.lower()} soft") for status in Status]
    texts += [("icon", f"{status.lower()} strong") for status in Status]
    texts += list(product(("ink", "quiet", "warning"), ("panel", "frame")))
    lines = [(f"{status.lower()} strong", "panel") for status in Status]
    lines += list(product(("line", "critical", "broken"), ("panel", "frame")))
    lines += [("frame-edge", "panel")]
    for least, pairs in ((4.5, texts), (3, lines)):
        assert not [pair for pair in pairs if contrast(*(colours[name] for name in pair)) < least]
    assert contrast("#ffffff", "#000000") == 21


def test_each_colour_of_a_drawing_has_a_rule_in_the_style_sheet() -> None:
    svg = draw(EVERY_STATUS, "svg") + draw(DIAMOND, "svg") + draw(parallel_chains(300, 2), "svg")
    svg += draw(replace(TWO_NODES, edges=()), "svg") + draw(diagram("a b", "a>b b>a"), "svg")
    sheet, _, drawn = svg.partition("</style>")
    used = {name for classes in re.findall(r'class="([^"]+)"', drawn) for name in classes.split()}
    assert {f".{name}" for name in used} <= set(re.findall(r"\.dg[a-z-]*", sheet))


def test_the_page_of_a_site_links_the_style_sheet() -> None:
    html = drawings.as_html(DIAMOND)
    assert html.startswith(
        '<link rel="stylesheet" href="/static/django_durable_tasks/diagrams.css"'
    )
    assert "<style" not in html


def test_a_state_is_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = draw(DIAMOND, "svg")
    monkeypatch.setattr(layout, "laid_out", None)
    assert draw(replace(DIAMOND), "svg") is drawn
    with pytest.raises(TypeError):
        draw(replace(DIAMOND, status="SUCCESS"), "svg")


@given(diagrams(cycles=True))
@settings(deadline=None)
def test_svg_is_xml_and_shows_every_box(of: Diagram) -> None:
    svg = draw(of, "svg")
    labels = [
        text
        for text in _texts(svg)
        if text in {"page 9", "page 10", "extract"} or re.fullmatch(r"n\d+", text)
    ]
    assert sorted(labels) == sorted(known.label for known in of.nodes)


def test_svg_has_a_legend_of_exactly_what_occurs() -> None:
    texts = _texts(draw(DIAMOND, "svg"))
    for word in ("SUCCESS", "FAILED", "RUNNING", "BLOCKED"):
        assert texts.count(word) == 2
    assert {
        "MUST_SUCCEED",
        "MUST_FINISH",
        "MUST_FAIL",
        "critical path",
        "resolved",
        "not yet",
    } <= set(texts)
    assert not {"SKIPPED", "closes a cycle"} & set(texts)


def test_svg_has_tooltips_with_details_and_labels_for_screen_readers() -> None:
    root = ET.fromstring(draw(DIAMOND, "svg"))
    assert root.get("role") == "img"
    described = root.find(f"{SVG}desc")
    assert described is not None
    assert (
        described.text
        == "RUNNING. 4 tasks in 3 layers: 1 BLOCKED, 1 RUNNING, 1 SUCCESS, 1 FAILED. Critical path:"
        " a → b → d (9 s)."
    )
    titles = _titles(draw(DIAMOND, "svg"))
    assert titles[0] == "nightly"
    assert "b\nFAILED: no route\ntook 8 s\non the critical path" in titles
    assert "c → d\nMUST_FINISH: not resolved yet" in titles


def test_svg_draws_the_kind_as_dashes_and_unmet_edges_with_a_hollow_arrow_head() -> None:
    found = {}
    for group in ET.fromstring(draw(DIAMOND, "svg")).iter(f"{SVG}g"):
        title = group.findtext(f"{SVG}title", "")
        if "→" in title:
            curve, head = group.findall(f"{SVG}path")
            found[title.splitlines()[0]] = (
                curve.get("stroke-dasharray"),
                head.get("fill") == drawings.LIGHT["panel"],
            )
    dashes = drawings.DASHES
    assert found == {
        "a → b": (None, False),
        "a → c": (None, False),
        "b → d": (dashes["MUST_FAIL"], False),
        "c → d": (dashes["MUST_FINISH"], True),
    }


def test_svg_needs_no_scripts_or_external_resources_and_only_its_style_sheet() -> None:
    svg = draw(parallel_chains(300, 2), "svg")
    assert "url(" not in svg
    assert "@import" not in svg
    root = ET.fromstring(svg)
    assert {found.tag.removeprefix(SVG) for found in root.iter()} <= {
        "svg",
        "style",
        "title",
        "desc",
        "g",
        "rect",
        "path",
        "text",
    }
    names = {name for found in root.iter() for name in found.attrib}
    assert not [name for name in names if name == "style" or name == "id" or name.startswith("on")]


def test_a_collapsed_box_shows_how_many_tasks_have_which_status() -> None:
    nodes = [
        node(f"p{at}", "FAILED" if at < 34 else "SUCCESS", name="jobs.page") for at in range(1_234)
    ]
    svg = draw(diagram(nodes), "svg")
    assert {"page × 1,234", "1,200", "34"} <= set(_texts(svg))
    assert any("1,200 SUCCESS\n34 FAILED" in title for title in _titles(svg))


# Mermaid shows the same nodes and edges as the other formats.


@given(diagrams(cycles=True))
@settings(deadline=None)
def test_mermaid_contains_every_node_and_edge(of: Diagram) -> None:
    outline = outlined(of)
    lines = draw(of, "mermaid").splitlines()
    arrows = [
        re.fullmatch(r"  (n\d+) (?:-->|-\.->|--x)(?:\|[a-z0-9, ]+\|)? (n\d+)", line)
        for line in lines
    ]
    assert sorted((a[1], a[2]) for a in arrows if a) == sorted(
        (f"n{line.source}", f"n{line.target}") for line in outline.lines
    )
    boxes = [line for line in lines if re.fullmatch(r' +n\d+\["[^"]*"\]:::[a-z]+', line)]
    assert len(boxes) == len(outline.boxes) == len(of.nodes)
    assert sum(line.strip() == "end" for line in lines) == sum(
        line.strip().startswith("subgraph") for line in lines
    )


def test_every_sub_workflow_is_one_subgraph_around_its_nodes() -> None:
    inner = [node("in", group="a/b"), node("beside", group="a"), node("out")]
    lines = draw(diagram(inner, "in>beside beside>out out>out"), "mermaid").splitlines()
    shown = [line for line in lines if re.match(r" +(n\d+\[|subgraph |end$)", line)]
    assert [line.split("<br/>")[0] for line in shown] == [
        '  n2["out',
        '  subgraph g1["a"]',
        '    n1["beside',
        '    subgraph g2["b"]',
        '      n0["in',
        "    end",
        "  end",
    ]


def test_each_kind_has_its_arrow() -> None:
    arrows = re.findall(r"n\d+ (-->|-\.->|--x)", draw(DIAMOND, "mermaid"))
    assert sorted(arrows) == ["-->", "-->", "--x", "-.->"]


def test_mermaid_has_a_class_for_each_status_and_links_if_given() -> None:
    of = diagram([node("a", href="/tasks/1?x=y"), node("b", "FAILED", group="part")], "a>b")
    lines = [line.strip() for line in draw(of, "mermaid").splitlines()]
    assert lines[:4] == ["---", 'title: "nightly \\u00b7 RUNNING"', "---", "flowchart LR"]
    assert 'n0["a<br/>SUCCESS"]:::success' in lines
    assert 'subgraph g1["part"]' in lines
    assert "classDef failed fill:#fef2f2,stroke:#b91c1c,color:#7f1d1d" in lines
    assert 'click n0 href "/tasks/1?x=y"' in lines
