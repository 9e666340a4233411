"""DOT and Mermaid show the same nodes and edges as the other formats."""

from __future__ import annotations

import re

from hypothesis import given, settings

from django_durable_tasks.diagrams import draw
from django_durable_tasks.diagrams.model import Diagram
from tests.unit.diagrams import dot_grammar
from tests.unit.diagrams.graphs import diagram, diagrams, node


@given(diagrams(cycles=True))
@settings(deadline=None)
def test_dot_and_mermaid_contain_every_node_and_the_same_edges(of: Diagram) -> None:
    found = dot_grammar.read(draw(of, "dot"))
    lines = draw(of, "mermaid").splitlines()
    arrows = [
        re.fullmatch(r"  (n\d+) (?:-->|-\.->|--x)(?:\|[a-z0-9, ]+\|)? (n\d+)", line)
        for line in lines
    ]
    assert sorted((a[1], a[2]) for a in arrows if a) == sorted(
        (one, other) for one, other, _ in found.edges
    )
    boxes = [line for line in lines if re.fullmatch(r' +n\d+\["[^"]*"\]:::[a-z]+', line)]
    assert len(boxes) == len(found.nodes) == len(of.nodes)
    assert sum(line.strip() == "end" for line in lines) == sum(
        line.strip().startswith("subgraph") for line in lines
    )


def test_mermaid_has_a_class_for_each_status_and_links_if_given() -> None:
    of = diagram([node("a", href="/tasks/1?x=y"), node("b", "FAILED", group="part")], "a>b")
    lines = [line.strip() for line in draw(of, "mermaid").splitlines()]
    assert lines[:4] == ["---", 'title: "nightly \\u00b7 RUNNING"', "---", "flowchart LR"]
    assert 'n0["a<br/>SUCCESS"]:::success' in lines
    assert 'subgraph g1["part"]' in lines
    assert "classDef failed fill:#fef2f2,stroke:#b91c1c,color:#7f1d1d" in lines
    assert 'click n0 href "/tasks/1?x=y"' in lines
