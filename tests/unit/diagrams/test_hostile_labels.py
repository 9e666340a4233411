"""Labels are foreign text, which every format must escape."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from django_durable_tasks.contrib.diagrams.drawings import as_svg, ems
from django_durable_tasks.workflows.diagrams import (
    FILE_FORMATS,
    Diagram,
    DiagramEdge,
    DiagramNode,
    clean,
    columns,
    draw,
    natural,
    safe_link,
    shortened,
)
from tests.unit.diagrams.graphs import diagram, node

HOSTILE = (
    "<script>alert(1)</script>",
    "</title><script>alert(1)</script>",
    "]]><svg onload=alert(1)>",
    "'\"><img src=x onerror=alert(1)>",
    "&lt;b&gt; &amp; &#x3c;",
    '"]; click n0 href "javascript:alert(1)"',
    '%%{init: {"securityLevel": "loose"}}%%',
    "`markdown` **bold**",
    "1. list",
    "end",
    '"; } digraph evil {',
    "\\N \\G \\",
    "a\nb\r\nc\u2028d",
    "\x00\x07\x1b[31mred\x1b]8;;http://evil\x07\x9b1m",
    "\ud800 lone \udfff \ufffe\uffff",
    "\u202egnp.exe\u2066",
    "---\ntitle: other\n---",
    "",
    "\t \n",
    "x" * 100_000,
    "字" * 5_000,
)
HREFS = (
    "javascript:alert(1)",
    "JaVaScRiPt:alert(1)",
    " javascript:alert(1)",
    "java\nscript:alert(1)",
    "java\tscript:x",
    "\x01javascript:alert(1)",
    "data:text/html,<script>alert(1)</script>",
    "vbscript:x",
    "blob:x",
    "file:///etc/passwd",
    "\\\\evil\\x",
    "/\\evil",
    "javascript&colon;alert(1) x",
    "\u202e/x",
)
_TAGS = {"svg", "title", "desc", "g", "rect", "path", "text", "a"}


def _everywhere(text: str, href: str = "") -> Diagram:
    """Return a diagram that contains the text at every place of foreign text."""
    nodes = tuple(
        DiagramNode(
            id=known,
            label=text,
            status=status,
            name=text,
            reason=text,
            group=f"{text}/{text}",
            href=href,
        )
        for known, status in (
            ("a" + text, "SUCCESS"),
            ("b" + text, "FAILED"),
            ("c" + text, "SUCCESS"),
        )
    )
    edges = (
        DiagramEdge(source="a" + text, target="b" + text, kind="MUST_SUCCEED", outcome=text),
        DiagramEdge(source="b" + text, target="a" + text, kind="MUST_FINISH", outcome=text),
        DiagramEdge(source="gone" + text, target="c" + text, kind="MUST_FAIL", outcome=text),
    )
    return Diagram(title=text, status=text, nodes=nodes, edges=edges)


def _expect_plain_svg(of: Diagram) -> None:
    root = ET.fromstring(as_svg(of, with_style=False))
    for found in root.iter():
        assert found.tag.removeprefix("{http://www.w3.org/2000/svg}") in _TAGS
        assert not [
            name for name in found.attrib if name.startswith("on") or name in {"style", "id"}
        ]
        assert re.fullmatch("(?:dg[a-z-]* ?)*", found.get("class", ""))


def _expect_plain_mermaid(of: Diagram) -> None:
    lines = draw(of, "mermaid").splitlines()
    quoted = r'"[\w \-.,:/()×…→·–#;]*(?:<br/>[\w \-.,:/()×…→·–#;]*)?"'
    allowed = (
        "---",
        "flowchart (?:LR|TB)",
        r'title: "[^"<>%{}`]*(?:\\"[^"<>%{}`]*)*"',
        " +%% [^%{}<>]*",
        " *end",
        rf" +n\d+\[{quoted}\]:::[a-z]+",
        rf" +subgraph g\d+\[{quoted}\]",
        r"  n\d+ (?:-->|-\.->|--x)(?:\|[a-z0-9, ]+\|)? n\d+",
        r"  linkStyle [\d,]+ stroke:#[0-9a-f]{6},stroke-width:\dpx",
        r"  classDef [a-z]+ [a-z:#0-9,-]+",
        r"  class [n\d,]+ critical",
        r'  click n\d+ href "[^"<>\s\\]+"',
    )
    assert not [line for line in lines if not re.fullmatch("|".join(allowed), line)]


def _expect_plain(text: str) -> None:
    """Check the diagram that contains the text everywhere, in each format."""
    of = _everywhere(text)
    _expect_plain_svg(of)
    _expect_plain_mermaid(of)
    drawn = draw(of, "text")
    assert not re.search(
        "[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]", drawn
    )
    assert sum(line.startswith("┌─ layer") for line in drawn.splitlines()) == 2
    drawn = draw(of, "json")
    assert drawn.isascii()
    assert not set("<>&") & set(drawn)
    assert json.loads(drawn)["nodes"][0]["label"] == text


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_is_escaped(text: str) -> None:
    _expect_plain(text)


@given(
    st.text(
        st.characters(exclude_categories=()) | st.sampled_from("<>&\"'\\`%{}[]#;\n\x1b"),
        max_size=40,
    )
)
@settings(deadline=None)
def test_any_text_is_escaped(text: str) -> None:
    _expect_plain(text)


@pytest.mark.parametrize("known", FILE_FORMATS)
def test_a_label_is_shown_as_it_was_written(known: str) -> None:
    drawn = draw(diagram([node("a", label="a < b & c")]), known)
    shown = {
        "text": "a < b & c",
        "mermaid": "a #60; b #38; c",
        "svg": "a &lt; b &amp; c",
        "json": "a \\u003c b \\u0026 c",
    }
    assert shown[known] in drawn


@pytest.mark.parametrize("href", HREFS, ids=range(len(HREFS)))
def test_a_link_with_an_unsafe_scheme_is_dropped(href: str) -> None:
    assert safe_link(href) == ""
    drawn = {known: draw(_everywhere("x", href), known) for known in FILE_FORMATS}
    assert "<a " not in drawn["svg"]
    assert "click" not in drawn["mermaid"]
    assert {kept["href"] for kept in json.loads(drawn["json"])["nodes"]} == {""}


@pytest.mark.parametrize(
    "href", ["/tasks/1/", "tasks/1?a=b:c", "?id=1", "#n1", "https://example.org/x", "HTTP://x/"]
)
def test_a_plain_link_is_kept(href: str) -> None:
    of = diagram([node("a", href=href)])
    root = ET.fromstring(draw(of, "svg"))
    assert [found.get("href") for found in root.iter("{http://www.w3.org/2000/svg}a")] == [href]
    assert root.get("role") == "group"
    assert f'href "{href}"' in draw(of, "mermaid")


def test_quotes_in_a_link_are_escaped() -> None:
    of = diagram([node("a", href="/x?\"><script>'`")])
    _expect_plain_svg(of)
    _expect_plain_mermaid(of)


def test_a_collapsed_box_of_hostile_names_is_escaped() -> None:
    of = diagram([node(f"n{at}", name="<b>\"'%%{") for at in range(300)])
    _expect_plain_svg(of)
    _expect_plain_mermaid(of)


@given(st.text(max_size=60), st.integers(1, 40))
def test_shortened_text_fits_and_keeps_both_ends(text: str, room: int) -> None:
    assert ems(shortened(clean(text), room, ems)) <= max(room, 2.1)
    assert columns(shortened(clean(text), room)) <= max(room, 3)
    cut = shortened("begin" + "x" * 200 + "end", 20)
    assert len(cut) == 20
    assert cut.startswith("begin")
    assert cut.endswith("end")


@given(st.text(), st.text())
def test_any_two_labels_can_be_sorted(one: str, other: str) -> None:
    assert natural(one) <= natural(other) or natural(other) <= natural(one)


def test_only_a_bounded_depth_of_sub_workflows_is_framed() -> None:
    deep = DiagramNode(
        id="a", label="a", status="SUCCESS", group="/".join(f"g{at}" for at in range(5_000))
    )
    of = replace(diagram("b"), nodes=(deep,))
    assert draw(of, "mermaid").count("subgraph ") == 6
    _expect_plain_svg(of)
