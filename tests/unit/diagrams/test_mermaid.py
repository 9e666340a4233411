"""Mermaid shows the same nodes and edges as the other formats."""

from __future__ import annotations

import re

from hypothesis import given, settings

from django_durable_tasks.contrib.diagrams.layout import outlined
from django_durable_tasks.workflows.diagrams import Diagram, draw
from tests.unit.diagrams.graphs import diagram, diagrams, node
from tests.unit.diagrams.test_formats import DIAMOND


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
